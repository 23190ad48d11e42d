"""A Hugging Face checkpoint: the format, the class and the configuration of a model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxformer.errors import ConfigError, did_you_mean, shortened
from jaxformer.hub.hf_config import HONOURED_ELSEWHERE, HFConfig
from jaxformer.hub.model_format import Architecture, Formats, ModelFormat, completed, read_config
from jaxformer.hub.tasks.classes import Task
from jaxformer.hub.weights.tensors import Tensors
from jaxformer.io.notices import warn_once
from jaxformer.models.model import ModelConfig

_MAX_MESSAGE = 1500
_ORDINARY_SIZE = 10**6
_SIZES = (
    "vocab_size", "model_dim", "mlp_dim", "num_heads", "num_kv_heads", "head_dim",
    "embedding_width",
)  # fmt: skip


@dataclass(frozen=True)
class HFCheckpoint:
    """The description of a model, in the terms of transformers and in ours."""

    model_format: ModelFormat
    architecture: Architecture
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
        config = self.config.parts.get(name, self.config)  # a file may contain only one part
        if section := self.model_format.sections.get(name):
            values = completed(section.section_of(self.hf_config), section.model_format)
            return HFCheckpoint(section.model_format, section.architecture, values, config)
        if name not in self.model_format.parts:  # a model without a known format
            return replace(self, config=config)
        return HFCheckpoint(*self.model_format.parts[name], config)

    @property
    def repeats_inputs(self) -> bool:
        """Whether a decoder without inputs uses the encoder's."""
        return self.model_format.repeats_inputs or self.architecture.task.repeats_inputs


def read_checkpoint(
    hf_config: HFConfig,
    formats: Formats,
    relatives: Mapping[str, str] | None = None,
    strict: bool = False,
    architecture: str | None = None,
) -> HFCheckpoint:
    """Returns the description of the model in a config.json.

    Fields that the class in transformers ignores are ignored.
    """
    if architecture is not None:
        hf_config = hf_config.with_values(architectures=[architecture])
    try:
        checkpoint = _read(hf_config, formats, relatives or {})
        if strict and (ignored := checkpoint.hf_config.ignored):
            raise ConfigError(
                f"{_listed(ignored)}: not known for model_type "
                f"{hf_config.values['model_type']!r}, and strict is true: remove it from the file, "
                "or load without strict"
            )
        return checkpoint
    except ConfigError as error:
        message = str(error)
        if not message.startswith(str(hf_config.path)):
            message = f"{hf_config.path}: {message}"
        if len(message) > _MAX_MESSAGE:  # a field may contain a string of any length
            message = f"{message[:_MAX_MESSAGE]} ..."
        raise ConfigError(message) from error


def warn_about_ignored_fields(hf_config: HFConfig) -> None:
    """Warns in one line about the fields that `read_checkpoint` ignored."""
    ignored = hf_config.ignored
    model_type = hf_config.values.get("model_type")
    if not ignored:
        return
    message = (
        f"{hf_config.path}: fields that transformers does not know for model_type {model_type!r} "
        f"are ignored, as in transformers: {_listed(ignored)}"
    )
    readers = {
        name: HONOURED_ELSEWHERE[leaf]
        for name in ignored
        if (leaf := name.rpartition(".")[2]) in HONOURED_ELSEWHERE
    }
    if readers:
        listed = "; ".join(f"{name}: {what}" for name, what in readers.items())
        message += f". ATTENTION: other programs compute something else from this file: {listed}"
    warn_once(message)


