"""GPT-J: attention and feed-forward side by side, interleaved partial rotation."""

from jaxformer.functional.positional_schemes import RoPE
from jaxformer.nn import Parallel
from jaxformer.zoo.gpt import gpt
from jaxformer.zoo.system import System

SYSTEMS = (
    System(
        "gpt-j-6b",
        "gptj.py:6b",
        gpt(
            28,
            4096,
            16,
            vocab_size=50400,
            position=RoPE(theta=10_000.0, fraction=0.25, layout="interleaved"),
            residual=Parallel(shared_norm=True),
            attention_bias=False,
            attention_output_bias=False,
            tie_embeddings=False,
            head_bias=True,
        ),
        "6,053,381,344",
        "Wang and Komatsuzaki, 2021, https://github.com/kingoflolz/mesh-transformer-jax",
        "norms and output biases in each of eight shards",
    ),
)
