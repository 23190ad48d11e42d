"""Pythia: GPT-NeoX in eight sizes; a quarter of each head rotates."""

from jaxformer.functional.positional_schemes import RoPE
from jaxformer.models import DecoderConfig
from jaxformer.nn import Parallel
from jaxformer.zoo.gpt import gpt
from jaxformer.zoo.system import System

_SOURCE = "Biderman et al., 2023, https://arxiv.org/abs/2304.01373"


def pythia(
    num_layers: int, model_dim: int, num_heads: int, vocab_size: int = 50304
) -> DecoderConfig:
    """The architecture in any size; the vocabulary is padded for the mesh it was trained on."""
    return gpt(
        num_layers,
        model_dim,
        num_heads,
        vocab_size=vocab_size,
        position=RoPE(theta=10_000.0, fraction=0.25),
        residual=Parallel(shared_norm=False),
        activation="gelu",
        tie_embeddings=False,
    )


SYSTEMS = (
    System("pythia-70m", "pythia.py:70m", pythia(6, 512, 8), "70,426,624", _SOURCE),
    System("pythia-160m", "pythia.py:160m", pythia(12, 768, 12), "162,322,944", _SOURCE),
    System("pythia-410m", "pythia.py:410m", pythia(24, 1024, 16), "405,334,016", _SOURCE),
    System("pythia-1b", "pythia.py:1b", pythia(16, 2048, 8), "1,011,781,632", _SOURCE),
    System("pythia-1.4b", "pythia.py:1.4b", pythia(24, 2048, 16), "1,414,647,808", _SOURCE),
    System("pythia-2.8b", "pythia.py:2.8b", pythia(32, 2560, 32), "2,775,208,960", _SOURCE),
    System("pythia-6.9b", "pythia.py:6.9b", pythia(32, 4096, 32, 50432), "6,857,302,016", _SOURCE),
    System("pythia-12b", "pythia.py:12b", pythia(36, 5120, 40, 50688), "11,846,072,320", _SOURCE),
)
