"""One small model of each family, and of what else tests of all of them should see."""

import numpy as np
import pytest
from tiny_models import tiny, tiny_composite, tiny_encoder, tiny_encoder_decoder, tiny_vision

from jaxformer.functional import (
    DistanceEmbedding,
    LayerNorm,
    Learned,
    NoPosition,
    Sinusoidal,
    Sinusoidal2D,
)
from jaxformer.models import (
    Classification,
    LanguageModel,
    MaskedLanguageModel,
    Regression,
    Span,
    TokenClassification,
)
from jaxformer.nn import ConvolutionBlock, DisentangledAttention, PostNorm, VocabularyLogits

EVERYTHING = {
    "self_attention.bias": True,
    "self_attention.output_bias": True,
    "feed_forward.bias": True,
    "embeddings.norm": LayerNorm(),
}
HEADS = (
    MaskedLanguageModel(),
    TokenClassification(num_labels=31),
    Span(),
    Regression(label="rating"),
    Classification(num_labels=3, pooling="last", bias=False),
)
FAMILIES = {
    "decoder": tiny(heads=(LanguageModel(), Classification(num_labels=3, pooling="last"))),
    "encoder": tiny_encoder(heads=HEADS, **{"embeddings.task_types": 2}),
    "shared encoder": tiny_encoder(
        num_layers=4, layer_repeats=2, pooler=None, **{"embeddings.dim": 10}
    ),
    "disentangled": tiny_encoder(
        position=NoPosition(),
        relative_position=DistanceEmbedding(9, 4, norm=LayerNorm()),
        self_attention=DisentangledAttention(),
        first_block=ConvolutionBlock(),
        windows=(None, None),
    ),
    "encoder-decoder": tiny_encoder_decoder(
        num_layers=2,
        num_decoder_layers=1,
        encoder_heads=4,
        encoder_mlp_dim=10,
        tie_embeddings=False,
        share_embeddings=False,
    ),
    "2017": tiny_encoder_decoder(
        position=Sinusoidal(),
        decoder_position=Learned(max_length=9, offset=2),
        residual=PostNorm(),
        logits=VocabularyLogits(bias=True),
        **EVERYTHING,
    ),
    "vision": tiny_vision(),
    "vision of patches alone": tiny_vision(
        class_token=False,
        position=Sinusoidal2D((2, 4), theta=100.0, prefix=0),
        heads=(Classification(num_labels=3, pooling="mean"),),
    ),
    "bert2gpt2": tiny_composite(
        tiny_encoder(pooler=None, num_layers=1),
        **{"num_layers": 2, "self_attention.scale_by_depth": True},
    ),
    "captions": tiny_composite(tiny_vision()),
}
each_family = pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())


# No softmax sees these: what they have for a gradient is the rounding of that of the other.
UNSEEN = {"key.bias": "query.bias", "span.output.bias": "span.output.kernel"}


def size_of_gradient(gradients: dict, name: str) -> float:
    """The largest entry of a parameter's gradient, with which its errors are compared."""
    for unseen, other in UNSEEN.items():
        name = name.replace(unseen, other)
    return np.abs(gradients[name]).max()


def assert_gradients_close(actual: dict, expected: dict, tolerance: float = 2e-5):
    """Equal gradients by their names, each within the tolerance times its largest entry."""
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        limit = tolerance * size_of_gradient(expected, name)
        np.testing.assert_allclose(actual[name], gradient, rtol=0, atol=limit, err_msg=name)
