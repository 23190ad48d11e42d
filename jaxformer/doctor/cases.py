"""Computations that some releases of jaxlib get wrong, with correct results in float64.

``python -m jaxformer.doctor.cases NAME ...`` runs cases and prints a line of JSON before and after
each, so that a case that crashes or hangs the process is the last one that started.
"""

import faulthandler
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import xla_flags
from jaxformer.doctor.gradients import (
    Pairs,
    attention_gradients,
    frozen_gradients,
    norm_gradients,
    normal,
)
from jaxformer.functional import attention, cross_entropy, rotary_angles
from jaxformer.functional.linear import lookup
from jaxformer.functional.masks import DenseMask

SECONDS = 30
"""The time limit of a case, each of which takes a second or two."""

NO_YNN_REDUCTIONS = f"XLA_FLAGS={xla_flags.NO_YNN_REDUCTIONS}"
FULL_PRECISION = "JAX_DEFAULT_MATMUL_PRECISION=float32"
_JAX = "https://github.com/jax-ml/jax/issues/"
_XLA = "https://github.com/openxla/xla/issues/"

_PRECISION = jax.config.jax_default_matmul_precision
"""The user's matmul precision, which one case tests; the others override it."""


@dataclass(frozen=True)
class Case:
    """A computation that is known to be wrong on some machines."""

    name: str
    meaning: str
    """What a wrong result means for the user."""
    remedy: str
    """The remedy: what to set or change."""
    issue: str
    """The issue where it is reported."""
    tolerance: float
    """The maximum accepted error, relative to the largest value."""
    run: Callable[[], Pairs]
    in_transformers: bool = True
    """Whether transformers use this computation; if not, a wrong result is only a note."""

    def error(self) -> float:
        """Runs the case; returns the largest error relative to the largest value."""
        with jax.default_matmul_precision("highest"):
            return max(_distance(*pair) for pair in self.run())


def _distance(computed: Any, truth: Any) -> float:
    computed = np.asarray(computed, np.float64)
    truth = np.asarray(truth, np.float64)
    if computed.shape != truth.shape or not np.isfinite(computed).all():
        return float("inf")
    return float(np.abs(computed - truth).max() / max(np.abs(truth).max(), 1e-30))


# Used by transformers ----------------------------------------------------------------------


def _one_operation_at_a_time() -> Pairs:
    yield jnp.ones(4) + 1, np.full(4, 2.0)
    yield jnp.sqrt(jnp.full(8, 512.0)), np.full(8, 512.0**0.5)
    gathered = jax.vjp(lambda x: x[:, jnp.arange(8), :], np.zeros((256, 8, 128), np.float32))[1]
    yield gathered(jnp.asarray(x := normal(256, 8, 128)))[0], x


def _bfloat16_products() -> Pairs:
    left, right = (jnp.asarray(normal(*shape), jnp.bfloat16) for shape in ((8, 4096), (4096, 8)))
    product = jax.jit(partial(jnp.matmul, preferred_element_type=jnp.float32))
    yield product(left, right), np.asarray(left, np.float64) @ np.asarray(right, np.float64)
    ones = jnp.ones((8, 4096), jnp.bfloat16)
    yield product(ones, ones.T), np.full((8, 8), 4096.0)


def _scaled_bias() -> Pairs:
    x = normal(64, 64)
    weight = normal(64, 64)
    bias = normal(1, 64)

    def step(carry, _):
        return carry + (jnp.tanh(carry) @ weight + bias) / 64, None

    truth = x.astype(np.float64)
    for _ in range(4):
        truth = truth + (np.tanh(truth) @ weight.astype(np.float64) + bias) / 64
    scan = partial(jax.lax.scan, step, xs=None, length=4)
    yield scan(jnp.asarray(x))[0], truth
    yield jax.jit(scan)(jnp.asarray(x))[0], truth
    product = x.astype(np.float64) @ weight + bias
    yield jax.jit(lambda x: x @ weight + bias)(x), product


def _queries_without_keys() -> Pairs:
    x = normal(2, 8, 2, 16)
    nothing = DenseMask(jnp.zeros((1, 8, 8), bool))

    def squared(x):
        return jnp.sum(attention(x, x, x, mask=nothing) ** 2)

    value, gradient = jax.jit(jax.value_and_grad(squared))(x)
    yield value, 0.0
    yield gradient, np.zeros_like(x)