def _listed(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {shortened(value)}" for name, value in fields.items())


def _read(hf_config: HFConfig, formats: Formats, relatives: Mapping[str, str]) -> HFCheckpoint:
    kind = hf_config.take("model_type", None)
    if not isinstance(kind, str) or kind not in formats:
        raise ConfigError(f"{hf_config.path}: {_unknown_message(kind, formats, relatives)}")
    model_format = formats[kind].bound(hf_config, formats)
    hf_config.check_depth()
    hf_config = completed(_dequantised(hf_config), model_format)
    architecture = _architecture(hf_config, model_format)
    try:
        config = read_config(hf_config, model_format, architecture)
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # For example, a list where the field expects a number.
        raise ConfigError(f"{hf_config.path}: {hf_config.last} cannot be used: {error}") from error
    return HFCheckpoint(model_format, architecture, hf_config, config)


def _unknown_message(kind: Any, formats: Formats, relatives: Mapping[str, str]) -> str:
    """Explains why a `model_type` cannot be read, and names similar ones."""
    listed = 'the page "Parity with transformers" of the documentation lists the supported ones'
    if not isinstance(kind, str):
        return f"model_type = {shortened(kind)}: must be the name of a system; {listed}"
    spelled = {_normalized(name): name for name in formats}
    if (meant := spelled.get(_normalized(kind))) is not None:
        return f"model_type = {kind!r}: must be {meant!r}, as transformers spells it"
    like = f" ({relatives[kind]})" if kind in relatives else ""
    return f"model_type = {shortened(kind)} is not supported yet{like}; {listed}"


def _normalized(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _dequantised(hf_config: HFConfig) -> HFConfig:
    """Removes a quantisation that is read as bfloat16 from the config; refuses any other."""
    for name in ("quantization_config", "quantization"):  # MLX writes the second
        if quantised := hf_config.values.get(name):
            method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
            if method == "mxfp4":
                return hf_config.without(name)  # `Mxfp4Tensors` reads it as bfloat16
            raise ConfigError(
                f"{hf_config.path}: {name}: the weights are quantised ({method or quantised!r}) "
                "and cannot be read: fetch the model in bfloat16 or float32"
            )
    return hf_config


def check_sizes(checkpoint: HFCheckpoint, files: Tensors) -> None:
    """Refuses a model that is far larger than its files, before its arrays are traced."""
    weights = sum(math.prod(tensor.shape) for tensor in files.tensors.values())

    def check(config: ModelConfig) -> ModelConfig:
        for name in _SIZES:
            size = getattr(config, name, None) or 0
            if size > max(weights, _ORDINARY_SIZE):
                raise ConfigError(
                    f"{checkpoint.hf_config.path}: {name} = {size}, but all tensors in "
                    f"{files.folder} together have only {weights:,} values"
                )
        return config

    checkpoint.config.each_part(check)


def _architecture(hf_config: HFConfig, model_format: ModelFormat) -> Architecture:
    """Returns the class that config.json names, or the default class."""
    named = hf_config.take("architectures", None) or [model_format.architectures[0].name]
    if not isinstance(named, list):
        raise ConfigError(
            f"{hf_config.path}: architectures = {named!r}: must be a list of one name"
        )
    architecture = model_format.architecture(str(named[0]))
    if architecture is not None:
        _check_fields(hf_config, model_format, architecture)
        return architecture
    own_code = hf_config.values.get("auto_map")
    if isinstance(own_code, dict) and any(
        str(x).endswith(f".{named[0]}") for x in own_code.values()
    ):
        raise ConfigError(
            f"{hf_config.path}: architectures = {named}: is custom code (auto_map), which is never "
            "run: must be a class of transformers"
        )
    known = [architecture.name for architecture in model_format.architectures]
    hint = did_you_mean(named[0], known)
    raise ConfigError(
        f"{hf_config.path}: architectures = {named} is not known for model_type "
        f"{model_format.model_type!r}: must be one of {', '.join(known)}{hint}; architecture (in "
        "load, or --architecture) chooses one"
    )


def _check_fields(
    hf_config: HFConfig, model_format: ModelFormat, architecture: Architecture
) -> None:
    """Refuses fields that contradict the class: `BertForMaskedLM` with `is_decoder` true."""
    fits = model_format.classes(hf_config.values)
    if architecture in fits:
        return
    for other in model_format.architectures:
        for name in other.fields:
            given = hf_config.take(name, False)
            wanted = architecture.fields.get(name, False)
            if given != wanted:
                which = f", or architectures = {[fits[0].name]}" if fits else ""
                raise ConfigError(
                    f"{hf_config.path}: {name} = {given!r}, but architectures = "
                    f"{[architecture.name]}: must be {wanted!r} for this class{which}"
                )
