"""A simple step in plain JAX: parameters cast to `dtype`, `x @ w`, optax."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from shapes import random_tokens

from jaxformer.models import AbstractModel, Decoder, DecoderConfig


def step(shape: dict, batch: int, length: int, dtype: str) -> Callable[[], None]:
    """Prepares a step of the Llama shape; parameters are those of our decoder."""
    model = DecoderConfig(**shape)
    abstract_model = AbstractModel(lambda key: Decoder(key, model))
    params = abstract_model.init(jax.random.key(0))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    opt_state = optimizer.init(params)
    tokens = jnp.asarray(random_tokens(shape, batch, length))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def loss(params):
        cast = jax.tree.map(lambda p: p.astype(dtype), params)
        logits = _plain_llama(cast, inputs, model.num_layers).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    @jax.jit
    def update(params, opt_state):
        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    def run():
        nonlocal params, opt_state
        params, opt_state = jax.block_until_ready(update(params, opt_state))

    return run


def _plain_llama(params: dict, inputs: jax.Array, num_layers: int) -> jax.Array:
    def norm(x, scale):
        wide = x.astype(jnp.float32)
        rms = jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-5)
        return (wide * rms).astype(x.dtype) * scale

    def rotate(x):
        half = x.shape[-1] // 2
        frequency = 10_000.0 ** (-jnp.arange(half) / half)
        angle = jnp.arange(x.shape[1])[:, None] * frequency
        cos, sin = (f(angle)[None, :, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x, stack = params["embedding.table"][inputs], "transformer.stack.group.0."
    for i in range(num_layers):
        layer = {
            name.removeprefix(stack): value[i]
            for name, value in params.items()
            if name.startswith(stack)
        }
        y = norm(x, layer["norms.0.scale"])
        query, key, value = (
            jnp.einsum("btd,dnh->btnh", y, layer[f"sublayers.0.attention.{name}.kernel"])
            for name in ("query", "key", "value")
        )
        y = jax.nn.dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
        x = x + jnp.einsum("btnh,nhd->btd", y, layer["sublayers.0.attention.output.kernel"])
        y = norm(x, layer["norms.1.scale"])
        hidden = jax.nn.silu(y @ layer["sublayers.1.gate.kernel"]) * (
            y @ layer["sublayers.1.up.kernel"]
        )
        x = x + hidden @ layer["sublayers.1.down.kernel"]
    return norm(x, params["transformer.final_norm.scale"]) @ params["heads.language_model.kernel"]
