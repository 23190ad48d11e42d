"""ALBERT: one layer shared by the whole depth, a narrow embedding table."""

from jaxformer.models import Classification, EncoderConfig, MaskedLanguageModel
from jaxformer.zoo.bert import bert
from jaxformer.zoo.system import System

_SOURCE = "Lan et al., 2019, tables 1 and 2, https://arxiv.org/abs/1909.11942"


def albert(num_layers: int, model_dim: int, num_heads: int) -> EncoderConfig:
    """The architecture in any size, with the heads of its pre-training."""
    return bert(
        num_layers,
        model_dim,
        num_heads,
        vocab_size=30000,
        embedding_dim=128,
        layer_repeats=num_layers,
        activation="gelu_tanh",
        heads=(MaskedLanguageModel(), Classification(label="sentence_order")),
    )


SYSTEMS = (
    System("albert-base", "albert.py:base", albert(12, 768, 12), "12M", _SOURCE),
    System("albert-large", "albert.py:large", albert(24, 1024, 16), "18M", _SOURCE),
    System("albert-xlarge", "albert.py:xlarge", albert(24, 2048, 16), "60M", _SOURCE),
    System(
        "albert-xxlarge",
        "albert.py:xxlarge",
        albert(12, 4096, 64),
        "223M",
        "the released checkpoint of version 2; the paper's table 1 has 235M for the same sizes and "
        f"does not say what it counts; {_SOURCE}",
    ),
)
