"""Composite models: an encoder of text, images or sound, and a decoder of another system.

Their config.json and their tensors are those of the two systems, below "encoder" and "decoder". So
the formats here name only the projection between the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.hub.checkpoint import HFCheckpoint, completed
from jaxformer.hub.fields import Computed, ConfigMap, Expect
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, Formats, ModelFormat, Part, start_token
from jaxformer.hub.tasks.classes import CausalLMTask, Seq2SeqLMTask, Task
from jaxformer.hub.weights.tensors import Tensors
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import CompositeConfig, EncoderConfig, Head, VisionConfig, WaveformConfig
from jaxformer.models.model import ModelConfig
from jaxformer.nn import DotProductCrossAttention, TransformerBlock
from jaxformer.zoo.common.cross_attention import keeps_cross_attention

_PARTS = ("encoder", "decoder")
_DECODES = {"is_decoder": True, "add_cross_attention": True}
"""The fields of a decoder with cross-attention."""
_READS = {EncoderConfig: "text", VisionConfig: "images", WaveformConfig: "sound"}
"""The type of an encoder -> its inputs."""
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


@dataclass(frozen=True)
class CompositeTask(Seq2SeqLMTask):
    """The decoder's token at each position, by the head of the decoder's own causal class."""

    own: tuple[Head, ...] = field(default=(), kw_only=True)
    """The heads of that class."""

    def heads(self, hf_config):
        return self.own or super().heads(hf_config)

    def decoder_mask(self, targets, inputs, hf_config):
        pad_id = hf_config.take("pad_token_id", None)
        made = "decoder_input_ids" not in inputs and "input_ids" in inputs
        if not made or pad_id is None:
            return None
        # The first token is the start token, which may have the padding id.
        first = jnp.arange(targets.shape[1])[None, :] == 0
        return ((targets != pad_id) | first).astype(int)


def _chosen_start_token(targets: jax.Array, hf_config: HFConfig) -> jax.Array:
    """The start token, then the targets; a model has no start token until one is chosen."""
    for name in ("decoder_start_token_id", "pad_token_id"):
        if hf_config.take(name, None) is None:
            raise ConfigError(
                f"{hf_config.path}: {name} = None: must be a token, with which the decoder's "
                "inputs are made; set it, or give decoder_input_ids"
            )
    return start_token(targets, hf_config)


def _part_values(hf_config: HFConfig, name: str, model_format: ModelFormat) -> HFConfig:
    """Returns the values of a part as its system reads them, without cross-attention."""
    values = dict(_given(hf_config, name))
    if name == "decoder" and values.pop("add_cross_attention", None) is not True:
        raise ConfigError(
            f"{hf_config.path}: decoder: add_cross_attention must be true: the decoder reads the "
            "outputs of the encoder"
        )
    own = hf_config.section(name, values)
    # Of BART's relatives, the causal class is only the decoder.
    chosen = own.values | {"architectures": [_class(model_format, name).name]}
    return completed(own.completed(chosen), model_format)


def _given(hf_config: HFConfig, name: str) -> Mapping[str, Any]:
    values = hf_config.take(name)
    if not isinstance(values, dict):
        raise ConfigError(f"{hf_config.path}: {name} = {values!r}: must be an object of fields")
    return values


def _part_format(hf_config: HFConfig, name: str, formats: Formats) -> ModelFormat:
    """Returns the format of a part's system."""
    known = {
        kind: each
        for kind, each in formats.items()
        if each.bind is None and (each.reads_encoder or name == "encoder")
    }
    kind = _given(hf_config, name).get("model_type")
    if kind not in known:
        what = "is not a decoder with cross-attention here" if kind in formats else "is not known"
        raise ConfigError(
            f"{hf_config.path}: {name}: model_type = {kind!r} {what}: must be one of "
            f"{', '.join(sorted(known))}{did_you_mean(kind, known)}"
        )
    return known[kind]


def _class(model_format: ModelFormat, name: str) -> Architecture:
    """The causal class of a system for a decoder, and the class without a head for an encoder."""
    decodes = name == "decoder"
    return next(
        each
        for each in model_format.architectures
        if (isinstance(each.task, CausalLMTask) if decodes else type(each.task) is Task)
    )


def _read(
    hf_config: HFConfig, parts: Mapping[str, Part], encoder: type[ModelConfig]
) -> dict[str, Any]:
    """Reads the configurations of both parts."""
    configs = {}
    for name, (model_format, architecture, _) in parts.items():
        values = _part_values(hf_config, name, model_format)
        config = model_format.config_map.read(values)
        if name == "encoder" and type(config) is not encoder:
            raise ConfigError(
                f"{values.path}: model_type = {model_format.model_type!r}: must be an encoder of "
                f"{_READS[encoder]}"
            )
        if name == "encoder" and config.position.any_grid:
            raise ConfigError(
                f"{values.path}: model_type = {model_format.model_type!r}: must be an encoder of "
                "images of one shape"
            )
        heads = architecture.task.heads(values)
        config = config.with_fields(heads=heads, **architecture.changes)
        values.finish((*model_format.harmless, "is_decoder"))
        configs[name] = config
    decoder = configs["decoder"]
    if keeps_cross_attention(decoder):
        decoder = replace(decoder, block=TransformerBlock())
    return configs | {"decoder": replace(decoder, cross_attention=DotProductCrossAttention())}


