"""What a folder of transformers' holds: which system, which class, which configuration."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.hub.fields import spelt_out
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks import Task
from jaxformer.hub.weights.tensors import TensorFiles
from jaxformer.io.serialization import diff
from jaxformer.models.model import ModelConfig

# What a configuration says of how something is computed or trained, and not of what.
_OURS_ALONE = frozenset({
    "attention", "attention_dropout", "compute_dtype", "depth_scaled_init", "dropout",
    "embedding_dropout", "heads", "init_std", "padding_id", "remat", "scan_layers",
})  # fmt: skip

_MOST_LAYERS = 2_000
_DEEPEST = 20
_LONGEST = 1500
_ORDINARY_SIZE = 10**6
_SIZES = (
    "vocab_size", "model_dim", "mlp_dim", "num_heads", "num_kv_heads", "head_dim", "embedding_dim"
)  # fmt: skip


@dataclass(frozen=True)
class HFCheckpoint:
    """A model as transformers describes it, and as we do."""

    model_format: ModelFormat
    architecture: Architecture
    hf_config: HFConfig
    config: ModelConfig

    @property
    def prefix(self) -> str:
        """What comes before the names of the body; nothing in a model without heads."""
        if type(self.architecture.task) is Task:
            return ""
        own = self.architecture.prefix
        return self.model_format.prefix if own is None else own

    @property
    def repeats_inputs(self) -> bool:
        """Whether a decoder that is given nothing is asked to repeat the encoder's inputs."""
        return self.model_format.repeats_inputs or self.architecture.task.repeats_inputs


def read_checkpoint(hf_config: HFConfig, formats: Mapping[str, ModelFormat]) -> HFCheckpoint:
    """Understands a config.json.

    Args:
        hf_config: The configuration.
        formats: The known systems by `model_type`.

    Raises:
        ConfigError: The system or its class is unknown, or a field has a value that is not
            supported; names the nearest.
    """
    try:
        return _understood(hf_config, formats)
    except ConfigError as error:
        message = str(error)
        if not message.startswith(str(hf_config.path)):
            message = f"{hf_config.path}: {message}"
        if len(message) > _LONGEST:  # a field may hold a text of any length
            message = f"{message[:_LONGEST]} ..."
        raise ConfigError(message) from error


def _understood(hf_config: HFConfig, formats: Mapping[str, ModelFormat]) -> HFCheckpoint:
    kind = hf_config.take("model_type", None)
    if not isinstance(kind, str) or kind not in formats:
        raise ConfigError(
            f"{hf_config.path}: model_type = {kind!r} is not known: must be one of "
            f"{', '.join(sorted(formats))}{did_you_mean(kind, formats)}"
        )
    model_format = formats[kind]
    _check_numbers(hf_config)
    _check_not_quantised(hf_config)
    hf_config = _completed(hf_config, model_format)
    architecture = _architecture(hf_config, model_format)
    try:
        config = model_format.read(hf_config)
        heads = architecture.task.heads(hf_config)
        config = replace(config, heads=heads, **architecture.changes)
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A list, say, where a number belongs, which `read` did not expect.
        raise ConfigError(f"{hf_config.path}: {hf_config.last} cannot be used: {error}") from error
    hf_config.finish(model_format.harmless)
    return HFCheckpoint(model_format, architecture, hf_config, config)


def _check_numbers(hf_config: HFConfig) -> None:
    """Refuses numbers that no model has, before anything is as long as one of them says."""
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
        elif isinstance(value, int) and "layer" in name and value > _MOST_LAYERS:
            raise ConfigError(f"{where} = {value}: must be {_MOST_LAYERS:,} at most")


def _check_not_quantised(hf_config: HFConfig) -> None:
    quantised = hf_config.values.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise ConfigError(
            f"{hf_config.path}: quantization_config: the weights were quantised ({method!r}), "
            "which cannot be read: fetch the model in bfloat16 or float32"
        )


def check_sizes(checkpoint: HFCheckpoint, files: TensorFiles) -> None:
    """Checks that a model is not far larger than its files, before anything is as large as it.

    What is missing of an ordinary model is told tensor by tensor, later.

    Raises:
        ConfigError: A size is larger than all tensors together.
    """
    weights = sum(math.prod(tensor.shape) for tensor in files.tensors.values())
    for name in _SIZES:
        size = getattr(checkpoint.config, name, None) or 0
        if size > max(weights, _ORDINARY_SIZE):
            raise ConfigError(
                f"{checkpoint.hf_config.path}: {name} = {size}, but all tensors in {files.folder} "
                f"have no more than {weights:,} values together"
            )


def config_values(checkpoint: HFCheckpoint) -> dict[str, Any]:
    """What a config.json says of a model: in its own file's words, while these are still true.

    Two spellings of one thing may differ in rounding: "gelu_new" and "gelu_pytorch_tanh".
    """
    model_format, values = checkpoint.model_format, checkpoint.hf_config.values
    written = values | model_format.write(checkpoint.config)
    same = spelt_out(model_format.read(HFConfig(values))) == spelt_out(
        model_format.read(HFConfig(written))
    )
    return values if same else written


