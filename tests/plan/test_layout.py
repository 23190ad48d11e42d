"""The memory of arrays, against what the TPU compiler writes in its buffer assignments."""

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.distributed.chips import find_chip
from jaxformer.plan.layout import compact_size, layout_of, tiled_size
from jaxformer.plan.liveness import mark_row_major
from jaxformer.plan.program import Program, Value, flattened

F32, BF16 = jnp.dtype("float32"), jnp.dtype("bfloat16")


# Shapes and sizes of arrays that libtpu 0.0.52 assigned.
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((24, 16, 128, 128), 24 * 16 * 128 * 128),
        ((8, 2048, 40, 32), 8 * 2048 * 40 * 128),
        ((32, 4, 257, 1280), 32 * 4 * 264 * 1280),
        ((24, 1, 65536), 24 * 65536),
        ((3, 2, 5), 3 * 2 * 128),
        ((3, 5, 5), 3 * 8 * 128),
        ((50432,), 50432),
        ((), 1),
    ],
)
def test_rows_are_padded_to_tiles(shape, size):
    assert tiled_size(shape) == size


@pytest.mark.parametrize("seed", range(20))
def test_the_compact_order_is_the_least_of_all(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 300, size=rng.integers(2, 5)))
    assert compact_size(shape) == min(tiled_size(order) for order in permutations(shape))
    assert np.prod(shape) <= compact_size(shape) <= tiled_size(shape)


def test_heads_that_a_kernel_reads_are_padded():
    layout = layout_of(find_chip("v5e"))
    heads = Value((6, 64, 16, 128, 64), BF16)
    assert layout.bytes(heads) == heads.bytes
    heads.row_major = True
    assert layout.bytes(heads) == 2 * heads.bytes
    assert layout_of(find_chip("h100")).bytes(heads) == heads.bytes


def test_what_a_kernel_reads_is_marked_under_all_its_names():
    def read(x):
        from jax.experimental import pallas as pl

        def kernel(x_ref, y_ref):
            y_ref[...] = x_ref[...]

        heads = jnp.swapaxes(x * 2, 0, 1)
        shape = jax.ShapeDtypeStruct(heads.shape, heads.dtype)
        return pl.pallas_call(kernel, out_shape=shape, interpret=False)(heads), x + 1

    traced = jax.jit(read).trace(jax.ShapeDtypeStruct((4, 16), F32)).jaxpr
    program: Program = flattened(traced)
    mark_row_major(program)
    marked = {op.name: op.results[0].row_major for op in program.operations}
    assert marked == {"mul": True, "transpose": True, "pallas_call": True, "add": False}
    assert not program.inputs[0].row_major
