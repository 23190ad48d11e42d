"""Finds the config.json that is equivalent to one of our models."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.families import family_of
from jaxformer.hub.fields import Computed, ConfigMap, resolved, write_padding_id
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, Formats, ModelFormat, Section, completed
from jaxformer.hub.tasks.classes import CausalLMTask, Task, task_of
from jaxformer.io.serialization import diff, summary
from jaxformer.models import Classification
from jaxformer.models.model import ModelConfig
from jaxformer.nn.attention import DotProductCrossAttention
from jaxformer.nn.block import BlockConfig
from jaxformer.nn.sublayer import SublayerConfig

# Fields that affect how a model is computed or trained, but not its outputs.
_ONLY_OURS = frozenset({
    "attention", "compute_dtype", "depth_scaled_init", "dropout", "embeddings.dropout",
    "embeddings.padding_id", "feed_forward.capacity", "feed_forward.losses", "heads", "init_std",
    "interpolate_positions", "logit_bias", "max_logit_scale", "remat", "scan_layers",
    "self_attention.dropout",
})  # fmt: skip
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def describe_model(
    config: ModelConfig, formats: Iterable[ModelFormat], extra: Mapping[str, Any]
) -> HFCheckpoint:
    """Returns the description of a model, which is not exportable without a known format."""
    try:
        return describe(config, formats, extra)
    except ConfigError as error:
        problem = str(error)

    def refuse(*_):  # called when the description is read or written
        raise ConfigError(
            f"{problem}; jaxformer export --custom-code writes models of our parts with their "
            "code, and --format stablehlo any model"
        )

    task = task_of(config.heads, family_of(config).language_model_task)
    architecture = Architecture("jaxformer", task)
    config_map = ConfigMap(refuse, (Computed(refuse, refuse),))
    model_format = ModelFormat("jaxformer", config_map, refuse, (architecture,))
    hf_config = HFConfig({"model_type": "jaxformer", **extra})
    return HFCheckpoint(model_format, architecture, hf_config, config)


def config_values(checkpoint: HFCheckpoint) -> dict[str, Any]:
    """Returns the values of a model's config.json, keeping those of its original file if still
    valid.

    Equivalent values may differ in rounding: "gelu_new" and "gelu_pytorch_tanh".
    """
    values = checkpoint.hf_config.values
    model_format = checkpoint.model_format
    written = HFConfig(
        _merged(values, model_format.config_map.write(checkpoint.config), model_format)
    )
    return _updated(checkpoint.hf_config, checkpoint.config, written, model_format).given


def describe(
    config: ModelConfig, formats: Iterable[ModelFormat], extra: Mapping[str, Any] | None = None
) -> HFCheckpoint:
    """Returns the description of a model in the first format that can express it.

    `extra` are further fields of config.json: token ids, label names.

    Raises:
        ConfigError: There is none; the message names the nearest format and the differing fields.
    """
    formats = {each.model_type: each for each in formats}
    extra, lacking = extra or {}, None
    try:
        extra = _with_parts(config, formats, extra)
    except ConfigError as error:
        # A part may lack a separate format if one format covers both parts (T5Gemma, Whisper).
        known = formats.items()
        formats = {kind: each for kind, each in known if each.bind is None or each.sections}
        lacking = error
    failures: list[tuple[int, str]] = []

    def rank(kind: str) -> tuple[bool, bool]:
        # The imported model's own format comes first, and decoders come last for an encoder.
        decodes = isinstance(formats[kind].architectures[0].task, CausalLMTask)
        return kind != extra.get("model_type"), decodes and not config.causal

    for kind in sorted(formats, key=rank):
        try:
            model_format = formats[kind].bound(HFConfig(extra), formats, config)
            return _described(config, model_format, extra)
        except _InexpressibleError as failure:
            failures.append((failure.count, str(failure)))
        except (ConfigError, AttributeError, KeyError, TypeError) as error:
            # The format belongs to another family, which lacks some fields, or refuses a value.
            own = kind == extra.get("model_type") and isinstance(error, ConfigError)
            failures.append((0 if own else 1000, f"{kind}: {error}"))
    if lacking is not None:
        raise lacking
    _check_parts(config)
    none = (0, f"none of the formats reads a {type(config).__name__}")
    _, nearest = min(failures, key=itemgetter(0), default=none)  # the first of equally near formats
    raise ConfigError(f"no known system can express this model; the nearest: {nearest}")


def _with_parts(config: ModelConfig, formats: Formats, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `extra` with the fields of the parts of a composite model."""
    found = dict(extra)
    if not config.is_encoder_decoder:
        return found
    for name, part in config.parts.items():
        if name not in found:
            alone, fitting = _standalone(part), formats.values()
            if alone is not part:
                fitting = [each for each in fitting if each.reads_encoder]
            values = describe(alone, fitting).hf_config.values
            found[name] = values | ({} if alone is part else {"add_cross_attention": True})
    return found


def _standalone(part: ModelConfig) -> ModelConfig:
    """Returns a part of a composite model as a separate model, without cross-attention."""
    if getattr(part, "cross_attention", None) is None:
        return part
    return replace(part, cross_attention=None, encoder_dim=None)


def _is_among(name: str, names: Collection[str], config: ModelConfig) -> bool:
    """Whether `names` contains a field of the model or of a part, or one that includes it."""
    first, _, rest = name.partition(".")
    own = rest if first in config.parts else name
    return own in names or own.partition(".")[0] in names


