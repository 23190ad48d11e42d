"""The configuration of an experiment: model, data, optimizer, training loop and mesh in one object.

An experiment is a Python file with ``get_config() -> Config``. Everything that can be checked
without compiling anything is checked by ``validate``.
"""

import dataclasses
import inspect
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.sharding import AbstractMesh

from jaxformer.config.train import TrainConfig
from jaxformer.config.user_code import import_file, in_one_sentence
from jaxformer.data import CausalLM, Data, DataConfig, PrefixLM
from jaxformer.data.labels import shown
from jaxformer.distributed.sharding import MeshConfig, parameter_shardings
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.io.paths import any_path
from jaxformer.io.serialization import as_saved, diff
from jaxformer.models import Classification, Head, ModelConfig, MultiLabel
from jaxformer.models.parameters import AbstractModel
from jaxformer.nn.config import TransformerConfig
from jaxformer.optim.optimizers import AdamW, Optimizer

__all__ = ["Config", "TrainConfig", "changed_fields", "check_vocabulary", "load_config", "validate"]

# A run may be continued with another value of these. They change when and how something is
# computed, reported or kept, not what: the parameters at a given step stay the same within
# rounding. `train.steps` and `train.patience` are among them so that a finished run can be
# extended.
CHANGEABLE_FIELDS = (
    "data.corpus.cache_dir",
    "data.corpus.num_proc",
    "data.max_validation_batches",
    "data.prefetch_batches",
    "data.prefetch_threads",
    "mesh.data",
    "mesh.fsdp",
    "mesh.tensor",
    "model.attention",
    "model.remat",
    "model.scan_layers",
    "train.checkpoint_interval",
    "train.compiler_options",
    "train.epochs",
    "train.eval_interval",
    "train.keep",
    "train.log_interval",
    "train.loggers",
    "train.loss_chunk",
    "train.max_nonfinite_steps",
    "train.metric",
    "train.patience",
    "train.profile_steps",
    "train.sample_interval",
    "train.sample_prompt",
    "train.sample_temperature",
    "train.sample_tokens",
    "train.steps",
)


@dataclass(frozen=True)
class Config:
    """One experiment."""

    model: ModelConfig | None = None
    """The model: a DecoderConfig, EncoderConfig, EncoderDecoderConfig, VisionConfig or
    DualEncoderConfig. None: that of the checkpoint that --init-from names, with the head that the
    data teach."""
    data: Data = dataclasses.field(default_factory=DataConfig)
    """The data, and how they become batches."""
    optimizer: Optimizer = dataclasses.field(default_factory=AdamW)
    """AdamW, Adafactor, LAMB, Lion, SGD or Muon, each with its schedule."""
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    """How long to train, and what to report and keep."""
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    """How the work is spread over devices."""
    init_from: str | None = None
    """Where the parameters come from: a Hugging Face checkpoint (its folder, or its name on the
    hub: org/name, org/name@revision), a run, or one of its checkpoints (RUN/checkpoints/300); heads
    may differ."""
    init_layers: tuple[int, ...] | None = None
    """Which of that model's layers, from 0, become this one's in order ("0 2 4"); None: all."""

    @property
    def row_lengths(self) -> Mapping[str, int]:
        """The tokens of a row: those of the data, or those that the model makes of an image."""
        return self.model.row_lengths(self.data.lengths)


def validate(config: Config, num_devices: int) -> None:
    """Checks what the parts of a configuration demand of each other, before anything compiles.

    Args:
        config: The experiment.
        num_devices: Devices of all processes together.

    Raises:
        ConfigError: Names the fields, their values and what would be right.
    """
    if config.init_from is not None:
        any_path(config.init_from, "init_from")
    check_has_model(config)
    sizes = dict(zip(("data", "fsdp", "tensor"), config.mesh.sizes(num_devices), strict=True))
    check_mesh(config.model, sizes)
    parts, phases = config.train.gradient_accumulation, config.data.phases
    for phase in phases:
        name = f"{phase.field}.batch_size"
        _check_batch_size(name, phase.batch_size, parts, sizes["data"] * sizes["fsdp"])
    if config.train.sample_interval is not None and not writes_samples(config.model, config.train):
        raise ConfigError(
            f"train.sample_interval = {config.train.sample_interval}: samples are of decoders that "
            "predict the next token, where train.sample_tokens is above 0; leave it out"
        )
    _check_data_fits(config.model, config.data)
    _check_preference(config.model, config.data, config.train)
    for phase in phases:
        config.model.check_lengths(config.model.row_lengths(phase.data.text_lengths))
    wanted = getattr(getattr(config.data, "tokenizer", None), "vocab_size", None)
    if wanted is not None and wanted > config.model.vocab_size:
        raise ConfigError(
            f"data.tokenizer.vocab_size = {wanted} exceeds model.vocab_size = "
            f"{config.model.vocab_size}: every token needs a row of the embedding table"
        )
    if config.init_layers is not None and config.init_from is None:
        raise ConfigError("init_layers names layers of another run: name the run with --init-from")


