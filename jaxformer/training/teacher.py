"""The teacher of a distillation: read from its run's folder, checked against the student."""

from collections.abc import Mapping

from jax.sharding import AbstractMesh, Mesh

from jaxformer.checkpoints.run_data import kept_files
from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.config.experiment import check_mesh
from jaxformer.config.train import Distillation
from jaxformer.data import Datasets
from jaxformer.data.labels import load_labels
from jaxformer.distributed.processes import is_first, placed
from jaxformer.distributed.sharding import parameter_sharding, parameter_shardings
from jaxformer.errors import ConfigError
from jaxformer.io.staging import name_of
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel, Parameters
from jaxformer.training.logging.progress import short_number
from jaxformer.training.logging.report import parameter_count
from jaxformer.training.loss import DistillationLoss
from jaxformer.training.transfer.origin import SavedFolder, check_same_tokenizer, open_saved


def distillation_loss(
    settings: Distillation,
    model: ModelConfig,
    lengths: Mapping[str, int],
    data: Datasets,
    mesh: Mesh,
) -> DistillationLoss:
    """The loss of a run with a teacher, whose parameters are put on the mesh.

    Args:
        settings: Names the teacher.
        model: The student.
        lengths: Tokens of a row of the data.
        data: The data; the teacher must have learned from the same tokens and labels.
        mesh: Where the step runs.

    Returns:
        The loss.

    Raises:
        ConfigError: The folder is not a run, or the teacher does not fit the student.
    """
    teacher = open_saved(settings.teacher, "train.distillation.teacher")
    try:
        common = _check_fits(settings, model, teacher.model, lengths, mesh)
        if data.tokenizer is not None:
            check_same_tokenizer(data.tokenizer, teacher.folder)
        _check_labels(data.labels, load_labels(kept_files(teacher.folder)))
    except ConfigError as error:
        raise ConfigError(
            f"train.distillation.teacher {name_of(teacher.folder)}: {error}"
        ) from error
    abstract_model, parameters = read_model(teacher, mesh)
    if is_first():
        count = short_number(parameter_count(parameters))
        learned = f"the predictions of {', '.join(common)}" if common else "the hidden states alone"
        of = f"teacher {name_of(teacher.folder)} at step {teacher.step}, {count} parameters"
        print(f"{of}: teaches {learned}")
    heads = [head.name for head in model.heads]
    return DistillationLoss(heads, settings, abstract_model, parameters, common)


def abstract_distillation_loss(
    settings: Distillation,
    model: ModelConfig,
    lengths: Mapping[str, int],
    teacher: ModelConfig,
    mesh: Mesh | AbstractMesh,
) -> DistillationLoss:
    """The loss of a run with a teacher, with the shapes of its parameters in their place.

    Args:
        settings: The weights of the terms.
        model: The student.
        lengths: Tokens of a row of the data.
        teacher: The teacher.
        mesh: What the step is traced for.

    Returns:
        The loss, with which a step can be traced but not run.

    Raises:
        ConfigError: The teacher does not fit the student, or the mesh.
    """
    try:
        common = _check_fits(settings, model, teacher, lengths, mesh)
    except ConfigError as error:
        raise ConfigError(f"train.distillation.teacher {settings.teacher}: {error}") from error
    abstract_model = AbstractModel(teacher.build)
    shardings = parameter_shardings(mesh, abstract_model.axes, abstract_model.shapes)
    shapes = {name: x.update(sharding=shardings[name]) for name, x in abstract_model.shapes.items()}
    heads = [head.name for head in model.heads]
    return DistillationLoss(heads, settings, abstract_model, shapes, common)


def read_model(saved: SavedRun | SavedFolder, mesh: Mesh) -> tuple[AbstractModel, Parameters]:
    """Reads a model that does not learn, and puts its parameters on the mesh.

    Args:
        saved: The model.
        mesh: Where the step runs.

    Returns:
        Its structure and its parameters.
    """
    abstract_model = AbstractModel(saved.model.build)
    parameters = {
        name: placed(array, parameter_sharding(mesh, name, abstract_model.axes[name], array.shape))
        for name, array in saved.read(abstract_model.shapes).items()
    }
    return abstract_model, parameters


def _check_fits(
    settings: Distillation,
    model: ModelConfig,
    teacher: ModelConfig,
    lengths: Mapping[str, int],
    mesh: Mesh | AbstractMesh,
) -> list[str]:
    """Returns what `_check_models` does, once the teacher fits the rows and the mesh too."""
    common = _check_models(settings, model, teacher)
    teacher.check_lengths(teacher.row_lengths(lengths))
    check_mesh(teacher, dict(mesh.shape))
    return common


def _check_models(settings: Distillation, model: ModelConfig, teacher: ModelConfig) -> list[str]:
    """Returns the names of the heads whose predictions the student learns."""
    if type(teacher) is not type(model):
        _refuse(f"it is a model of {type(teacher).__name__}, this one of {type(model).__name__}")
    for field in model.input_fields:
        ours, theirs = getattr(model, field), getattr(teacher, field)
        if ours != theirs:
            _refuse(f"its model.{field} is {theirs}, this model's {ours}")
    if settings.cosine_weight:
        ours, theirs = ((m.model_dim, getattr(m, "num_tokens", None)) for m in (model, teacher))
        if ours != theirs:
            _refuse(
                f"its hidden states have another shape (model.model_dim = {teacher.model_dim} "
                f"there, {model.model_dim} here), so there is no cosine between them: set "
                "train.distillation.cosine_weight = 0, or the same sizes"
            )
    return _common_heads(model, teacher) if settings.soft_weight else []


def _common_heads(model: ModelConfig, teacher: ModelConfig) -> list[str]:
    choices = {head.name: head.choices(model) for head in model.heads}
    others = {head.name: head.choices(teacher) for head in teacher.heads}
    common = [name for name, count in choices.items() if count and others.get(name)]
    if not common:
        _refuse(
            f"it has the heads {', '.join(others)}, this model {', '.join(choices)}: none in "
            "common that chooses among tokens or labels"
        )
    for name in common:
        if choices[name] != others[name]:
            _refuse(f"its head {name!r} has {others[name]} outputs, this model's {choices[name]}")
    return common


def _check_labels(here: tuple[str, ...], there: tuple[str, ...]) -> None:
    if here and there and here != there:
        _refuse(f"it has learned the labels {', '.join(there)}; here they are {', '.join(here)}")


def _refuse(reason: str) -> None:
    raise ConfigError(reason)