def _cross_entropy() -> Pairs:
    logits = normal(32, 50_257) * 3
    targets = np.arange(32) * 1_567
    loss, gradient = jax.jit(jax.value_and_grad(lambda x: cross_entropy(x, targets).loss))(logits)
    wide = logits.astype(np.float64)
    shares = np.exp(wide - wide.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    rows = np.arange(len(targets))
    yield loss, -np.log(shares[rows, targets]).sum()
    shares[rows, targets] -= 1
    yield gradient, shares


def _embedding_gradients() -> Pairs:
    ids = np.arange(2 * 16 * jax.device_count()).reshape(2, -1) ** 2 % 96
    upstream = normal(*ids.shape, 64)

    def accumulated(table, ids, upstream):
        def micro_batch(total, rows):
            ids, upstream = rows
            return total + jax.vjp(lambda table: table[ids], table)[1](upstream)[0], None

        return jax.lax.scan(micro_batch, jnp.zeros_like(table), (ids, upstream))[0]

    truth = np.zeros((96, 64))
    np.add.at(truth, ids.ravel(), upstream.reshape(-1, 64))
    spread = _over_devices(ids, None, "data"), _over_devices(upstream, None, "data")
    yield jax.jit(accumulated)(np.zeros((96, 64), np.float32), *spread), truth
    table = normal(96, 64)
    yield jax.jit(lookup)(table, ids), table[ids]


def _sums_over_devices() -> Pairs:
    x = normal(128 * jax.device_count(), 64)
    yield jax.jit(lambda x: x.T @ x)(_over_devices(x, "data")), x.T.astype(np.float64) @ x


def _over_devices(array: np.ndarray, *axes: str | None) -> jax.Array:
    """Shards an array over all devices along the axis named "data"."""
    automatic = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), automatic)
    return jax.device_put(array, jax.sharding.NamedSharding(mesh, jax.P(*axes)))


def _angles() -> Pairs:
    positions = np.asarray([0, 1, 4_095, 131_071, 1_048_575], np.int32)
    frequencies = np.asarray([1.0, 0.1, 1e-3, 1e-6], np.float32)
    angles = np.asarray(jax.jit(rotary_angles)(positions, frequencies), np.float64)
    exact = np.outer(positions.astype(np.longdouble), frequencies.astype(np.longdouble))
    # Compares sine and cosine, since angles just below pi and just above -pi are equivalent.
    yield np.sin(angles), np.sin(exact)
    yield np.cos(angles), np.cos(exact)


def _not_a_number() -> Pairs:
    spoiled = np.asarray([1.0, np.nan, 2.0], np.float32)
    with jax.debug_nans(False):
        yield jax.jit(jnp.isnan)(spoiled), [0, 1, 0]
        yield jax.jit(lambda x: jnp.isfinite(jnp.sum(x)))(spoiled), 0
        yield jax.jit(lambda x: jnp.isnan(jnp.max(jax.nn.softmax(x))))(spoiled), 1


# Not used by transformers -------------------------------------------------------------------------


def _float32_products() -> Pairs:
    left, right = normal(64, 512), normal(512, 64)
    with jax.default_matmul_precision(_PRECISION):
        yield jax.jit(jnp.matmul)(left, right), left.astype(np.float64) @ right


def _rows_of_three() -> Pairs:
    rows = np.zeros((32_769, 3), np.float32)
    rows[:, 0] = np.arange(len(rows))
    matrix = jnp.eye(3)
    found = jax.jit(jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2)))(rows)
    yield found, (rows.astype(np.float64) ** 2).sum(-1)


def _seven_axes() -> Pairs:
    for shape, axis in (((3, 1, 2, 2, 8, 8, 8), 3), ((10, 4, 6, 9, 9, 9, 9, 9), 2)):
        left = normal(*shape[:4], *(1,) * (len(shape) - 4))
        right = np.ones(shape, np.float32)
        found = jax.jit(lambda left, right, axis=axis: jnp.sum(left * right, axis))(left, right)
        yield found, (left.astype(np.float64) * right).sum(axis)


def _packed_offsets() -> Pairs:
    # No public function packs documents for cuDNN, so pass the start of each document directly.
    cudnn = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    lengths = np.array([[3, 5], [8, -1]])
    starts = np.array([[0, 3, 8], [0, 8, -1]])
    query = jnp.zeros((2, 8, 6, 16))
    key = jnp.zeros((2, 8, 2, 16))
    given = (jnp.asarray(x, jnp.int32) for x in (lengths, lengths, starts, starts))
    *_, of_queries, of_keys = cudnn._fix_seqlen_offsets(*given, query, key)
    rows = np.array([[0, 3, 8], [8, 16, 16]])
    yield of_queries, rows * 6 * 16
    yield of_keys, rows * 2 * 16