def check_has_model(config: Config) -> None:
    """Raises ConfigError where neither the experiment nor a checkpoint says what the model is."""
    if config.model is None:
        raise ConfigError(
            "model = None: must be a model, or that of a checkpoint; name one with --init-from DIR"
        )


def check_mesh(model: ModelConfig, sizes: Mapping[str, int]) -> None:
    """Checks that a model can be sharded over a mesh."""
    for name, size in model.tensor_sizes.items():
        _check_divides("mesh.tensor", sizes["tensor"], f"model.{name}", size)
    for stack in model.stacks:
        _check_tensor_axis(stack, sizes["tensor"])
        _check_divides("mesh.fsdp", sizes["fsdp"], "model.model_dim", stack.model_dim)
        if "vocab_size" in stack.input_fields:
            _check_vocabulary_divides(stack.vocab_size, sizes["tensor"] * sizes["fsdp"])
    if math.prod(sizes.values()) > 1:
        abstract_model = AbstractModel(model.build)
        mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
        parameter_shardings(mesh, abstract_model.axes, abstract_model.shapes)


def check_vocabulary(vocab_size: int, tokenizer_size: int) -> None:
    """Checks that every token of the tokenizer has a row of the model's embedding table.

    Args:
        vocab_size: The rows of that table.
        tokenizer_size: Tokens of the tokenizer as it was loaded or trained.

    Raises:
        ConfigError: The tokenizer has more tokens than the model.
    """
    if tokenizer_size > vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer_size} tokens, more than model.vocab_size = "
            f"{vocab_size}: set model.vocab_size to at least {tokenizer_size} "
            "(a multiple of 128 is fast)"
        )


def check_labels(heads: Sequence[Head], labels: tuple[str, ...]) -> None:
    """Checks that the heads that choose among labels have an output for each."""
    for head in heads:
        if labels and head.num_labels not in (None, len(labels)):
            raise ConfigError(
                f"the head {head.name!r} of model.heads has num_labels = {head.num_labels}, but "
                f"the training data have {len(labels)} labels ({shown(labels)}): set "
                f"num_labels = {len(labels)}"
            )


def check_heads(heads: Sequence[Head], names: Collection[str]) -> None:
    """Checks that the data have what the model's heads predict."""
    for head in heads:
        missing = sorted(head.reads(rows=1, length=1).keys() - set(names))
        if missing:
            raise ConfigError(
                f"the head {head.name!r} of model.heads reads {', '.join(missing)}, but the data "
                f"have {', '.join(sorted(names))}: choose a head for these data, or other data"
            )


