"""ESM-2 and ESM-1b: BERT over the residues of proteins, with norms before the sublayers."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positions.rope import NoScaling
from jaxformer.functional.positions.rope_scaling import GivenFrequencies
from jaxformer.functional.positions.schemes import Learned, RoPE
from jaxformer.hub.fields import Computed, ConfigMap, Expect, NormEps, Number, Value, numbers
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, CountedByIds, ModelFormat
from jaxformer.hub.tasks.classes import (
    MaskedLMTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.weights.layouts import Constant
from jaxformer.hub.weights.tensors import Tensors
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import EncoderConfig, MaskedLanguageModel
from jaxformer.models.protein import TokenDropout
from jaxformer.nn import DotProductAttention, PreNorm, TokenEmbeddings
from jaxformer.zoo.common.basics import BASE_SIZES, NUMBERS, sized
from jaxformer.zoo.common.bert_like import (
    LABELS,
    LM_HEAD,
    NO_POOLER,
    ROBERTA_POSITIONS,
    body,
    with_classifier,
)
from jaxformer.zoo.system import System

_SOURCE = "Lin et al., 2022, table S1, https://doi.org/10.1101/2022.07.20.500902"
_esm = partial(
    EncoderConfig,
    residual=PreNorm(),
    embeddings=TokenEmbeddings(dropout=0.0, zero_padding=True),
    contact_head=True,
)


def _esm2(num_layers: int, model_dim: int, num_heads: int) -> EncoderConfig:
    """ESM-2 in any size."""
    return sized(
        _esm,
        num_layers,
        model_dim,
        num_heads,
        vocab_size=33,
        position=RoPE(theta=10_000.0),
        norm=LayerNorm(eps=1e-5),
        embeddings=TokenEmbeddings(dropout=0.0, zero_padding=True, padding_id=1),
        token_dropout=TokenDropout(mask_id=32),
        dropout=0.0,
        self_attention=DotProductAttention(bias=True, output_bias=True),
        heads=(MaskedLanguageModel(),),
    )


SYSTEMS = (
    System("esm2-8m", _esm2(6, 320, 20), "8M", _SOURCE),
    System("esm2-150m", _esm2(30, 640, 20), "150M", _SOURCE),
    System("esm2-650m", _esm2(33, 1280, 20), "650M", _SOURCE),
    System("esm2-3b", _esm2(36, 2560, 40), "3B", _SOURCE),
    System("esm2-15b", _esm2(48, 5120, 40), "15B", _SOURCE),
)


# Config -----------------------------------------------------------------------------------------


def _read_positions(hf_config: HFConfig) -> dict[str, Any]:
    kinds = {"absolute": False, "rotary": True}
    if not hf_config.choose("position_embedding_type", kinds, "absolute"):
        return ROBERTA_POSITIONS.read(hf_config)
    return {"position": RoPE(theta=float(hf_config.number("rope_theta", 10_000.0)))}


def _write_positions(config: EncoderConfig) -> dict[str, Any]:
    position = config.position
    if isinstance(position, Learned):
        return {"position_embedding_type": "absolute", **ROBERTA_POSITIONS.write(config)}
    plain = replace(position, scaling=NoScaling()) if isinstance(position, RoPE) else None
    known = plain and isinstance(position.scaling, NoScaling | GivenFrequencies)
    if not known or plain != RoPE(theta=plain.theta):
        raise ConfigError(
            f"model.position = {position}: model_type 'esm' has RoPE(theta) and Learned positions"
        )
    return {"position_embedding_type": "rotary", "rope_theta": position.theta}


def _read_embeddings(hf_config: HFConfig) -> dict[str, Any]:
    norm = LayerNorm(hf_config.number("layer_norm_eps", 1e-12))
    dropped = hf_config.take("token_dropout", False)
    return {
        "embeddings.norm": norm if hf_config.take("emb_layer_norm_before", None) else None,
        "token_dropout": TokenDropout(hf_config.number("mask_token_id")) if dropped else None,
        "embeddings.padding_id": hf_config.number("pad_token_id"),
    }


def _write_embeddings(config: EncoderConfig) -> dict[str, Any]:
    own = config.token_dropout
    return {
        "emb_layer_norm_before": config.embeddings.norm is not None,
        "token_dropout": own is not None,
        **({} if own is None else {"mask_token_id": own.mask_id}),
    }


_FIELDS = (
    *(Expect(name, False) for name in ("add_cross_attention", "is_decoder", "is_folding_model")),
    *numbers(NUMBERS),
    NormEps(default=1e-12),
    Value("tie_embeddings", "tie_word_embeddings", True),
    Number("dropout", "hidden_dropout_prob", 0.1),
    Number("self_attention.dropout", "attention_probs_dropout_prob", 0.1),
    Computed(_read_positions, _write_positions),
    Computed(_read_embeddings, _write_embeddings),
)


# Weights ----------------------------------------------------------------------------------------

_FREQUENCIES = "rotary_embeddings.inv_freq"


def _frequencies(config: EncoderConfig) -> np.ndarray:
    scheme = config.position
    return scheme.scaling.frequencies(scheme.theta, scheme.rotary_dim(config.head_width), 0)[0]


def _fitted(config: EncoderConfig, files: Tensors) -> EncoderConfig:
    """Takes the frequencies from the file, as transformers does."""
    names = sorted(name for name in files.tensors if name.endswith(_FREQUENCIES))
    if not names or not isinstance(config.position, RoPE):
        return config
    found = np.asarray(files.read(names[0]), np.float32)
    if np.array_equal(found, _frequencies(config)):
        return config
    scaling = GivenFrequencies(tuple(found.reshape(-1).tolist()))
    return replace(config, position=replace(config.position, scaling=scaling))


_NORMS = {"norms.0": "attention.LayerNorm", "norms.1": "LayerNorm"}
_NAMES = {
    **body("esm", own=_NORMS),
    "transformer.inputs.embedding_norm": "esm.embeddings.layer_norm",
    "transformer.final_norm": "esm.encoder.emb_layer_norm_after",
    "contact_head.regression": "esm.contact_head.regression",
    **LABELS,
    **LM_HEAD,
}


def _weight_map(config: EncoderConfig) -> WeightMap:
    names = with_classifier(_NAMES, config)
    if not isinstance(config.position, RoPE):
        return WeightMap(names)
    table = Constant(_frequencies(config).shape, partial(_frequencies, config))
    return WeightMap(names, constants={f"esm.{_FREQUENCIES}": table})


@dataclass(frozen=True)
class _CountedIfLearned(CountedByIds):
    """Counts the tokens that are not padding if positions are learned, and all tokens with RoPE."""

    def applies(self, config):
        return isinstance(config.position, Learned)


FORMATS = (
    ModelFormat(
        model_type="esm",
        config_map=ConfigMap(_esm, _FIELDS),
        weight_map=_weight_map,
        architectures=(
            Architecture("EsmForMaskedLM", MaskedLMTask("gelu"), NO_POOLER),
            Architecture(
                "EsmForSequenceClassification", SequenceClassificationTask(), {"pooler": "tanh"}
            ),
            Architecture("EsmForTokenClassification", TokenClassificationTask(), NO_POOLER),
            Architecture("EsmModel", Task(), {"pooler": "tanh"}),
        ),
        prefix="esm.",
        positions=_CountedIfLearned(),
        # Files of ESM-2 have a table of positions that no model reads.
        buffers=("*.position_ids", "*embeddings.position_embeddings.weight"),
        aliases={
            r"LayerNorm\.gamma$": "LayerNorm.weight",
            r"LayerNorm\.beta$": "LayerNorm.bias",
            r"encoder\.layer\.[^.]+\.attention\.self\.rotary_embeddings": "rotary_embeddings",
        },
        copies={"lm_head.decoder.weight": "esm.embeddings.word_embeddings.weight"},
        # The nonlinearity is always GELU; the other two describe the positions of other models.
        harmless=(
            "esmfold_config",
            "hidden_act",
            "max_position_embeddings",
            "rope_theta",
            "vocab_list",
        ),
        fitted=_fitted,
        fitted_fields=("position",),
        defaults={
            **BASE_SIZES,
            "max_position_embeddings": 1026,
            "vocab_size": 33,
            "pad_token_id": 1,
        },
        # Transformers has no default for these, which are those of all published files.
        inherited=("vocab_size", "pad_token_id"),
    ),
)
