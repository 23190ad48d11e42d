"""Every positional scheme, and arrays for it to work on."""

import jax

from jaxformer.functional import (
    ALiBi,
    Binary,
    DynamicNTK,
    GivenFrequencies,
    Integer,
    Learned,
    Learned2D,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    NoPosition,
    PatchBias,
    Position,
    RoPE,
    RoPE2D,
    Sinusoidal,
    Sinusoidal2D,
    T5Bias,
    YaRN,
)

LONGROPE = LongRoPE((1.0, 1.5), (2.0, 4.0), original_max_length=8, factor=4.0)
SCHEMES = [
    NoPosition(),
    Integer(max_length=32),
    Binary(num_bits=5),
    Sinusoidal(),
    Sinusoidal(layout="half"),
    Sinusoidal2D(grid=(5, 7)),
    Learned(max_length=32),
    Learned2D(grid=(5, 7)),
    RoPE(),
    RoPE(theta=5e5, fraction=0.5, layout="interleaved", scaling=LinearScaling(2.0)),
    RoPE(scaling=DynamicNTK(2.0, 8)),
    RoPE(scaling=YaRN(4.0, 16)),
    RoPE(scaling=Llama3Scaling(8.0, 1.0, 4.0, 16)),
    RoPE(fraction=0.5, scaling=LONGROPE),
    RoPE(scaling=GivenFrequencies((1.0, 0.5, 0.25, 0.0))),
    RoPE2D(grid=(5, 7), prefix=2),
    ALiBi(),
    T5Bias(bidirectional=True),
    T5Bias(num_buckets=8, max_distance=20, bidirectional=False),
    PatchBias(grid=(5, 7)),
    PatchBias(grid=(8, 4), prefix=0, shared=False),
]
IDS = [str(scheme)[:40] for scheme in SCHEMES]
B, T, S, N, K, H, D = 4, 6, 7, 4, 2, 8, 16


def arrays():
    keys = jax.random.split(jax.random.key(0), 5)
    return {
        "x": jax.random.normal(keys[0], (B, T, D)),
        "query": jax.random.normal(keys[1], (B, T, N, H)),
        "key": jax.random.normal(keys[2], (B, S, K, H)),
        "query_positions": jax.random.randint(keys[3], (B, T), 0, 32),
        "key_positions": jax.random.randint(keys[4], (B, S), 0, 32),
    }


def table_of(scheme: Position) -> jax.Array | None:
    declared = scheme.table(model_dim=D, num_heads=N)
    if declared is None:
        return None
    shape, axes = declared
    assert len(shape) == len(axes)
    return jax.random.normal(jax.random.key(9), shape)


def outputs(scheme: Position, table, x, query, key, query_positions, key_positions):
    """Everything a scheme does, as one differentiable function."""
    bias = scheme.bias(query_positions, key_positions, num_heads=N, table=table)
    return (
        scheme.embed(x, query_positions, table),
        scheme.rotate(query, key, query_positions, key_positions),
        None if bias is None else bias.values(),
    )