def changed_fields(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Returns what differs and would make a continued run another run.

    Args:
        old: The configuration that a run was started with.
        new: The one it is to be continued with.

    Returns:
        ``{"model.num_layers": (old value, new value), ...}`` without ``CHANGEABLE_FIELDS``.
    """
    changes = diff(old, new)
    return {name: pair for name, pair in changes.items() if not _is_changeable(name)}


def _is_changeable(name: str) -> bool:
    """Whether a field, or the component that it belongs to, may differ in a continued run."""
    name = re.sub(r"^model\.(encoder|decoder|text|image)\.", "model.", name)
    return any(name == field or name.startswith(f"{field}.") for field in CHANGEABLE_FIELDS)


def load_config(spec: str) -> Config:
    """Loads an experiment file.

    Args:
        spec: ``path/to/file.py``, or ``path/to/file.py:argument`` where its ``get_config`` takes
            one.

    Returns:
        What its ``get_config`` returned.

    Raises:
        ConfigError: There is no such file, it does not define an experiment, or its code raises an
            error; names the line.
    """
    name, _, argument = spec.partition(":")
    path = Path(name)
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a file: name the Python file of an experiment")
    if not path.is_file():
        siblings = sorted(str(item) for item in path.parent.glob("*.py"))
        listed = f"; there are {', '.join(siblings)}" if siblings else ""
        raise ConfigError(f"{path} does not exist{did_you_mean(name, siblings) or listed}")
    get_config = getattr(import_file(path), "get_config", None)
    if not callable(get_config):
        raise ConfigError(f"{path} does not define get_config().")
    takes_argument = bool(inspect.signature(get_config).parameters)
    if argument and not takes_argument:
        raise ConfigError(f"{spec}: get_config() of {path} takes no argument, got {argument!r}.")
    with in_one_sentence(path):
        config = get_config(argument) if argument else get_config()
    if not isinstance(config, Config):
        raise ConfigError(f"{path}: get_config() returned a {type(config).__name__}, not a Config.")
    try:
        return as_saved(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _check_tensor_axis(stack: TransformerConfig, tensor: int) -> None:
    _check_divides("mesh.tensor", tensor, "model.num_heads", stack.num_heads)
    _check_divides("mesh.tensor", tensor, "model.mlp_dim", stack.mlp_dim)
    if stack.kv_heads != 1 and stack.kv_heads % tensor:
        raise ConfigError(
            f"model.num_kv_heads = {stack.kv_heads} is not divisible by mesh.tensor = {tensor}: "
            "each device needs whole key/value heads; choose a mesh.tensor that divides it, or "
            "model.num_kv_heads = 1, which every device keeps"
        )


def writes_samples(model: ModelConfig, train: TrainConfig) -> bool:
    """Whether a run shows how its model continues a text."""
    return model.causal and model.predicts_next_token and train.sample_tokens > 0


def _check_data_fits(model: ModelConfig, data: Data) -> None:
    """Refuses data that a model cannot read, or from which it would learn nothing."""
    kind = type(model).__name__
    objective = data.objective if isinstance(data, DataConfig) else data
    name, decodes = type(objective).__name__, "decoder_inputs" in data.lengths
    made = {"inputs": ("text", data.has_text), "images": ("images", data.has_images)}
    for array, (words, there) in made.items():
        if array in model.required and not there:
            raise ConfigError(f"{kind} reads {words}, which {name} does not make")
    for array, (words, there) in made.items():
        if there and array not in model.required:
            raise ConfigError(f"{kind} does not read {words}, which {name} makes")
    of_images = (*model.input_fields, "patch_size") if data.has_images else ()
    for field in (name for name in of_images if hasattr(data, name) and hasattr(model, name)):
        there, here = getattr(data, field), getattr(model, field)
        if there != here:
            raise ConfigError(f"data.{field} = {there} must equal model.{field} = {here}")
    has_decoder = "decoder_inputs" in model.required
    if decodes and not has_decoder:
        raise ConfigError(
            f"{name} makes inputs for an encoder and others for a decoder, which {kind} does not "
            "read: use an EncoderDecoderConfig"
        )
    if has_decoder and not decodes:
        raise ConfigError(
            f"{kind} has a decoder, for which {name} makes nothing: use SpanCorruption, Denoising "
            "or ParallelText, set data.decoder_start for labels, or take a model without one"
        )
    several = [type(x) is MultiLabel for x in model.heads if isinstance(x, Classification)]
    if several and (data.head == "multi_label") != any(several):
        right, words = ("Classification", "one") if any(several) else ("MultiLabel", "several")
        raise ConfigError(f"model.heads: a row of {name} has {words} of the labels: use {right}")
    _check_pooling(model)
    if not model.causal and isinstance(objective, CausalLM | PrefixLM):
        raise ConfigError(
            f"data.objective = {name}: it asks for the next token, which every token of an encoder "
            f"({kind}) sees: use MaskedLM, or a DecoderConfig"
        )


def _check_preference(model: ModelConfig, data: Data, train: TrainConfig) -> None:
    """Refuses preferences without their loss, and that loss without them or a decoder."""
    name, preference, wanted = type(data).__name__, train.preference, data.preference
    given = None if preference is None else type(preference).__name__
    if wanted is not None and given != wanted:
        raise ConfigError(
            f"train.preference = {given}: {name} makes preferences, which no other loss compares; "
            f"choose one with --train.preference {wanted}"
        )
    if preference is None:
        return
    if wanted is None:
        raise ConfigError(
            f"train.preference = {given}: compares {preference.compares}, which {name} does not "
            f"make; use {preference.data}, or leave it out"
        )
    if not (model.causal and model.predicts_next_token):
        heads = ", ".join(head.name for head in model.heads) or "none"
        raise ConfigError(
            f"train.preference compares answers of a decoder with the head language_model; this is "
            f"{type(model).__name__} with {heads}"
        )


def _check_pooling(model: ModelConfig) -> None:
    """Refuses a classifier that reads a token of a causal model which has not seen the text."""
    for number, head in enumerate(model.heads):
        pooling = getattr(head, "pooling", None)
        if model.causal and pooling in ("first", "second", "first_and_mean"):
            raise ConfigError(
                f"model.heads.{number}.pooling = {pooling!r}: must be 'last' or 'mean' in a causal "
                "model, whose first token sees nothing of the text after it"
            )


def _check_batch_size(name: str, batch_size: int, parts: int, replicas: int) -> None:
    if batch_size % (parts * replicas):
        raise ConfigError(
            f"{name} = {batch_size} is not divisible by "
            f"train.gradient_accumulation x mesh.data x mesh.fsdp = {parts} x {replicas} = "
            f"{parts * replicas}: every device takes the same number of rows in every part"
        )


def _check_vocabulary_divides(size: int, devices: int) -> None:
    if size % devices:
        padded = -(-size // devices) * devices
        raise ConfigError(
            f"model.vocab_size = {size} is not divisible by mesh.tensor x mesh.fsdp = "
            f"{devices}, over which the vocabulary is cut: pad it to {padded} (rows beyond the "
            "tokenizer's tokens do no harm)"
        )


def _check_divides(axis: str, size: int, field: str, value: int) -> None:
    if value % size:
        raise ConfigError(
            f"{field} = {value} is not divisible by {axis} = {size}: choose a {axis} that "
            f"divides it, or a {field} that is a multiple of {size}"
        )
