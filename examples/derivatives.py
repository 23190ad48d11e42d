"""Three derivatives of a trained model that an optimizer does not compute.

    python examples/derivatives.py

trains a small decoder on a repeating pattern for a few seconds, and prints

1. the norm of each example's own gradient, by `jax.vmap(jax.grad(...))`: a strange example stands
   out (it is also what clipping for differential privacy needs);
2. the curvature of the loss: the largest eigenvalue of the Hessian by power iteration, and its
   trace by Hutchinson's estimator, both from Hessian-vector products alone;
3. the influence of each training example on the loss of a test example,
   g_test^T (H + damping)^-1 g_train, by conjugate gradients.

References:
    Hutchinson, A stochastic estimator of the trace of the influence matrix, 1989.
    Koh and Liang, Understanding Black-box Predictions via Influence Functions
    (https://arxiv.org/abs/1703.04730).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxformer.models import AbstractModel, DecoderConfig

Tree = Any
Loss = Callable[[Tree, dict], jax.Array]


def inner(x: Tree, y: Tree) -> jax.Array:
    """The inner product of two pytrees."""
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, x, y)))


def example_gradient_norms(loss: Loss, parameters: Tree, batch: dict) -> jax.Array:
    """The norm of each example's gradient, `[B]`; arrays of the batch are `[B, ...]`."""

    def norm_of_one(row):
        gradient = jax.grad(loss)(parameters, jax.tree.map(lambda x: x[None], row))
        return jnp.sqrt(inner(gradient, gradient))

    return jax.vmap(norm_of_one)(batch)


def hessian_product(loss: Loss, parameters: Tree, batch: dict, vector: Tree) -> Tree:
    """The Hessian times a vector, forward over reverse: twice the cost of a gradient."""
    gradient = partial(jax.grad(loss), batch=batch)
    return jax.jvp(gradient, (parameters,), (vector,))[1]


def top_eigenvalue(
    loss: Loss, parameters: Tree, batch: dict, key: jax.Array, steps: int
) -> jax.Array:
    """The Hessian's eigenvalue of largest magnitude, by power iteration from a random vector."""

    def step(vector, _):
        product = hessian_product(loss, parameters, batch, vector)
        norm = jnp.sqrt(inner(product, product))
        return jax.tree.map(lambda x: x / norm, product), inner(vector, product)

    start = jax.tree.map(jnp.sign, _noise(parameters, key))
    norm = jnp.sqrt(inner(start, start))
    _, values = jax.lax.scan(step, jax.tree.map(lambda x: x / norm, start), length=steps)
    return values[-1]


def trace(loss: Loss, parameters: Tree, batch: dict, key: jax.Array, samples: int) -> jax.Array:
    """The trace of the Hessian: the mean of v^T H v over vectors of random signs (Hutchinson)."""

    def one(key):
        signs = jax.tree.map(jnp.sign, _noise(parameters, key))
        return inner(signs, hessian_product(loss, parameters, batch, signs))

    return jnp.mean(jax.lax.map(one, jax.random.split(key, samples)))


def influences(
    loss: Loss, parameters: Tree, batch: dict, test: dict, damping: float, steps: int
) -> jax.Array:
    r"""How much one more copy of each example would raise the loss of a test batch, `[B]`.

    .. math:: -\frac{1}{B}\\, g_{test}^\top (H + \lambda I)^{-1} g_i

    Args:
        loss: The mean loss of a batch.
        parameters: The trained parameters.
        batch: The training examples, `[B, ...]` each.
        test: The test batch.
        damping: λ, above minus the smallest eigenvalue of the Hessian.
        steps: Conjugate gradient steps.

    Returns:
        The influence of each example.
    """

    def damped(vector):
        product = hessian_product(loss, parameters, batch, vector)
        return jax.tree.map(lambda h, v: h + damping * v, product, vector)

    of_test = jax.grad(loss)(parameters, test)
    direction, _ = jax.scipy.sparse.linalg.cg(damped, of_test, maxiter=steps)

    def along(row):
        # The slope of one example's loss along the direction: no gradient of it is ever held.
        example = jax.tree.map(lambda x: x[None], row)
        return jax.jvp(lambda p: loss(p, example), (parameters,), (direction,))[1]

    return -jax.vmap(along)(batch) / len(jax.tree.leaves(batch)[0])


def _noise(parameters: Tree, key: jax.Array) -> Tree:
    leaves, tree = jax.tree.flatten(parameters)
    keys = jax.random.split(key, len(leaves))
    return tree.unflatten(
        [jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    )


# A tiny trained run ------------------------------------------------------------------------------


def tiny_run(steps: int = 60) -> tuple[Loss, Tree, dict]:
    """A decoder that counts upwards modulo 11; the last row of its batch counts downwards.

    Returns:
        The mean loss of a batch, the trained parameters, and the batch.
    """
    config = DecoderConfig(
        vocab_size=11, num_layers=2, model_dim=16, num_heads=4, num_kv_heads=2, mlp_dim=24,
        compute_dtype="float32", scan_layers=False,
    )  # fmt: skip
    model = AbstractModel(config.build)
    tokens = (np.arange(8)[:, None] + np.arange(13)) % 11
    tokens[-1] = tokens[-1][::-1]
    batch = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
    batch = {name: jnp.asarray(x, jnp.int32) for name, x in batch.items()}
    batch["weights"] = jnp.ones(batch["inputs"].shape)

    def loss(parameters, batch):
        sums = model.module(parameters).loss(batch)[1].values()
        return sum(head.loss / head.weight for head in sums)

    optimizer = optax.adam(1e-2)

    @jax.jit
    def update(carry, _):
        parameters, state = carry
        updates, state = optimizer.update(jax.grad(loss)(parameters, batch), state)
        return (optax.apply_updates(parameters, updates), state), None

    parameters = model.init(jax.random.key(0))
    start = parameters, optimizer.init(parameters)
    (parameters, _), _ = jax.lax.scan(update, start, length=steps)
    return loss, parameters, batch


def main() -> None:
    """Prints the three."""
    loss, parameters, batch = tiny_run()
    test = jax.tree.map(lambda x: x[-1:], batch)
    norms = jax.jit(partial(example_gradient_norms, loss))(parameters, batch)
    print("gradient norm of each example  ", np.round(norms, 2))
    key = jax.random.key(1)
    largest = jax.jit(partial(top_eigenvalue, loss, steps=20))(parameters, batch, key)
    mean = jax.jit(partial(trace, loss, samples=16))(parameters, batch, key)
    print(f"largest eigenvalue of the Hessian {largest:.2f}, its trace about {mean:.1f}")
    of = jax.jit(partial(influences, loss, damping=10.0, steps=10))(parameters, batch, test)
    print("influence on the loss of the last", np.round(of, 4))


if __name__ == "__main__":
    main()
