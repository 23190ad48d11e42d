"""The teacher of a distillation: reading it, and checking it against the student."""

import contextlib
from collections.abc import Iterator, Mapping

from jax.sharding import AbstractMesh, Mesh

from jaxformer.config.experiment import Config, check_mesh
from jaxformer.config.train import Distillation
from jaxformer.data import Datasets
from jaxformer.distributed.processes import is_first, placed
from jaxformer.distributed.sharding import parameter_sharding, parameter_shardings
from jaxformer.errors import ConfigError
from jaxformer.io.staging import name_of
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel, Parameters
from jaxformer.pretrained.checkpoint import Checkpoint
from jaxformer.training.logging.progress import short_number
from jaxformer.training.logging.report import parameter_count
from jaxformer.training.loss import DistillationLoss
from jaxformer.training.transfer.origin import check_known_tokenizer, check_same_tokenizer

_FIELD = "train.distillation.teacher"


def check_teacher(config: Config, teacher: Checkpoint, mesh: Mapping[str, int]) -> None:
    """Raises ConfigError unless a teacher fits the student, its rows, mesh and tokenizer."""
    settings = config.train.distillation
    with naming(_title(teacher)):
        _check_fits(settings, config.model, teacher.model, config.data.lengths, mesh)
        check_known_tokenizer(config.data, teacher)


def check_teacher_data(data: Datasets, teacher: Checkpoint) -> None:
    """Raises ConfigError unless a teacher was trained on the tokens and labels of the data."""
    with naming(_title(teacher)):
        if data.tokenizer is not None:
            check_same_tokenizer(data.tokenizer, teacher)
        if data.labels and teacher.labels and data.labels != teacher.labels:
            there, here = (", ".join(side.labels) for side in (teacher, data))
            raise ConfigError(f"it was trained on the labels {there}, but the data has {here}")


def distillation_loss(
    settings: Distillation, model: ModelConfig, teacher: Checkpoint, mesh: Mesh
) -> DistillationLoss:
    """Returns the loss of a run with a compatible teacher, whose parameters are put on the mesh."""
    common = _check_models(settings, model, teacher.model)
    abstract_model, parameters = read_model(teacher, mesh)
    if is_first():
        count = short_number(parameter_count(parameters))
        learned = f"the predictions of {', '.join(common)}" if common else "only the hidden states"
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
    """Returns the loss of a run with a teacher, with shapes instead of parameters, for tracing."""
    with naming(f"{_FIELD} = {settings.teacher}"):
        common = _check_fits(settings, model, teacher, lengths, dict(mesh.shape))
    abstract_model = AbstractModel(teacher.build)
    shardings = parameter_shardings(mesh, abstract_model.axes, abstract_model.shapes)
    shapes = {name: x.update(sharding=shardings[name]) for name, x in abstract_model.shapes.items()}
    heads = [head.name for head in model.heads]
    return DistillationLoss(heads, settings, abstract_model, shapes, common)


def read_model(saved: Checkpoint, mesh: Mesh) -> tuple[AbstractModel, Parameters]:
    """Reads a frozen model: its configuration, and its parameters on the mesh."""
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
    mesh: Mapping[str, int],
) -> list[str]:
    """Checks a teacher against the rows and the mesh; returns the result of `_check_models`."""
    common = _check_models(settings, model, teacher)
    teacher.check_lengths(teacher.row_lengths(lengths))
    check_mesh(teacher, mesh)
    return common


def _check_models(settings: Distillation, model: ModelConfig, teacher: ModelConfig) -> list[str]:
    """Returns the names of the heads whose predictions the student learns from."""
    if type(teacher) is not type(model):
        raise ConfigError(
            f"its type is {type(teacher).__name__}, this model's {type(model).__name__}"
        )
    check_inputs(model, teacher)
    if settings.cosine_weight:
        ours, theirs = ((m.model_dim, getattr(m, "num_tokens", None)) for m in (model, teacher))
        if ours != theirs:
            raise ConfigError(
                f"its hidden states have a different width (model.model_dim = {teacher.model_dim} "
                f"there, {model.model_dim} here), so their cosine is undefined: set "
                "train.distillation.cosine_weight = 0, or use the same width"
            )
    return _common_heads(model, teacher) if settings.soft_weight else []


def check_inputs(model: ModelConfig, other: ModelConfig) -> None:
    """Raises ConfigError unless another model reads the same inputs as this one."""
    for field in model.input_fields:
        ours, theirs = getattr(model, field), getattr(other, field)
        if ours != theirs:
            raise ConfigError(f"its model.{field} is {theirs}, this model's {ours}")


def _common_heads(model: ModelConfig, teacher: ModelConfig) -> list[str]:
    choices = {head.name: head.choices(model) for head in model.heads}
    others = {head.name: head.choices(teacher) for head in teacher.heads}
    common = [name for name, count in choices.items() if count and others.get(name)]
    if not common:
        raise ConfigError(
            f"it has the heads {', '.join(others)}, this model {', '.join(choices)}: they share "
            "no head that predicts tokens or labels"
        )
    for name in common:
        if choices[name] != others[name]:
            raise ConfigError(
                f"its head {name!r} has {others[name]} outputs, this model's {choices[name]}"
            )
    return common


def _title(teacher: Checkpoint) -> str:
    return f"{_FIELD} = {name_of(teacher.folder)}"


@contextlib.contextmanager
def naming(title: str) -> Iterator[None]:
    """Makes the messages of a ConfigError begin with a field and its value."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{title}: {error}") from error