_OTHER_RELEASE = "another release of jaxlib"
CASES = (
    Case(
        "operations outside jit",
        "the first of several small kernels reads leftovers of another kernel",
        f"{_OTHER_RELEASE}: 0.11.0 and 0.11.1 do this on some GPUs, libtpu 0.0.42 on TPUs",
        _JAX + "40633",
        1e-6,
        _one_operation_at_a_time,
    ),
    Case(
        "bfloat16 products",
        "products of bfloat16 do not accumulate in float32: long sums stop growing",
        "remove the XLA_FLAGS that allow sums in bfloat16",
        _JAX + "26130",
        1e-4,
        _bfloat16_products,
    ),
    Case(
        "a matrix product with a bias",
        "x W + b is scaled without its bias, or b is added along the wrong axis",
        "XLA_FLAGS=--xla_gpu_autotune_level=3",
        _XLA + "46110",
        1e-5,
        _scaled_bias,
    ),
    Case(
        "gradients of attention",
        "attention learns from wrong gradients, or the process aborts",
        f"{_OTHER_RELEASE}: 0.10.0 and 0.10.1 abort on some CPUs",
        _JAX + "39264",
        1e-5,
        attention_gradients,
    ),
    Case(
        "queries without a key",
        "padding becomes NaN or a mean of the values",
        _OTHER_RELEASE,
        _JAX + "38486",
        0.0,
        _queries_without_keys,
    ),
    Case(
        "cross-entropy of 50,257 tokens",
        "the loss or its gradient is wrong",
        _OTHER_RELEASE,
        _JAX + "39103",
        1e-5,
        _cross_entropy,
    ),
    Case(
        "gradients of a norm",
        "sums over many rows are wrong",
        NO_YNN_REDUCTIONS,
        _JAX + "39103",
        1e-5,
        norm_gradients,
    ),
    Case(
        "gradients through frozen blocks",
        "gradients depend on previous memory contents, or are NaN",
        NO_YNN_REDUCTIONS,
        _JAX + "39103",
        0.02,
        frozen_gradients,
    ),
    Case(
        "gradients of an embedding",
        "micro-batches add their gradients to the wrong rows",
        "XLA_FLAGS=--xla_disable_hlo_passes=while-loop-all-reduce-code-motion",
        _XLA + "49143",
        1e-6,
        _embedding_gradients,
    ),
    Case(
        "sums over devices",
        "devices do not receive data from others",
        "NCCL_P2P_DISABLE=1, or turn the IOMMU off in the firmware",
        "https://github.com/NVIDIA/nccl/issues/257",
        1e-5,
        _sums_over_devices,
    ),
    Case(
        "angles of RoPE",
        "positions of long texts are rotated by wrong angles",
        "remove the XLA_FLAGS that allow fast arithmetic",
        _JAX + "939",
        1e-6,
        _angles,
    ),
    Case(
        "NaN is seen",
        "a run that diverges is not stopped",
        "remove --xla_cpu_enable_fast_math from XLA_FLAGS",
        _JAX + "939",
        0.0,
        _not_a_number,
    ),
    Case(
        "float32 products",
        "float32 products are rounded to TF32 or bfloat16 first: fast, and the default of "
        "accelerators",
        f"{FULL_PRECISION}, if float32 must mean float32",
        _JAX + "24909",
        1e-5,
        _float32_products,
        in_transformers=False,
    ),
    Case(
        "sums over rows of 3",
        "a product summed over an axis of 3 in 32,769 columns or more is wrong; no shape of a "
        "transformer is known to be affected",
        NO_YNN_REDUCTIONS,
        _JAX + "39103",
        1e-6,
        _rows_of_three,
        in_transformers=False,
    ),
    Case(
        "packed documents in cuDNN",
        "keys of packed documents are read from wrong positions with grouped-query attention; "
        "jaxformer packs with masks, which are not affected",
        "JAX 0.12 or newer",
        "https://github.com/jax-ml/jax/pull/39521",
        0.0,
        _packed_offsets,
        in_transformers=False,
    ),
    Case(
        "sums in arrays of 7 axes",
        "a sum over an array with 7 axes or more crashes the process or hangs; transformers use "
        "at most 5",
        NO_YNN_REDUCTIONS,
        _JAX + "39257",
        1e-6,
        _seven_axes,
        in_transformers=False,
    ),
)


def main(names: list[str]) -> None:
    """Runs the named cases and prints the start and the outcome of each."""
    chosen = {case.name: case for case in CASES}
    jax.devices()  # if JAX cannot start, the process ends before any case begins
    for name in names:
        _print_json(begins=name)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            _print_json(ended=name, error=chosen[name].error())
        except Exception as error:
            _print_json(
                ended=name, message=f"{type(error).__name__}: {error}".splitlines()[0][:200]
            )
    faulthandler.cancel_dump_traceback_later()


def _print_json(**words: object) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
