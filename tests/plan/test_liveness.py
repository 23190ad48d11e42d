"""The memory of a traced program, against shapes that are known and JAX's own residuals."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from plan_cases import tiny, traced

from jaxformer.distributed.slices import parse_chips
from jaxformer.functional import dropout
from jaxformer.models import QuantizedFrames
from jaxformer.models.heads.quantized import Quantizer
from jaxformer.plan.layout import Layout, layout_of
from jaxformer.plan.liveness import peak
from jaxformer.plan.memory import estimate
from jaxformer.plan.program import each_operation, flattened
from jaxformer.plan.trace import trace_step
from jaxformer.training.logging.report import bytes_per_device

pytestmark = pytest.mark.more

SIZE = 128  # of whole tiles
SQUARE = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32)
ONE = SIZE * SIZE * 4


def peak_of(function, *arguments):
    return peak(flattened(jax.jit(function).trace(*arguments).jaxpr), Layout(tiled=True))


def late(x, w):
    """Reads its first product last, beside one between and the next."""
    first = x @ w
    second = (first @ w) @ w
    return second @ first


def waits(x, w):
    x, w = jax.lax.optimization_barrier((jnp.sin(x), w))
    return (x + w) @ w


def constant_waits(x, w):
    factor, x = jax.lax.optimization_barrier((2.0, x))
    return (x * factor) @ w


# Functions of two squares, and how many squares their memory is.
PEAKS = {
    "what is elementwise needs none": (lambda x, w: jnp.sin(x @ w) * 2 + 1, 1),
    "a product reads one and writes another": (lambda x, w: x @ w @ w @ w @ w @ w, 2),
    "an array lives until it is read last": (late, 3),
    "drawn where it is read": (lambda x, w: dropout(x @ w, 0.3, jax.random.key(0)) @ w, 2),
    "added where it is read": (lambda x, w: (jnp.sin(x) + w) @ w, 1),
    "what waits for another is written": (waits, 2),
    "a constant that waits needs none": (constant_waits, 1),
}


@pytest.mark.parametrize(("function", "squares"), PEAKS.values(), ids=PEAKS)
def test_the_memory_of_products_is_that_of_the_arrays_which_are_written(function, squares):
    assert peak_of(function, SQUARE, SQUARE).bytes == squares * ONE


def test_the_rows_that_a_convolution_reads_are_written():
    half = jax.ShapeDtypeStruct((SIZE // 2, SIZE), jnp.float32)
    assert peak_of(lambda x, w: x[::2] @ w, SQUARE, SQUARE).bytes == ONE
    # Every second place of a row is read where it is.
    assert peak_of(lambda x, w: x[:, ::2] @ w, SQUARE, half).bytes == ONE

    def pair(x, w):
        return jnp.concatenate([x[:-1:2], x[1::2]], axis=1) @ w

    square = jax.ShapeDtypeStruct((2 * SIZE, SIZE), jnp.float32)
    assert peak_of(pair, square, square).bytes == 3 * ONE


@pytest.mark.parametrize("remat", [False, True])
def test_a_loop_keeps_what_its_derivative_reads(remat):
    def layer(x, w):
        return jnp.tanh(x @ w) @ w, None

    def loss(x, stack):
        return jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, stack)[0].sum()

    stack = jax.ShapeDtypeStruct((7, SIZE, SIZE), jnp.float32)
    _, pull = jax.eval_shape(lambda x, w: jax.vjp(loss, x, w), SQUARE, stack)
    kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.shape[:1] == (7,)]
    # Without the parameters, which are not residuals of the forward pass.
    expected = sum(leaf.size * 4 for leaf in kept) - 7 * ONE
    found = peak_of(jax.grad(loss, argnums=(0, 1)), SQUARE, stack)
    saved = [size for _, maker, size in found.arrays if maker == "saved by the loop"]
    gradient = 7 * ONE
    assert sum(saved) - gradient == expected
    assert found.bytes >= expected + gradient


def test_branches_of_a_condition_share_memory():
    def branches(flag, x):
        return jax.lax.cond(flag, lambda x: (x @ x) @ x, lambda x: x @ x, x)

    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    one_branch = peak_of(lambda x: (x @ x) @ x, SQUARE).bytes
    assert one_branch <= peak_of(branches, flag, SQUARE).bytes <= one_branch + 2 * ONE


def test_what_is_read_soon_is_kept_on_the_chip():
    def chain(x, w):
        return ((x @ w) @ w) @ w

    program = flattened(jax.jit(chain).trace(SQUARE, SQUARE).jaxpr)
    room = [peak(program, Layout(True, size)).bytes for size in (0, ONE, 9 * ONE)]
    assert room == [2 * ONE, ONE, 0]


def test_a_loop_counts_as_often_as_it_runs():
    def loop(x, w):
        return jax.lax.scan(lambda x, _: (x @ w, None), x, length=9)[0]

    count = 0

    def visit(operation, times):
        nonlocal count
        count += times * (operation.name == "dot_general")

    each_operation(flattened(jax.jit(loop).trace(SQUARE, SQUARE).jaxpr), visit)
    assert count == 9


def test_state_is_exact_and_the_parts_add_up():
    step = traced((1, 4, 1))
    found, state = estimate(step), step.train_program.state_shapes
    shapes = step.train_program.abstract_model.shapes
    share = sum(x.size * 4 for x in shapes.values()) / 4
    held = layout_of(step.slice.chip).bytes_of_tree
    assert share <= bytes_per_device(state.params) < 1.1 * share
    assert bytes_per_device(state.params) <= held(state.params) == found.parts["parameters"]
    assert found.parts["optimizer"] == held(state.opt_state)
    assert found.peak == sum(found.parts.values())
    temporary = sum(buffer.bytes for buffer in found.buffers)
    assert found.peak == temporary + held((state.params, state.opt_state, step.batch))
    sizes = [buffer.bytes for buffer in found.buffers]
    assert sizes == sorted(sizes, reverse=True)


def test_products_that_wait_for_the_end_of_a_layer_keep_what_they_are_made_of():
    config = tiny((1, 4, 1), "full")
    model = replace(config.model, scan_layers=True, mlp_dim=2048)
    program = trace_step(replace(config, model=model), parse_chips("v5e:2x2")).program
    at_once, all_wait = (peak(program, Layout(True, 1, sparse)).bytes for sparse in (True, False))
    assert at_once < all_wait


@pytest.mark.slow
def test_less_is_kept_where_more_is_computed_again():
    none, dots, full = (estimate(traced((1, 4, 1), remat)) for remat in ("none", "dots", "full"))
    saved = [each.parts.get("saved activations", 0) for each in (none, dots, full)]
    assert saved[0] >= saved[1] >= saved[2]
    assert none.peak >= full.peak


@pytest.mark.slow
def test_cutting_the_state_never_needs_more():
    peaks = [estimate(traced(mesh)).peak for mesh in ((4, 1, 1), (2, 2, 1), (1, 4, 1))]
    assert peaks == sorted(peaks, reverse=True)


def test_random_numbers_are_cut_as_what_they_drop():
    mesh = AbstractMesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Explicit,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec("data", None, "tensor"))
    x = jax.ShapeDtypeStruct((16, 8, 32), jnp.float32, sharding=sharding)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(lambda x: dropout(x, 0.3, jax.random.key(0))).trace(x)
    program = flattened(traced.jaxpr)
    drawn = [op.results[0].shape for op in program.operations if op.name == "random_bits"]
    assert drawn == [(4, 8, 16)]


def test_the_noise_of_codes_is_cut_as_what_it_is_added_to():
    def vectors(x):
        quantizer = Quantizer(jax.random.key(0), QuantizedFrames(code_dim=4, codes=5), 6)
        return quantizer(x, None, jax.random.key(1))[0]

    mesh = AbstractMesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    x = jax.ShapeDtypeStruct((16, 8, 6), jnp.float32, sharding=sharding)
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(vectors).trace(x)
    program = flattened(traced.jaxpr)
    drawn = [op.results[0].shape for op in program.operations if op.name == "random_bits"]
    assert [shape for shape in drawn if len(shape) == 4] == [(4, 8, 2, 5)]


def test_what_waits_on_the_host_needs_no_memory_of_the_device():
    def layer(x, w):
        y = jax.device_put(x @ w, jax.memory.Space.Host)
        return jnp.sin(x), y

    def kept(x, stack):
        _, ys = jax.lax.scan(layer, x, stack)
        return ys

    stack = jax.ShapeDtypeStruct((7, SIZE, SIZE), jnp.float32)
    found = peak_of(kept, SQUARE, stack)
    assert {held.bytes for held in found.arrays if held.maker == "saved by the loop"} <= {0, ONE}
    assert found.bytes < 4 * ONE
