"""The configuration of an experiment: model, data, optimizer, training loop and mesh in one object.

An experiment is a Python file with ``get_config() -> Config``. Everything that can be checked
without compiling anything is checked by ``validate``.
"""
# long: the parts of an experiment and the checks of their consistency belong together.

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
from jaxformer.distributed.sharding import RULES, MeshConfig, parameter_shardings, row_shards
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.io.paths import any_path
from jaxformer.io.serialization import diff, json_round_trip
from jaxformer.models import (
    Classification,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Head,
    ModelConfig,
    MultiLabel,
    VisionConfig,
)
from jaxformer.models.parameters import abstract_model_of
from jaxformer.nn.attention import DotProductAttention
from jaxformer.nn.config import TransformerConfig
from jaxformer.nn.experts import Experts
from jaxformer.nn.feedforward import MLP
from jaxformer.optim.optimizers import AdamW, Optimizer

__all__ = ["Config", "TrainConfig", "changed_fields", "check_vocabulary", "load_config", "validate"]

# Fields that may differ when a run is continued. They change when and how something is computed,
# reported or kept, but the parameters at a given step stay the same within rounding. `train.steps`
# and `train.patience` are included so that a finished run can be extended.
CHANGEABLE_FIELDS = (
    "data.corpus.cache_dir",
    "data.corpus.num_proc",
    "data.max_validation_batches",
    "data.prefetch_batches",
    "data.prefetch_threads",
    "mesh.data",
    "mesh.expert",
    "mesh.fsdp",
    "mesh.sequence",
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
    DualEncoderConfig. None uses the model of the checkpoint that --init-from names, with the head
    that matches the data.
    """
    data: Data = dataclasses.field(default_factory=DataConfig)
    """The data, and how batches are made from it."""
    optimizer: Optimizer = dataclasses.field(default_factory=AdamW)
    """AdamW, Adafactor, LAMB, Lion, SGD or Muon, each with a learning-rate schedule."""
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    """How long to train, what to report and what to keep."""
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    """How computation is distributed over devices."""
    init_from: str | None = None
    """Where the parameters come from: a Hugging Face checkpoint (its folder, or its name on the
    hub: org/name, org/name@revision), a run, or one of its checkpoints (RUN/checkpoints/300); heads
    may differ."""
    init_layers: tuple[int, ...] | None = None
    """Which layers of that model, counted from 0, to use in order ("0 2 4"); None uses all."""

    @property
    def row_lengths(self) -> Mapping[str, int]:
        """Row lengths in tokens, including the tokens that the model makes from an image."""
        return self.model.row_lengths(self.data.lengths)

    @property
    def batch_lengths(self) -> Mapping[str, int]:
        """The lengths for `ModelConfig.batch_spec`: `row_lengths`, and those that the data have.

        They differ if a model makes its tokens from a longer input, such as frames from samples.
        """
        return {**self.row_lengths, **self.data.lengths}


def validate(config: Config, num_devices: int) -> None:
    """Checks the consistency of a configuration before anything is compiled.

    Args:
        config: The experiment.
        num_devices: Devices of all processes together.

    Raises:
        ConfigError: A check failed; the message names the fields, their values and a remedy.
    """
    if config.init_from is not None:
        any_path(config.init_from, "init_from")
    check_has_model(config)
    sizes = config.mesh.axis_sizes(num_devices)
    _check_expert_axis(config.model, sizes)
    check_mesh(config.model, sizes)
    if config.train.float8 is not None:
        config.train.float8.kernels(abstract_model_of(config.model))
    parts = config.train.gradient_accumulation
    phases = config.data.phases
    for phase in phases:
        name = f"{phase.field}.batch_size"
        _check_batch_size(name, phase.batch_size, parts, sizes)
    if config.train.sample_interval is not None and not writes_samples(config.model, config.train):
        raise ConfigError(
            f"train.sample_interval = {config.train.sample_interval}: samples need a decoder that "
            "predicts the next token and train.sample_tokens above 0; leave it out"
        )
    _check_data_fits(config.model, config.data)
    _check_preference(config.model, config.data, config.train)
    for phase in phases:
        lengths = config.model.row_lengths(phase.data.text_lengths)
        config.model.check_lengths(lengths)
        _check_sequence_axis(config.model, sizes["sequence"], lengths)
        _check_capacity(config.model, lengths)
    wanted = getattr(getattr(config.data, "tokenizer", None), "vocab_size", None)
    if wanted is not None and wanted > config.model.vocab_size:
        raise ConfigError(
            f"data.tokenizer.vocab_size = {wanted} exceeds model.vocab_size = "
            f"{config.model.vocab_size}: every token needs a row in the embedding table"
        )
    if config.init_layers is not None and config.init_from is None:
        raise ConfigError(
            "init_layers selects layers of another model: name that model with --init-from"
        )


def check_has_model(config: Config) -> None:
    """Raises ConfigError if neither the experiment nor a checkpoint defines the model."""
    if config.model is None:
        raise ConfigError("model = None: set a model, or name a checkpoint with --init-from DIR")


def check_mesh(model: ModelConfig, sizes: Mapping[str, int]) -> None:
    """Checks that a model can be sharded over a mesh."""
    for name, size in model.tensor_sizes.items():
        _check_divides("mesh.tensor", sizes["tensor"], f"model.{name}", size)
    for stack in model.stacks:
        _check_tensor_axis(stack, sizes["tensor"])
        _check_divides("mesh.fsdp", sizes["fsdp"], "model.model_dim", stack.model_dim)
    if math.prod(sizes.values()) > 1:
        abstract_model = abstract_model_of(model)
        mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
        parameter_shardings(mesh, abstract_model.axes, abstract_model.shapes)


def check_vocabulary(vocab_size: int, tokenizer_size: int) -> None:
    """Checks that every token of the tokenizer has a row in the model's embedding table."""
    if tokenizer_size > vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer_size} tokens, more than model.vocab_size = "
            f"{vocab_size}: set model.vocab_size to at least {tokenizer_size} "
            "(a multiple of 128 is fast)"
        )


