"""What benchmarks/train_step.py compares: each function returns a blocking `step()`."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from jaxformer.models.config import DecoderConfig
from jaxformer.models.decoder import Decoder
from jaxformer.models.parameters import Template
from jaxformer.sharding import MeshConfig, make_mesh
from jaxformer.training.config import TrainConfig
from jaxformer.training.optim import AdamW
from jaxformer.training.schedules import Constant
from jaxformer.training.step import TrainProgram

Step = Callable[[], None]


def jaxformer_step(shape: dict, tokens: np.ndarray, dtype: str) -> Step:
    model = DecoderConfig(**shape, tie_embeddings=False, compute_dtype=dtype, scan_layers=False)
    optimizer = AdamW(schedule=Constant(learning_rate=1e-3))
    program = TrainProgram(model, optimizer, TrainConfig(), make_mesh(MeshConfig()))
    batch = {
        "inputs": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "weights": np.ones(tokens[:, 1:].shape, np.float32),
    }
    batch = {name: jax.device_put(x, program.batch_sharding) for name, x in batch.items()}
    state = program.init(0)

    def step():
        nonlocal state
        state, _ = program.train_step(state, batch)
        jax.block_until_ready(state.params)

    return step


def plain_jax_step(shape: dict, tokens: np.ndarray) -> Step:
    """What one would write first: bfloat16 parameters cast at the door, `x @ w`, optax."""
    model = DecoderConfig(**shape, tie_embeddings=False)
    template = Template(lambda key: Decoder(key, model))
    params = template.init(jax.random.key(0))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    opt_state = optimizer.init(params)
    inputs, targets = jnp.asarray(tokens[:, :-1]), jnp.asarray(tokens[:, 1:])

    def loss(params):
        bf16 = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        logits = _plain_llama(bf16, inputs, model.num_layers).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    @jax.jit
    def update(params, opt_state):
        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    def step():
        nonlocal params, opt_state
        params, opt_state = jax.block_until_ready(update(params, opt_state))

    return step


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

    x = params["embedding.table"][inputs]
    for i in range(num_layers):
        layer = {
            name.removeprefix("stack.group.0."): value[i]
            for name, value in params.items()
            if name.startswith("stack.")
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
    return norm(x, params["final_norm.scale"]) @ params["head_kernel"]


def torch_step(shape: dict, tokens: np.ndarray, dtype: str) -> Step:
    config = LlamaConfig(
        vocab_size=shape["vocab_size"],
        hidden_size=shape["model_dim"],
        num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"],
        num_key_value_heads=shape["num_kv_heads"],
        intermediate_size=shape["mlp_dim"],
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    inputs = torch.from_numpy(tokens[:, :-1]).long()
    targets = torch.from_numpy(tokens[:, 1:]).long()

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def matmul_peak(dtype: str) -> float:
    """FLOP/s of a large product in `dtype` accumulated in float32, the best of several."""
    a, b = jnp.ones((4096, 512), dtype), jnp.ones((512, 1408), dtype)
    product = jax.jit(lambda a, b: jax.lax.dot(a, b, preferred_element_type=jnp.float32))
    jax.block_until_ready(product(a, b))
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        jax.block_until_ready(product(a, b))
        best = min(best, time.perf_counter() - start)
    return 2 * 4096 * 512 * 1408 / best
