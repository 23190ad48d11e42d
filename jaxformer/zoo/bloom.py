"""BLOOM: GPT-2 with ALiBi and a norm after the embedding."""

from functools import partial

from jaxformer.functional.positions.schemes import ALiBi
from jaxformer.hub.fields import ConfigMap, Expect, NormEps, Number, Switch
from jaxformer.hub.model_format import CountedByMask, ModelFormat
from jaxformer.hub.weights.layouts import PerKeyHead
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.nn import PreNorm, StreamNorm, TokenEmbeddings
from jaxformer.zoo.common.basics import fused_attention
from jaxformer.zoo.common.decoders import classes, decoder_names
from jaxformer.zoo.common.gpt_like import TIED, gpt

# Feed-forward layers are always four times as wide as the model.
_FIELDS = (
    Switch(
        "residual",
        "apply_residual_connection_post_layernorm",
        False,
        on=StreamNorm(),
        off=PreNorm(),
    ),
    Expect("slow_but_exact", False),  # If it is set, transformers leaves out the biases.
    NormEps(theirs="layer_norm_epsilon", also=("embeddings.norm",)),
    Number("num_layers", "n_layer"),
    Number("model_dim", "hidden_size"),
    Number("num_heads", "n_head"),
    Number("vocab_size", "vocab_size"),
    Number("dropout", "hidden_dropout"),
    Number("self_attention.dropout", "attention_dropout"),
    TIED,
)
BLOCK = {
    "norms.0": "input_layernorm",
    "sublayers.0.attention.output": "self_attention.dense",
    "norms.1": "post_attention_layernorm",
    "sublayers.1.up": "mlp.dense_h_to_4h",
    "sublayers.1.down": "mlp.dense_4h_to_h",
}
QUERY_KEY_VALUE = fused_attention("transformer.h.{}.self_attention.query_key_value", PerKeyHead())


def names(parts: dict[str, str]) -> dict[str, str]:
    """Returns the names of the modules of a model with these names in its blocks."""
    embedding = "transformer.word_embeddings"
    return {
        **decoder_names(embedding, "transformer.h.{}", parts, "transformer.ln_f"),
        "transformer.inputs.embedding_norm": f"{embedding}_layernorm",
    }


FORMATS = (
    ModelFormat(
        model_type="bloom",
        config_map=ConfigMap(
            partial(gpt, position=ALiBi(), embeddings=TokenEmbeddings(dropout=0.0)), _FIELDS
        ),
        weight_map=lambda _: WeightMap(names(BLOCK), fused=(QUERY_KEY_VALUE,)),
        architectures=classes("Bloom"),
        prefix="transformer.",
        positions=CountedByMask(padding=0),
        copies={"lm_head.weight": "transformer.word_embeddings.weight"},
        # How the training program fused and ordered its kernels.
        harmless=(
            "attention_softmax_in_fp32",
            "bias_dropout_fusion",
            "masked_softmax_fusion",
            "offset_alibi",
            "seq_length",
            "skip_bias_add*",
        ),
        defaults={
            "vocab_size": 250880,
            "hidden_size": 64,
            "n_layer": 2,
            "n_head": 8,
            "layer_norm_epsilon": 1e-5,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
        },
        synonyms={
            "n_embed": "hidden_size",
            "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        },
    ),
)
