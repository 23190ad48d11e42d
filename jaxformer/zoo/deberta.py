"""DeBERTa, DeBERTa 2 and 3, and mDeBERTa: BERT with disentangled attention."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.base import NoPosition
from jaxformer.functional.positions.distances import DistanceEmbedding
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import (
    ACTIVATIONS,
    Computed,
    ConfigMap,
    Expect,
    Number,
    read_activation,
    write_activation,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, Formats, ModelFormat
from jaxformer.hub.tasks.classes import (
    MaskedLMTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.tasks.multiple_choice import MultipleChoiceTask
from jaxformer.hub.weights.layouts import Convolution, PerKeyHead
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import EncoderConfig, MaskedLanguageModel
from jaxformer.nn import TokenEmbeddings
from jaxformer.nn.convolution import ConvolutionBlock
from jaxformer.nn.disentangled import DisentangledAttention
from jaxformer.zoo.common.basics import BASE_SIZES, fused_attention, projections, their_sizes
from jaxformer.zoo.common.bert_like import (
    BIAS,
    BLOCK,
    FIELDS,
    HEADS,
    LABELS,
    NO_POOLER,
    bert,
    body,
    head_copies,
    named,
)
from jaxformer.zoo.system import System

_CARDS = "its card, https://huggingface.co/microsoft/"
_TABLE = "its table of backbones, https://github.com/microsoft/DeBERTa"
_BACKBONE = "without the table of tokens and the bias of their logits"


def _deberta(num_layers: int, model_dim: int, num_heads: int, **changes: Any) -> EncoderConfig:
    """Returns the first version, with a vector for each distance and separate projections."""
    norm = LayerNorm(eps=1e-7)
    fields = {
        "vocab_size": 50265,
        "position": NoPosition(),
        "relative_position": DistanceEmbedding(512),
        "self_attention": DisentangledAttention(key_bias=False),
        "norm": norm,
        "embeddings": TokenEmbeddings(norm=norm, zero_padding=True, padding_id=0),
        "pooler": None,
        "heads": (MaskedLanguageModel(),),
    }
    return bert(num_layers, model_dim, num_heads, **(fields | changes))


def _deberta_v2(
    num_layers: int, model_dim: int, num_heads: int, convolution: bool = False, **changes: Any
) -> EncoderConfig:
    """Returns later versions, with a normalised vector for each bucket and shared projections."""
    first = ConvolutionBlock(3, "gelu") if convolution else None
    fields = {
        "vocab_size": 128100,
        "relative_position": DistanceEmbedding(512, 256, norm=LayerNorm(eps=1e-7)),
        "self_attention": DisentangledAttention(share_projections=True),
        "first_block": first,
        "windows": (None,) * (num_layers if convolution else 1),
    }
    return _deberta(num_layers, model_dim, num_heads, **(fields | changes))


def _system(
    name: str, config: EncoderConfig, published: str, note: str = "", source: str = _CARDS
) -> System:
    source = f"{source}{name}" if source == _CARDS else source
    return System(name, config, published, source, note=note)


SYSTEMS = (
    _system("deberta-base", _deberta(12, 768, 12), "100M", source=_TABLE),
    _system("deberta-large", _deberta(24, 1024, 16), "350M", _BACKBONE, _TABLE),
    _system("deberta-xlarge", _deberta(48, 1024, 16), "750M"),
    _system("deberta-v2-xlarge", _deberta_v2(24, 1536, 24, convolution=True), "900M"),
    _system("deberta-v2-xxlarge", _deberta_v2(48, 1536, 24, convolution=True), "1.5B"),
    _system("deberta-v3-xsmall", _deberta_v2(12, 384, 6), "22M", _BACKBONE),
    _system("deberta-v3-small", _deberta_v2(6, 768, 12), "44M", _BACKBONE),
    _system("deberta-v3-base", _deberta_v2(12, 768, 12), "86M", _BACKBONE),
    _system("deberta-v3-large", _deberta_v2(24, 1024, 16), "304M", _BACKBONE),
    _system("mdeberta-v3-base", _deberta_v2(12, 768, 12, vocab_size=251000), "86M", _BACKBONE),
)

# Configurations -----------------------------------------------------------------------------------

_TERMS = ("c2p", "p2c")


def _read_attention(version: int, hf_config: HFConfig) -> dict[str, Any]:
    """Reads the terms of attention, "c2p|p2c", and their scale, which may be given without them."""
    given = hf_config.take("pos_att_type", None) or []
    words = [word.strip() for word in given.lower().split("|")] if given == str(given) else given
    if not set(words) <= {*_TERMS, "none", ""}:
        raise ConfigError(
            f"{hf_config.path}: pos_att_type = {given!r} is not supported: must have only "
            f"{', '.join(_TERMS)}"
        )
    width = hf_config.number("hidden_size") // hf_config.number("num_attention_heads")
    share = version > 1 and hf_config.take("share_att_key", False)
    which = [term in words for term in _TERMS]
    if not hf_config.take("relative_attention", False):
        which, share = [False, False], False
    terms = DisentangledAttention(*which, share, key_bias=version > 1)
    # The first version counts all terms, the others only the known ones.
    count = len(words) if version == 1 else len(set(words) & set(_TERMS))
    scale = (width * (1 + count)) ** -0.5
    usual = scale == terms.default_scale(width)
    return {"self_attention": terms if usual else replace(terms, scale=scale)}


def _write_attention(config: EncoderConfig) -> dict[str, Any]:
    attention = config.self_attention
    which = attention.content_to_position, attention.position_to_content
    words = [term for term, there in zip(_TERMS, which, strict=True) if there]
    relative = config.relative_position is not None
    if (scale := attention.scale) is not None:
        more = round(1 / (scale**2 * config.head_width)) - 1 - len(words)
        words += ["none"] * more if relative else _TERMS[:more]
    share = {"share_att_key": True} if attention.share_projections else {}
    return {"relative_attention": relative, "pos_att_type": words, **share}


def _read_positions(version: int, hf_config: HFConfig) -> dict[str, Any]:
    """Reads the positions of the embeddings, and the vectors for distances."""
    length = hf_config.number("max_position_embeddings", 512)
    learned = hf_config.take("position_biased_input", True)
    found: dict[str, Any] = {"position": Learned(length) if learned else NoPosition()}
    largest = hf_config.number("max_relative_positions", -1)
    buckets = hf_config.number("position_buckets", -1) if version > 1 else -1
    norms = str(hf_config.take("norm_rel_ebd", "none")) if version > 1 else "none"
    if hf_config.take("relative_attention", False):
        eps = hf_config.number("layer_norm_eps", 1e-7)
        normed = "layer_norm" in [word.strip() for word in norms.lower().split("|")]
        found["relative_position"] = DistanceEmbedding(
            largest if largest > 0 else length,
            buckets if buckets > 0 else None,
            norm=LayerNorm(eps=eps) if normed else None,
        )
    return found


def _write_positions(version: int, config: EncoderConfig) -> dict[str, Any]:
    position = config.position
    scheme = config.relative_position
    learned = position.max_length is not None
    values: dict[str, Any] = {"position_biased_input": learned}
    if learned:
        values["max_position_embeddings"] = position.max_length
    if scheme is not None:
        values["max_relative_positions"] = scheme.max_distance
    if scheme is not None and version > 1:
        values["position_buckets"] = scheme.num_buckets or -1
        values["norm_rel_ebd"] = "none" if scheme.norm is None else "layer_norm"
    return values


def _read_embedding(version: int, hf_config: HFConfig) -> dict[str, Any]:
    """Embeddings may be narrower than the model."""
    model_dim = hf_config.number("hidden_size")
    heads = hf_config.number("num_attention_heads")
    hf_config.expect("pooler_hidden_size", model_dim)
    if version > 1:
        hf_config.expect("attention_head_size", model_dim // heads)
    width = hf_config.number("embedding_size", model_dim)
    narrow = width != model_dim
    return {
        "embeddings.dim": width if narrow else None,
        "embeddings.project_before_norm": narrow,
    }


def _write_embedding(config: EncoderConfig) -> dict[str, Any]:
    width = config.embeddings.dim
    return {} if width is None else {"embedding_size": width}


_POOLERS = {name: ours for name, ours in ACTIVATIONS.items() if ours in ("gelu", "relu", "tanh")}


def _read_pooler(hf_config: HFConfig) -> dict[str, Any]:
    return {"pooler": hf_config.choose("pooler_hidden_act", _POOLERS, "gelu")}


def _write_pooler(config: EncoderConfig) -> dict[str, Any]:
    if config.pooler is None:
        return {}
    return {"pooler_hidden_act": write_activation(config.pooler)}


def _read_convolution(hf_config: HFConfig) -> dict[str, Any]:
    """Reads the convolution parallel to the first layer."""
    hf_config.expect("conv_groups", 1)
    size = hf_config.number("conv_kernel_size", 0)
    nonlinearity = read_activation(hf_config, "conv_act", "tanh")
    if size <= 0:
        return {}
    windows = (None,) * hf_config.number("num_hidden_layers")
    return {"first_block": ConvolutionBlock(size, nonlinearity), "windows": windows}


def _write_convolution(config: EncoderConfig) -> dict[str, Any]:
    first = config.first_block
    if first is None:
        return {}
    act = write_activation(first.activation)
    return {"conv_kernel_size": first.kernel_size, "conv_act": act}


def _read_tied(hf_config: HFConfig) -> dict[str, Any]:
    """The newer head over the vocabulary always uses the table of the embeddings."""
    tied = hf_config.take("tie_word_embeddings", True)
    return {"tie_embeddings": tied or not hf_config.take("legacy", True)}


_OWN = {"position_embedding_type", "add_cross_attention", "max_position_embeddings"}


def _fields(version: int) -> tuple:
    """The fields of config.json."""
    shared = [each for each in FIELDS if getattr(each, "theirs", None) not in _OWN]
    later = (
        Computed(_read_convolution, _write_convolution),
        Expect("talking_head", False),
        Expect("z_steps", 0, 1),
    )
    return (
        *shared,
        Number("embeddings.token_types", "type_vocab_size", 0),
        Computed(partial(_read_positions, version), partial(_write_positions, version)),
        Computed(partial(_read_attention, version), _write_attention),
        Computed(partial(_read_embedding, version), _write_embedding),
        Computed(_read_pooler, _write_pooler),
        Computed(_read_tied),
        *(later if version > 1 else later[1:]),
    )


# Tensors ------------------------------------------------------------------------------------------

_QKV = fused_attention("deberta.encoder.layer.{}.attention.self.in_proj", PerKeyHead())
_BODY = {
    **body("deberta"),
    "pooler": "pooler.dense",
    "transformer.inputs.relative_table": "deberta.encoder.rel_embeddings.weight",
    "transformer.inputs.relative_norm": "deberta.encoder.LayerNorm",
    "transformer.inputs.projection": "deberta.embeddings.embed_proj",
    # The discriminator of version 3, for which there is no class.
    "heads.replaced_tokens": "mask_predictions",
}
_NEWER_HEAD = {
    "heads.masked_language_model.dense": "lm_predictions.lm_head.dense",
    "heads.masked_language_model.norm": "lm_predictions.lm_head.LayerNorm",
    "heads.masked_language_model.bias": "lm_predictions.lm_head.bias",
}
_BLOCKS = {
    1: {
        "sublayers.0.attention.query.bias": "attention.self.q_bias",
        "sublayers.0.attention.value.bias": "attention.self.v_bias",
        "sublayers.0.position_key": "attention.self.pos_proj",
        "sublayers.0.position_query": "attention.self.pos_q_proj",
    },
    2: {
        **projections(
            "attention",
            "output.dense",
            parts=("self.query_proj", "self.key_proj", "self.value_proj"),
        ),
        "sublayers.0.position_key": "attention.self.pos_key_proj",
        "sublayers.0.position_query": "attention.self.pos_query_proj",
    },
}
_CONVOLUTION = {
    "transformer.stack.group.0.convolution": "deberta.encoder.conv.conv",
    "transformer.stack.group.0.convolution_norm": "deberta.encoder.conv.LayerNorm",
}


def _weight_map(version: int, newer_head: bool, config: EncoderConfig) -> WeightMap:
    names = _BODY | block("transformer", "deberta.encoder.layer.{}", BLOCK | _BLOCKS[version])
    names |= LABELS | {name: HEADS[name] for name in HEADS if "masked" in name}
    if version > 1:
        names |= _CONVOLUTION
    if newer_head:
        names |= _NEWER_HEAD
    whole = WeightMap(names) if newer_head else named(names, BIAS, config)
    if version > 1:
        return replace(whole, layouts={"*.convolution.kernel": Convolution()})
    return replace(whole, fused=(_QKV,))


def _bound(
    version: int,
    model_format: ModelFormat,
    hf_config: HFConfig,
    formats: Formats,
    config: EncoderConfig | None,
) -> ModelFormat:
    """Returns the format of a file whose head over the vocabulary has old or new names."""
    if hf_config.values.get("legacy", True):
        return model_format
    weight_map = partial(_weight_map, version, True)
    return replace(model_format, weight_map=weight_map, aliases={}, copies={})


# Format -------------------------------------------------------------------------------------------


def _architectures(name: str, *more: Architecture) -> tuple[Architecture, ...]:
    return (
        Architecture(f"{name}ForMaskedLM", MaskedLMTask(), NO_POOLER),
        Architecture(f"{name}ForSequenceClassification", SequenceClassificationTask()),
        *more,
        Architecture(f"{name}ForTokenClassification", TokenClassificationTask(), NO_POOLER),
        Architecture(f"{name}ForQuestionAnswering", QuestionAnsweringTask(), NO_POOLER),
        Architecture(f"{name}Model", Task(), NO_POOLER),
    )


def _format(
    model_type: str, version: int, architectures: tuple[Architecture, ...], sizes: Mapping[str, int]
) -> ModelFormat:
    build = partial(_deberta, relative_position=None)
    return ModelFormat(
        model_type=model_type,
        config_map=ConfigMap(build, _fields(version)),
        weight_map=partial(_weight_map, version, False),
        architectures=architectures,
        prefix="deberta.",
        bind=partial(_bound, version),
        # Some files have them even if config.json says that they are not used.
        buffers=(
            "*.position_ids",
            "*embeddings.position_embeddings.weight",
            "*encoder.LayerNorm.*",
        ),
        # The head in the authors' files, which config.json does not mention.
        aliases={
            r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.": r"cls.predictions.transform.\1.",
            r"^lm_predictions\.lm_head\.bias$": "cls.predictions.bias",
        },
        copies=head_copies("deberta"),
        defaults=sizes | {"layer_norm_eps": 1e-7, "pad_token_id": 0},
        harmless=("cls_dropout", "legacy", "padding_idx", "pooler_dropout", "pooler_hidden_act"),
    )


_BASE = BASE_SIZES | {"vocab_size": 50265}
_XLARGE = {
    "vocab_size": 128100,
    **their_sizes(24, 1536, 24, 6144),
}
_CHOICE = Architecture("DebertaV2ForMultipleChoice", MultipleChoiceTask())

FORMATS = (
    _format("deberta", 1, _architectures("Deberta"), _BASE),
    _format("deberta-v2", 2, _architectures("DebertaV2", _CHOICE), _XLARGE),
)