def _written(config: CompositeConfig, parts: Mapping[str, Part]) -> dict[str, Any]:
    """The fields of config.json: those given for each part, updated from our configuration."""
    found = {}
    for name, (model_format, _, hf_config) in parts.items():
        written = model_format.config_map.write(getattr(config, name))
        synonyms = model_format.synonyms
        kept = {k: v for k, v in hf_config.given.items() if synonyms.get(k, k) not in written}
        found[name] = kept | written | {"model_type": model_format.model_type}
    return found | {"decoder": found["decoder"] | _DECODES}


class _Names:
    """The names of a part's tensors in the file of the composite."""

    def __init__(self, name: str, part: Part):
        own = HFCheckpoint(*part, config=None)
        self.part = part.model_format
        self._name = name
        self._prefix = own.prefix

    def __call__(self, tensor: str) -> str:
        bare = tensor.removeprefix(self.part.prefix)
        return f"{self._name}.{tensor if bare == tensor else self._prefix + bare}"

    def pattern(self, pattern: str) -> str:
        """Returns a pattern of tensors or of our parameters."""
        return f"{self._name}.{pattern}"

    def expression(self, old: str) -> str:
        """A regular expression of an old name, which may be anchored."""
        return rf"(?<=^{self._name}\.){old[1:]}" if old.startswith("^") else old

    def weight_map(self, config: ModelConfig) -> WeightMap:
        """The names of the part with this configuration."""
        return self.part.weight_map(config).within(self._name, self)


def _weight_map(config: CompositeConfig, names: Mapping[str, _Names]) -> WeightMap:
    maps = (own.weight_map(getattr(config, name)) for name, own in names.items())
    return reduce(or_, maps, WeightMap({"projection": "enc_to_dec_proj"}))


def _fitted(
    config: CompositeConfig, files: Tensors, names: Mapping[str, _Names]
) -> CompositeConfig:
    """Returns the model without the encoder's pooler, which is never used, if the file lacks it."""
    pooler = names["encoder"].weight_map(config.encoder).names.get("encoder.pooler")
    if pooler is None or any(name.startswith(pooler) for name in files.tensors):
        return config
    return replace(config, encoder=replace(config.encoder, pooler=None))


def _bind(
    unbound: ModelFormat,
    hf_config: HFConfig,
    formats: Formats,
    config: ModelConfig | None,
    encoder: type[ModelConfig],
) -> ModelFormat:
    """The format of one model."""
    parts = {}
    for name in _PARTS:
        own = _part_format(hf_config, name, formats)
        parts[name] = Part(own, _class(own, name), _part_values(hf_config, name, own))
    names = {name: _Names(name, part) for name, part in parts.items()}
    every = [(names[name], part.model_format) for name, part in parts.items()]
    decoder = parts["decoder"]
    heads = decoder.architecture.task.heads(decoder.hf_config)
    architecture = replace(unbound.architectures[0], task=CompositeTask(own=heads))
    tokens = {name: decoder.hf_config.values.get(name) for name in _TOKENS}
    fields = Computed(partial(_read, parts=parts, encoder=encoder), partial(_written, parts=parts))
    return replace(
        unbound,
        parts=parts,
        config_map=ConfigMap(CompositeConfig, (Expect("tie_encoder_decoder", False), fields)),
        weight_map=partial(_weight_map, names=names),
        architectures=(architecture,),
        fitted=partial(_fitted, names=names),
        buffers=tuple(own.pattern(each) for own, part in every for each in part.buffers),
        aliases={own.expression(k): v for own, part in every for k, v in part.aliases.items()},
        copies={own(k): own(v) for own, part in every for k, v in part.copies.items()},
        defaults={"vocab_size": decoder.hf_config.values.get("vocab_size")}
        | {name: token for name, token in tokens.items() if token is not None},
    )


def _refuse(*_: Any) -> Any:
    """Raises ConfigError: only a bound format has the systems of both parts."""
    raise ConfigError("the tensors cannot be named without the systems of both parts")


def _format(model_type: str, name: str, encoder: type[ModelConfig]) -> ModelFormat:
    """Returns the format of composites whose encoder has a configuration of type `encoder`."""
    return ModelFormat(
        model_type=model_type,
        config_map=ConfigMap(CompositeConfig, (Computed(_refuse, _refuse),)),
        weight_map=_refuse,
        architectures=(Architecture(name, CompositeTask()),),
        shift=_chosen_start_token,
        harmless=("processor_class", "tie_word_embeddings", "vocab_size"),
        inherited=_TOKENS,
        bind=partial(_bind, encoder=encoder),
    )


FORMATS = (
    _format("encoder-decoder", "EncoderDecoderModel", EncoderConfig),
    _format("vision-encoder-decoder", "VisionEncoderDecoderModel", VisionConfig),
    _format("speech-encoder-decoder", "SpeechEncoderDecoderModel", WaveformConfig),
)
