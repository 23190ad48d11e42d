"""A table of positions that files contain and training keeps."""

from dataclasses import dataclass

import jax.numpy as jnp

from jaxformer.functional.positions.absolute import sinusoidal_code
from jaxformer.functional.positions.schemes import Learned, Sinusoidal


@dataclass(frozen=True)
class SinusoidalTable(Learned):
    """Adds sines, then cosines, from a table that checkpoints contain (Whisper)."""

    learns: bool = False
    """Whether the table is trained."""

    def table_values(self, shape):
        rows, width = shape
        return sinusoidal_code(
            jnp.arange(rows), model_dim=width, theta=10_000.0, layout="half", endpoint=True
        )

    def validate_sizes(self, *, model_dim, head_dim):
        Sinusoidal.validate_sizes(self, model_dim=model_dim, head_dim=head_dim)
