"""Jitted versions of the functions that the report calls with many shapes."""

import jax

from jaxformer import functional

code_distance = jax.jit(functional.code_distance)
code_inner_products = jax.jit(functional.code_inner_products)
position_scores = jax.jit(functional.position_scores, static_argnums=0)
relative_share = jax.jit(functional.relative_share)
rope_decay = jax.jit(functional.rope_decay)
rotation_matrix = jax.jit(functional.rotation_matrix, static_argnames="layout")
sinusoidal_code = jax.jit(
    functional.sinusoidal_code, static_argnames=("model_dim", "theta", "layout", "endpoint")
)
step_sizes = jax.jit(functional.step_sizes)
t5_bucket = jax.jit(
    functional.t5_bucket, static_argnames=("bidirectional", "num_buckets", "max_distance")
)
