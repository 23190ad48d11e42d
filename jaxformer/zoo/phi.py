"""Phi-1.5 and Phi-2: GPT-J's arrangement with 32 channels of each head rotated."""

from jaxformer.functional.positional_schemes import RoPE
from jaxformer.models import DecoderConfig
from jaxformer.nn import Parallel
from jaxformer.zoo.gpt import gpt
from jaxformer.zoo.system import System


def phi(num_layers: int, model_dim: int, num_heads: int) -> DecoderConfig:
    """The architecture in any size."""
    return gpt(
        num_layers,
        model_dim,
        num_heads,
        vocab_size=51200,
        position=RoPE(theta=10_000.0, fraction=32 * num_heads / model_dim),
        residual=Parallel(shared_norm=True),
        tie_embeddings=False,
        head_bias=True,
    )


SYSTEMS = (
    System(
        "phi-1.5",
        "phi.py:1.5",
        phi(24, 2048, 32),
        "1.3B",
        "Li et al., 2023, https://arxiv.org/abs/2309.05463",
        "one of the two tables over the vocabulary",
    ),
    System(
        "phi-2",
        "phi.py:2",
        phi(32, 2560, 32),
        "2.7B",
        "Javaheripi and Bubeck, 2023, Phi-2: The surprising power of small language models",
    ),
)