def _check_parts(config: ModelConfig) -> None:
    """Raises ConfigError unless sublayers and blocks have the default types that formats expect."""
    for part in config.parts.values():
        cross = getattr(part, "cross_attention", None)
        usual = cross is None or cross == DotProductCrossAttention()
        _check_parts(_standalone(part) if usual else part)
    for field in dataclasses.fields(config):
        part = getattr(config, field.name)
        differs = type(part) is not type(field.default)
        if isinstance(part, SublayerConfig | BlockConfig) and differs:
            raise ConfigError(
                f"no known system can express this model: model.{field.name} = {summary(part)}, "
                f"where they have {summary(field.default)}"
            )


class _InexpressibleError(Exception):
    """A format cannot express a configuration; `count` fields differ."""

    def __init__(self, message: str, count: int):
        super().__init__(message)
        self.count = count


def _described(
    config: ModelConfig, model_format: ModelFormat, extra: Mapping[str, Any]
) -> HFCheckpoint:
    own = extra if extra.get("model_type") == model_format.model_type else {}
    values = {
        **model_format.defaults,
        **write_padding_id(config),
        **extra,
        "model_type": model_format.model_type,
    }
    values = _merged(values, model_format.config_map.write(config), model_format)
    hf_config = HFConfig(values)
    back = model_format.config_map.read(hf_config)
    architecture = _architecture_for(config, model_format, hf_config)
    back = back.with_fields(heads=config.heads, **architecture.changes)
    if getattr(config, "pooler", "") is None and type(architecture.task) is Task:
        back = back.with_fields(pooler=None)  # missing from the files
    if type(back) is not type(config):
        raise _InexpressibleError(f"{model_format.model_type} belongs to another family", 1000)
    unsaid = _ONLY_OURS.union(model_format.fitted_fields)
    changed = {
        name: pair for name, pair in diff(resolved(config), resolved(back)).items()
        if not _is_among(name, unsaid, config)
    }  # fmt: skip
    if changed:
        listed = "; ".join(f"{name} = {a!r} (it has {b!r})" for name, (a, b) in changed.items())
        message = f"model_type {model_format.model_type!r} cannot express {listed}"
        raise _InexpressibleError(message, len(changed))
    named = None
    if own:
        hf_config = _updated(
            completed(HFConfig(own), model_format), config, hf_config, model_format
        )
        named = (extra.get("architectures") or [model_format.architectures[0].name])[0]
    hf_config.values["architectures"] = [architecture.name]
    if str(named).lower() != architecture.name.lower():
        hf_config.given["architectures"] = [architecture.name]
    return HFCheckpoint(model_format, architecture, hf_config, config)


def _updated(
    own: HFConfig, config: ModelConfig, written: HFConfig, model_format: ModelFormat
) -> HFConfig:
    """Returns the values of a model's original file, with outdated fields replaced.

    Returns `written`, all values in our spelling, if the file cannot express the changes.
    """
    config_map = model_format.config_map
    synonyms = model_format.synonyms
    try:
        before = config_map.write(config_map.read(own))
        now = config_map.write(config)
        changes = {
            name: value
            for name, value in now.items()
            if name not in before or before[name] != value
        }
        if not changes:
            return own
        kept = {k: v for k, v in own.given.items() if synonyms.get(k, k) not in changes}
        for part in model_format.sections.values():
            if part.section in changes:
                section = _changed_section(part, own, before[part.section], now[part.section])
                changes[part.section] = section
                kept.pop(part.older_section, None)
        updated = completed(HFConfig(kept | changes, own.path), model_format)
        if resolved(config_map.read(updated)) == resolved(config_map.read(written)):
            return updated
    except ConfigError:
        pass  # the file has an unsupported value, which the model no longer has
    return written


def _changed_section(
    part: Section, own: HFConfig, before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the section of a part, with outdated fields replaced."""
    changes = {name: value for name, value in now.items() if before.get(name) != value}
    synonyms = part.model_format.synonyms
    kept = part.section_of(own).values
    original = own.values.get(part.section) or {}
    for name in part.shared:  # stored at the top level
        kept.pop(name)
        kept |= {name: original[name]} if name in original else {}
    return {k: v for k, v in kept.items() if synonyms.get(k, k) not in changes} | changes


def _merged(
    values: Mapping[str, Any], written: Mapping[str, Any], model_format: ModelFormat
) -> dict[str, Any]:
    """Returns the values of a config.json updated with `written`; sections keep other fields."""
    merged = {**values, **written}
    for part in model_format.sections.values():
        tokens = {}
        if part.reads_text and part.section not in values:
            # A model that was not imported has one tokenizer, for the part that reads text.
            tokens = {name: values[name] for name in _TOKENS if name in values}
        merged[part.section] = tokens | (values.get(part.section) or {}) | written[part.section]
    return merged


def _architecture_for(
    config: ModelConfig, model_format: ModelFormat, hf_config: HFConfig
) -> Architecture:
    """Returns the class with the heads and changes of a configuration, preferably the file's."""
    # Several classes may have the same heads: T5Model and T5EncoderModel have none.
    named = hf_config.values.get("architectures") or [None]
    classes = model_format.classes(hf_config.values)
    for architecture in sorted(classes, key=lambda each: each.name != named[0]):
        heads = architecture.task.heads(hf_config)
        as_changed = all(getattr(config, k) == v for k, v in architecture.changes.items())
        if as_changed and [_kind(h) for h in heads] == [_kind(h) for h in config.heads]:
            return architecture
    raise _InexpressibleError(
        f"model_type {model_format.model_type!r} has no class with the heads {config.heads}; it "
        f"has {', '.join(architecture.name for architecture in model_format.architectures)}",
        500,
    )


def _kind(head: Any) -> tuple:
    options = (
        getattr(head, name, None) for name in ("pooling", "activation", "dense", "dense_bias")
    )
    kind = Classification if isinstance(head, Classification) else type(head)
    return kind, head.name, *options