def describe(
    config: ModelConfig, formats: Iterable[ModelFormat], extra: Mapping[str, Any] | None = None
) -> HFCheckpoint:
    """The config.json of a model that was made here.

    Args:
        config: The model.
        formats: Those that may be used; the first that can say all of it is.
        extra: Fields to add (token ids, names of labels).

    Raises:
        ConfigError: None can; names the fields of the one that comes nearest, and what it would
            make of them.
    """
    failures: list[tuple[int, str]] = []
    # What was imported goes back to where it came from.
    kind = (extra or {}).get("model_type")
    for model_format in sorted(formats, key=lambda model_format: model_format.model_type != kind):
        try:
            return _described(config, model_format, extra or {})
        except _Inexpressible as failure:
            failures.append((failure.count, str(failure)))
        except (ConfigError, AttributeError, KeyError, TypeError) as error:
            # Of another family altogether: its `write` does not find what it asks for.
            failures.append((1000, f"{model_format.model_type}: {error}"))
    raise ConfigError(f"no known system can say this model; the nearest: {min(failures)[1]}")


class _Inexpressible(Exception):
    """A format that makes another model of a configuration; `count` fields differ."""

    def __init__(self, message: str, count: int):
        super().__init__(message)
        self.count = count


def _described(
    config: ModelConfig, model_format: ModelFormat, extra: Mapping[str, Any]
) -> HFCheckpoint:
    padding_id = getattr(config, "padding_id", None)
    values = {
        **model_format.defaults,
        **({} if padding_id is None else {"pad_token_id": padding_id}),
        **extra,
        "model_type": model_format.model_type,
        **model_format.write(config),
    }
    hf_config = HFConfig(values)
    back = model_format.read(hf_config)
    architecture = _architecture_for(config, model_format, hf_config)
    back = replace(back, heads=config.heads, **architecture.changes)
    if type(back) is not type(config):
        raise _Inexpressible(f"{model_format.model_type} is another family", 1000)
    changed = {
        name: pair for name, pair in diff(spelt_out(config), spelt_out(back)).items()
        if name.split(".")[0] not in _OURS_ALONE
    }  # fmt: skip
    if changed:
        listed = "; ".join(f"{name} = {a!r} (it has {b!r})" for name, (a, b) in changed.items())
        message = f"model_type {model_format.model_type!r} cannot say {listed}"
        raise _Inexpressible(message, len(changed))
    if extra.get("model_type") == model_format.model_type:
        hf_config = _own_words(extra, hf_config, model_format)
    hf_config.values["architectures"] = [architecture.name]
    return HFCheckpoint(model_format, architecture, hf_config, config)


def _own_words(
    extra: Mapping[str, Any], hf_config: HFConfig, model_format: ModelFormat
) -> HFConfig:
    """The settings of the file that a model came from, while they still say the same."""
    try:
        original = _completed(HFConfig(extra), model_format)
        same = spelt_out(model_format.read(original)) == spelt_out(model_format.read(hf_config))
    except ConfigError:
        return hf_config
    return HFConfig(extra) if same else hf_config


def _completed(hf_config: HFConfig, model_format: ModelFormat) -> HFConfig:
    """The fields under the names by which `read` asks for them, with those that are left out."""
    given: dict[str, Any] = {}
    for spelling, value in hf_config.values.items():
        name = model_format.synonyms.get(spelling, spelling)
        if given.setdefault(name, value) != value:
            raise ConfigError(
                f"{hf_config.path}: {spelling} = {value!r} and {name} = {given[name]!r} are two "
                "names of one thing: they must agree"
            )
    return HFConfig({**model_format.defaults, **given}, hf_config.path)


def _architecture(hf_config: HFConfig, model_format: ModelFormat) -> Architecture:
    named = hf_config.take("architectures", None) or [model_format.architectures[0].name]
    if not isinstance(named, list):
        raise ConfigError(
            f"{hf_config.path}: architectures = {named!r}: must be a list of one name"
        )
    for architecture in model_format.architectures:
        # MPT was published with code of its own, which calls the class MPTForCausalLM.
        if architecture.name.lower() == str(named[0]).lower():
            return architecture
    known = [architecture.name for architecture in model_format.architectures]
    hint = did_you_mean(named[0], known)
    raise ConfigError(
        f"{hf_config.path}: architectures = {named} is not known for model_type "
        f"{model_format.model_type!r}: must be one of {', '.join(known)}{hint}"
    )


def _architecture_for(
    config: ModelConfig, model_format: ModelFormat, hf_config: HFConfig
) -> Architecture:
    """The class whose heads and changes are those of a configuration; the one that is named, if so.

    T5 and its encoder alone, say, have no heads either of them.
    """
    named = hf_config.values.get("architectures") or [None]
    for architecture in sorted(model_format.architectures, key=lambda each: each.name != named[0]):
        heads = architecture.task.heads(hf_config)
        as_changed = all(getattr(config, k) == v for k, v in architecture.changes.items())
        if as_changed and [_kind(h) for h in heads] == [_kind(h) for h in config.heads]:
            return architecture
    raise _Inexpressible(
        f"model_type {model_format.model_type!r} has no class with the heads {config.heads}; it "
        f"has {', '.join(architecture.name for architecture in model_format.architectures)}",
        500,
    )


def _kind(head: Any) -> tuple:
    options = (
        getattr(head, name, None) for name in ("pooling", "activation", "dense", "dense_bias")
    )
    return type(head), head.name, *options