def check_labels(heads: Sequence[Head], labels: tuple[str, ...]) -> None:
    """Checks that classification heads have one output per label."""
    for head in heads:
        if labels and head.num_labels not in (None, len(labels)):
            raise ConfigError(
                f"the head {head.name!r} of model.heads has num_labels = {head.num_labels}, but "
                f"the training data has {len(labels)} labels ({shown(labels)}): set num_labels = "
                f"{len(labels)}"
            )


def check_heads(heads: Sequence[Head], names: Collection[str]) -> None:
    """Checks that the data provides the targets of the model's heads."""
    for head in heads:
        missing = sorted(head.reads(rows=1, length=1).keys() - set(names))
        if missing:
            raise ConfigError(
                f"the head {head.name!r} of model.heads reads {', '.join(missing)}, but the data "
                f"provides {', '.join(sorted(names))}: choose a head for this data, or other data"
            )


def changed_fields(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Returns {name: (old value, new value)} of changed fields that a continued run must keep."""
    changes = diff(old, new)
    return {name: pair for name, pair in changes.items() if not _is_changeable(name)}


def _is_changeable(name: str) -> bool:
    """Whether a field or the component that contains it may differ when a run is continued."""
    name = re.sub(r"^model\.(encoder|decoder|text|image)\.", "model.", name)
    return any(name == field or name.startswith(f"{field}.") for field in CHANGEABLE_FIELDS)


def load_config(spec: str) -> Config:
    """Loads an experiment file.

    Args:
        spec: ``path/to/file.py``, or ``path/to/file.py:argument`` if its ``get_config`` takes an
            argument.

    Returns:
        The return value of its ``get_config``.

    Raises:
        ConfigError: The file does not exist, does not define an experiment, or its code raises an
            error, whose line the message names.
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
        return json_round_trip(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _check_tensor_axis(stack: TransformerConfig, tensor: int) -> None:
    _check_divides("mesh.tensor", tensor, "model.num_heads", stack.num_heads)
    _check_divides("mesh.tensor", tensor, "model.mlp_dim", stack.mlp_dim)
    if stack.kv_heads != 1 and stack.kv_heads % tensor:
        raise ConfigError(
            f"model.num_kv_heads = {stack.kv_heads} is not divisible by mesh.tensor = {tensor}: "
            "each device needs whole key/value heads; choose a mesh.tensor that divides it, or "
            "model.num_kv_heads = 1, which is replicated on every device"
        )


def _mixtures(model: ModelConfig) -> list[Experts]:
    layers = (getattr(stack, "feed_forward", None) for stack in model.stacks)
    return [layer for layer in layers if isinstance(layer, Experts)]


def _check_expert_axis(model: ModelConfig, sizes: Mapping[str, int]) -> None:
    """Refuses an expert axis if the model has no experts or their number is not divisible by it."""
    parts = sizes["expert"]
    counts = [layer.num for layer in _mixtures(model)]
    fits = math.gcd(parts, *(counts or [1]))
    if parts != fits:
        found = " and ".join(map(str, counts))
        why = f"does not divide the {found} experts" if counts else "needs a model with experts"
        raise ConfigError(
            f"mesh.expert = {parts} {why}: the nearest mesh is --mesh.data "
            f"{sizes['data'] * parts // fits} --mesh.expert {fits}"
        )


def _check_capacity(model: ModelConfig, lengths: Mapping[str, int]) -> None:
    """Refuses a capacity of experts below one token of a row."""
    for layer in _mixtures(model):
        for name, length in lengths.items():
            layer.check_rows(name, length)


_LENGTH_FIELDS = {"inputs": "sequence_length", "decoder_inputs": "target_length"}
"""The fields of the data that determine the length of an array."""


def _check_sequence_axis(model: ModelConfig, parts: int, lengths: Mapping[str, int]) -> None:
    """Refuses models and lengths whose tokens devices cannot share."""
    if parts == 1:
        return
    able = DecoderConfig, EncoderConfig, EncoderDecoderConfig, VisionConfig
    in_parts = DotProductAttention, MLP, Experts
    kinds = [] if isinstance(model, able) else [type(model)]
    for stack in model.stacks:
        kinds += [type(stack.self_attention), type(stack.feed_forward)]
    whole = next((kind for kind in kinds if kind not in in_parts), None)
    if whole is not None:
        raise ConfigError(
            f"mesh.sequence = {parts}: {whole.__name__} computes whole rows; set it to 1 and use "
            "mesh.fsdp or mesh.tensor"
        )
    for name, length in lengths.items():
        if length % parts:
            fits = max(size for size in range(1, parts + 1) if length % size == 0)
            field = _LENGTH_FIELDS.get(name, "length")
            other = f"a {field} that is a multiple of {parts}, as {length + -length % parts}"
            if isinstance(model, VisionConfig):
                more = model.register_tokens + -length % parts
                other = f"--model.register-tokens {more}, or {other}"
            raise ConfigError(
                f"mesh.sequence = {parts} does not divide the length of {name}, {length} tokens: "
                f"choose --mesh.sequence {fits}, or {other}"
            )


def writes_samples(model: ModelConfig, train: TrainConfig) -> bool:
    """Whether a run logs samples of its model."""
    return model.causal and model.predicts_next_token and train.sample_tokens > 0


def _check_data_fits(model: ModelConfig, data: Data) -> None:
    """Refuses data that a model cannot read or learn from."""
    kind = type(model).__name__
    objective = data.objective if isinstance(data, DataConfig) else data
    name = type(objective).__name__
    decodes = "decoder_inputs" in data.lengths
    made = {
        "inputs": ("text", data.has_text and data.sounds_as is None),
        "images": ("images", data.has_images or data.sounds_as == "images"),
        "waveforms": ("sounds as waveforms", data.sounds_as == "waveforms"),
        "spectrograms": ("sounds as spectrograms", data.sounds_as == "spectrograms"),
    }
    for array, (words, there) in made.items():
        if array in model.required and not there:
            raise ConfigError(f"{kind} reads {words}, which {name} does not make")
    for array, (words, there) in made.items():
        if there and array not in model.required:
            raise ConfigError(f"{kind} does not read {words}, which {name} provides")
    shared = (*model.input_fields, "patch_size") if data.has_images or data.sounds_as else ()
    for field in (name for name in shared if hasattr(data, name) and hasattr(model, name)):
        there = getattr(data, field)
        here = getattr(model, field)
        if there != here:
            raise ConfigError(f"data.{field} = {there} must equal model.{field} = {here}")
    has_decoder = "decoder_inputs" in model.required
    if decodes and not has_decoder:
        raise ConfigError(
            f"{name} provides separate encoder and decoder inputs, which {kind} does not read: "
            "use an EncoderDecoderConfig"
        )
    if has_decoder and not decodes:
        raise ConfigError(
            f"{kind} has a decoder, for which {name} provides no inputs: use SpanCorruption, "
            "Denoising or ParallelText, set data.decoder_start for labels, or use a model "
            "without a decoder"
        )
    several = [type(x) is MultiLabel for x in model.heads if isinstance(x, Classification)]
    if several and (data.head == "multi_label") != any(several):
        right, words = ("Classification", "one") if any(several) else ("MultiLabel", "several")
        raise ConfigError(f"model.heads: a row of {name} has {words} of the labels: use {right}")
    _check_pooling(model)
    if not model.causal and isinstance(objective, CausalLM | PrefixLM):
        raise ConfigError(
            f"data.objective = {name}: next-token prediction needs causal attention, but every "
            f"token of an encoder ({kind}) sees the next one: use MaskedLM, or a DecoderConfig"
        )


def _check_preference(model: ModelConfig, data: Data, train: TrainConfig) -> None:
    """Refuses preference data without a preference loss, and that loss without such data or a
    decoder.
    """
    name = type(data).__name__
    preference = train.preference
    wanted = data.preference
    given = None if preference is None else type(preference).__name__
    if wanted is not None and given != wanted:
        raise ConfigError(
            f"train.preference = {given}: {name} provides preferences, which need a preference "
            f"loss; choose one with --train.preference {wanted}"
        )
    if preference is None:
        return
    if wanted is None:
        raise ConfigError(
            f"train.preference = {given}: compares {preference.compares}, which {name} does not "
            f"provide; use {preference.data}, or leave it out"
        )
    if not (model.causal and model.predicts_next_token):
        heads = ", ".join(head.name for head in model.heads) or "none"
        raise ConfigError(
            f"train.preference compares answers of a decoder with the head language_model; this is "
            f"{type(model).__name__} with {heads}"
        )


def _check_pooling(model: ModelConfig) -> None:
    """Refuses a classifier on the first token of a causal model, which does not see the text."""
    for number, head in enumerate(model.heads):
        pooling = getattr(head, "pooling", None)
        if model.causal and pooling in ("first", "second", "first_and_mean"):
            raise ConfigError(
                f"model.heads.{number}.pooling = {pooling!r}: must be 'last' or 'mean' in a "
                "causal model, whose first token does not see the text after it"
            )


def _check_batch_size(name: str, batch_size: int, parts: int, sizes: Mapping[str, int]) -> None:
    replicas = row_shards(sizes)
    if batch_size % (parts * replicas):
        axes = " x ".join(f"mesh.{axis}" for axis in RULES["batch"])
        raise ConfigError(
            f"{name} = {batch_size} is not divisible by train.gradient_accumulation x {axes} = "
            f"{parts} x {replicas} = {parts * replicas}, which would give every device the same "
            f"number of rows: choose a multiple of {parts * replicas}, or let devices share rows "
            "(mesh.sequence)"
        )


def _check_divides(axis: str, size: int, field: str, value: int) -> None:
    if value % size:
        raise ConfigError(
            f"{field} = {value} is not divisible by {axis} = {size}: choose a {axis} that "
            f"divides it, or a {field} that is a multiple of {size}"
        )
