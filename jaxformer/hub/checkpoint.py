"""A Hugging Face checkpoint: the system, the class and the configuration of a model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat, completed, read_config
from jaxformer.hub.tasks import Task
from jaxformer.hub.weights.tensors import Tensors
from jaxformer.models.model import ModelConfig
from jaxformer.nn.config import MOST_LAYERS

_DEEPEST = 20
_LONGEST_MESSAGE = 1500
_ORDINARY_SIZE = 10**6
_SIZES = (
    "vocab_size", "model_dim", "mlp_dim", "num_heads", "num_kv_heads", "head_dim", "embedding_dim"
)  # fmt: skip


@dataclass(frozen=True)
class HFCheckpoint:
    """The description of a model, in the terms of transformers and in ours."""

    model_format: ModelFormat
    """The system."""
    architecture: Architecture
    """The class."""
    hf_config: HFConfig
    """The values of config.json."""
    config: ModelConfig
    """Our configuration."""

    @property
    def prefix(self) -> str:
        """The prefix of the body's tensors; empty in a model without heads."""
        if type(self.architecture.task) is Task:
            return ""
        own = self.architecture.prefix
        return self.model_format.prefix if own is None else own

    def part(self, name: str) -> "HFCheckpoint":
        """Returns the description of a part: "encoder" or "decoder", "text" or "image"."""
        config = self.config.parts[name]
        if section := self.model_format.sections.get(name):
            values = completed(section.section_of(self.hf_config), section.model_format)
            return HFCheckpoint(section.model_format, section.architecture, values, config)
        if name not in self.model_format.parts:  # a model that no known system can say
            return replace(self, config=config)
        return HFCheckpoint(*self.model_format.parts[name], config)

    @property
    def repeats_inputs(self) -> bool:
        """Whether a decoder that is given no inputs repeats those of the encoder."""
        return self.model_format.repeats_inputs or self.architecture.task.repeats_inputs


def read_checkpoint(hf_config: HFConfig, formats: Mapping[str, ModelFormat]) -> HFCheckpoint:
    """Returns the description of the model in a config.json.

    Args:
        hf_config: The values of the file.
        formats: The known systems by `model_type`.

    Raises:
        ConfigError: The system or its class is unknown, or a field has a value that is not
            supported; names the nearest.
    """
    try:
        return _read(hf_config, formats)
    except ConfigError as error:
        message = str(error)
        if not message.startswith(str(hf_config.path)):
            message = f"{hf_config.path}: {message}"
        if len(message) > _LONGEST_MESSAGE:  # a field may hold a text of any length
            message = f"{message[:_LONGEST_MESSAGE]} ..."
        raise ConfigError(message) from error


def _read(hf_config: HFConfig, formats: Mapping[str, ModelFormat]) -> HFCheckpoint:
    kind = hf_config.take("model_type", None)
    if not isinstance(kind, str) or kind not in formats:
        raise ConfigError(
            f"{hf_config.path}: model_type = {kind!r} is not known: must be one of "
            f"{', '.join(sorted(formats))}{did_you_mean(kind, formats)}"
        )
    model_format = formats[kind].bound(hf_config, formats)
    _check_numbers(hf_config)
    _check_not_quantised(hf_config)
    hf_config = completed(hf_config, model_format)
    architecture = _architecture(hf_config, model_format)
    try:
        config = read_config(hf_config, model_format, architecture)
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A list, say, where a number belongs, which the field did not expect.
        raise ConfigError(f"{hf_config.path}: {hf_config.last} cannot be used: {error}") from error
    return HFCheckpoint(model_format, architecture, hf_config, config)


def _check_numbers(hf_config: HFConfig) -> None:
    """Refuses numbers that no model has, before anything of that size is made."""
    pending = [(name, value, 0) for name, value in hf_config.values.items()]
    while pending:
        name, value, depth = pending.pop()
        where = f"{hf_config.path}: {name}"
        if isinstance(value, dict | list):
            if depth > _DEEPEST:
                raise ConfigError(f"{where}: objects and lists are nested too deeply")
            inner = value.items() if isinstance(value, dict) else ((name, part) for part in value)
            pending += [(key, part, depth + 1) for key, part in inner]
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where} = {value}: must be finite")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(f"{where} has {value.bit_length()} bits: must be a number of 64")
        elif isinstance(value, int) and "layer" in name and value > MOST_LAYERS:
            raise ConfigError(f"{where} = {value}: must be {MOST_LAYERS:,} at most")


def _check_not_quantised(hf_config: HFConfig) -> None:
    quantised = hf_config.values.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise ConfigError(
            f"{hf_config.path}: quantization_config: the weights were quantised ({method!r}), "
            "which cannot be read: fetch the model in bfloat16 or float32"
        )


def check_sizes(checkpoint: HFCheckpoint, files: Tensors) -> None:
    """Checks that a model is not far larger than its files, before its arrays are described.

    Missing tensors of an ordinary model are reported one by one later.

    Args:
        checkpoint: The model.
        files: Its tensors.

    Raises:
        ConfigError: A size is larger than the number of all weights.
    """
    weights = sum(math.prod(tensor.shape) for tensor in files.tensors.values())

    def check(config: ModelConfig) -> ModelConfig:
        for name in _SIZES:
            size = getattr(config, name, None) or 0
            if size > max(weights, _ORDINARY_SIZE):
                raise ConfigError(
                    f"{checkpoint.hf_config.path}: {name} = {size}, but all tensors in "
                    f"{files.folder} have no more than {weights:,} values together"
                )
        return config

    checkpoint.config.each_part(check)


def _architecture(hf_config: HFConfig, model_format: ModelFormat) -> Architecture:
    """The class that config.json names, or the most usual one."""
    named = hf_config.take("architectures", None) or [model_format.architectures[0].name]
    if not isinstance(named, list):
        raise ConfigError(
            f"{hf_config.path}: architectures = {named!r}: must be a list of one name"
        )
    architecture = model_format.architecture(str(named[0]))
    if architecture is not None:
        _check_fields(hf_config, model_format, architecture)
        return architecture
    known = [architecture.name for architecture in model_format.architectures]
    hint = did_you_mean(named[0], known)
    raise ConfigError(
        f"{hf_config.path}: architectures = {named} is not known for model_type "
        f"{model_format.model_type!r}: must be one of {', '.join(known)}{hint}"
    )


def _check_fields(
    hf_config: HFConfig, model_format: ModelFormat, architecture: Architecture
) -> None:
    """Refuses a class with the fields of another: `BertForMaskedLM` with `is_decoder` true."""
    fits = model_format.classes(hf_config.values)
    if architecture in fits:
        return
    for other in model_format.architectures:
        for name in other.fields:
            given, wanted = hf_config.take(name, False), architecture.fields.get(name, False)
            if given != wanted:
                which = f", or architectures = {[fits[0].name]}" if fits else ""
                raise ConfigError(
                    f"{hf_config.path}: {name} = {given!r}, but architectures = "
                    f"{[architecture.name]}: must be {wanted!r} for this class{which}"
                )
