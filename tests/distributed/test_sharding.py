"""The rules table, the mesh, and a training step that computes the same wherever it runs."""

import os
import re
import tempfile
from dataclasses import replace
from functools import lru_cache, partial
from math import inf, prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiments import WITH_MODEL
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from train_steps import packed_rows, program_of

from jaxformer.config import load_config
from jaxformer.config.experiment import check_mesh
from jaxformer.distributed import MeshConfig, make_mesh, sharding
from jaxformer.distributed.sharding import MESH_AXES, RULES, parameter_sharding, spec
from jaxformer.errors import ConfigError
from jaxformer.functional import LayerNorm, RMSNorm, RoPE, T5Bias
from jaxformer.functional.arrays import mesh_axes
from jaxformer.functional.linear import lookup
from jaxformer.models import AbstractModel, DecoderConfig, EncoderConfig, MaskedLanguageModel
from jaxformer.nn import (
    MLP,
    ConvolutionBlock,
    DotProductAttention,
    Parallel,
    TokenEmbeddings,
    VocabularyLogits,
)
from jaxformer.optim import SGD, AdamW, Constant
from jaxformer.training.step import TrainProgram, TrainState

SCHEMES = ("none", "integer", "binary", "sinusoidal", "learned", "rope", "alibi", "t5")
POSITIONS = next(path for path in WITH_MODEL if path.stem == "tiny_positions")
EXPERIMENTS = [*map(str, WITH_MODEL), *(f"{POSITIONS}:{scheme}" for scheme in SCHEMES)]
BATCH, LENGTH = 16, 11

# Grouped heads, windows, a soft-capped head that shares the embedding table.
TIED = DecoderConfig(
    vocab_size=40,
    num_layers=2,
    model_dim=24,
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
    mlp_dim=12,
    position=RoPE(theta=100.0, fraction=0.5),
    windows=(3,),
    logits=VocabularyLogits(bias=True, softcap=3.0),
    dropout=0.1,
    self_attention=DotProductAttention(dropout=0.1),
    init_std=0.2,
    compute_dtype="float32",
    attention="reference",
    remat="dots",
)
# Every bias and norm there is, a table of position biases, a vocabulary that 8 does not divide.
UNTIED = replace(
    TIED,
    vocab_size=44,
    num_layers=1,
    position=T5Bias(num_buckets=8, max_distance=12, bidirectional=False),
    norm=LayerNorm(eps=1e-5),
    residual=Parallel(),
    embeddings=TokenEmbeddings(norm=RMSNorm(eps=1e-5)),
    windows=(None,),
    self_attention=DotProductAttention(
        bias=True, output_bias=True, dropout=0.1, query_key_norm=RMSNorm(eps=1e-5)
    ),
    feed_forward=MLP(gated=False, bias=True),
    tie_embeddings=False,
    scan_layers=False,
    remat="none",
)
TRAIN = {
    TIED: {"gradient_accumulation": 2, "loss_chunk": 5, "label_smoothing": 0.1, "z_loss": 0.01},
    UNTIED: {"ema_decay": 0.9},
}
# Vocabularies that neither fsdp = 2 nor tensor = 2 divides, and that one of them does.
ODD, EVEN = replace(TIED, vocab_size=41), replace(UNTIED, vocab_size=42)
TRAIN |= {ODD: TRAIN[TIED], EVEN: TRAIN[UNTIED]}


MOMENTUM = SGD(schedule=Constant(learning_rate=0.3, warmup_steps=0), momentum=0.9)


def program_on(mesh, model, optimizer=MOMENTUM):
    return program_of(model, mesh, optimizer, **TRAIN[model])


class Run(NamedTuple):
    program: TrainProgram
    start: dict
    state: TrainState
    history: list
    text: str
    """The compiled step."""
    warnings: str
    """What the compiler wrote to the standard error stream."""


@lru_cache
def three_steps(mesh, model):
    program = program_on(mesh, model)
    state, history = program.init(0), []
    start = jax.tree.map(np.asarray, state.params)
    batch = jax.device_put(packed_rows(BATCH, LENGTH, 40), program.batch_sharding)
    with jax.set_mesh(program.mesh):
        lowered = program._update.lower(state, batch)
        step, warnings = compiled_aloud(lowered)
    for _ in range(3):  # a compiled step takes no state that is laid out in another way
        state, metrics = step(state, batch)
        history.append(jax.tree.map(np.asarray, metrics))
    return Run(program, start, state, history, step.as_text(), warnings)


def compiled_aloud(lowered):
    """The compiled program, and what the compiler wrote to stderr."""
    # What a cache keeps is not compiled, and so not warned about.
    seconds = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", inf)
    # A test of jobs may have silenced everything in this process that is not fatal.
    level = jax.config.jax_logging_level
    jax.config.update("jax_logging_level", "WARNING")
    with tempfile.TemporaryFile("w+") as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            result = lowered.compile()
        finally:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
            jax.config.update("jax_logging_level", level)
            os.dup2(saved, 2)
            os.close(saved)
        file.seek(0)
        return result, file.read()


def shares(mesh, axes, shape):
    """Over how many devices the rules cut a parameter."""
    cut = [RULES[axis] for axis, size in zip(axes, shape, strict=True) if size > 1]
    return prod(mesh.shape[axis] for entry in cut for axis in mesh_axes(entry))


# The same update everywhere ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "mesh"),
    [
        *((TIED, mesh) for mesh in [(8, 1, 1), (1, 8, 1), (1, 1, 4), (2, 2, 2), (4, 1, 2)]),
        *((UNTIED, mesh) for mesh in [(8, 1, 1), (1, 1, 4), (2, 2, 2)]),
    ],
    ids=lambda value: str(value) if isinstance(value, tuple) else f"tied={value.tie_embeddings}",
)
@pytest.mark.quick("tied=True-(1, 1, 4)")
def test_a_sharded_step_is_the_unsharded_one(model, mesh):
    assert_same_steps(three_steps(mesh, model), three_steps((1, 1, 1), model))


@pytest.mark.parametrize(
    ("model", "entry"), [(ODD, None), (EVEN, "tensor")], ids=["odd, tied", "even, untied"]
)
@pytest.mark.first("odd, tied")
def test_a_vocabulary_is_cut_over_the_devices_that_divide_it(model, entry):
    actual = three_steps((2, 2, 2), model)
    assert_same_steps(actual, three_steps((1, 1, 1), model))
    for name, axes in actual.program.abstract_model.axes.items():
        if "vocab" in axes:
            assert actual.state.params[name].sharding.spec[axes.index("vocab")] == entry


def assert_same_steps(actual, expected):
    for name in ("loss", "gradient_norm", "accuracy", "tokens"):
        values, wanted = ([m[name] for m in run.history] for run in (actual, expected))
        np.testing.assert_allclose(values, wanted, rtol=1e-5, err_msg=name)
    for name, wanted in expected.state.params.items():
        close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6, err_msg=name)
        close(actual.start[name], expected.start[name])
        close(actual.state.params[name], wanted)
        if expected.state.ema is not None:
            close(actual.state.ema[name], expected.state.ema[name])
        if "key.bias" not in name:  # the softmax does not see it
            assert np.abs(wanted - expected.start[name]).max() > 1e-4, name


@pytest.mark.parametrize("model", [TIED, UNTIED], ids=["tied", "untied"])
def test_every_device_holds_its_share_and_no_more(model):
    run = three_steps((2, 2, 2), model)
    program, state = run.program, run.state
    cut = 0
    for name, axes in program.abstract_model.axes.items():
        value = state.params[name]
        count = shares(program.mesh, axes, value.shape)
        sizes = {shard.data.size for shard in value.addressable_shards}
        assert sizes == {value.size // count}, (name, axes)
        cut += count > 1
    assert cut >= len(state.params) / 2


def test_the_moments_of_the_optimizer_are_cut_like_their_parameters():
    program = program_on(
        (2, 2, 2), UNTIED, AdamW(schedule=Constant(learning_rate=0.1, warmup_steps=0))
    )
    state = program.init(0)
    by_shape = {}
    for name, value in state.params.items():
        by_shape.setdefault(value.shape, set()).add(value.sharding.shard_shape(value.shape))
        assert state.ema[name].sharding.is_equivalent_to(value.sharding, value.ndim), name
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert len(moments) == 2 * len(state.params)
    for moment in moments:
        assert moment.addressable_shards[0].data.shape in by_shape[moment.shape]


@pytest.mark.parametrize("axes", [("vocab", "vocab_embed"), ("positions", "embed")])
def test_rows_of_a_sharded_table(axes):
    random = np.random.default_rng(0)
    table, ids = random.normal(size=(16, 6)).astype("f4"), random.integers(0, 16, (8, 5))

    @jax.jit
    def rows_and_gradient(table, ids):
        rows, pull = jax.vjp(lambda table: lookup(table, ids), table)
        return rows, pull(jnp.cos(rows))[0]

    expected = rows_and_gradient(table, ids)
    np.testing.assert_array_equal(expected[0], table[ids])
    mesh = make_mesh(MeshConfig(2, 2, 2))
    with jax.set_mesh(mesh):
        placed = jax.device_put(table, parameter_sharding(mesh, "table", axes, table.shape))
        rows, gradient = rows_and_gradient(
            placed, jax.device_put(ids, NamedSharding(mesh, spec("batch", "seq")))
        )
        assert rows.sharding.spec == spec("batch", "seq", None)
    assert gradient.sharding == placed.sharding
    np.testing.assert_array_equal(rows, expected[0])
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-6)


# What the compiler makes of it ------------------------------------------------------------------


def test_nothing_is_rematerialised_involuntarily():
    mesh = make_mesh(MeshConfig(2, 2, 2))
    with jax.set_mesh(mesh):
        rows = NamedSharding(mesh, P(("data", "fsdp"), None))
        columns = jax.jit(lambda x: jax.sharding.reshard(jnp.cos(x), P(None, "tensor")))
        lowered = columns.lower(jax.ShapeDtypeStruct((16, 16), jnp.float32, sharding=rows))
        _, warnings = compiled_aloud(lowered)
    complaint = "Involuntary full rematerialization"
    assert complaint in warnings  # so it would be heard
    for model in (TIED, UNTIED):
        assert complaint not in three_steps((2, 2, 2), model).warnings


def collectives(run):
    """The kinds of communication in the compiled step, with the shape of each result."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    found = re.findall(rf"= \(?\w+\[([\d,]*)\].* ({kinds})(?:-start)?\(", run.text)
    return {(kind, shape) for shape, kind in found}


@pytest.mark.slow
@pytest.mark.parametrize("model", [TIED, UNTIED], ids=["tied", "untied"])
def test_replicas_do_nothing_but_add_up(model):
    kinds = {kind for kind, _ in collectives(three_steps((8, 1, 1), model))}
    assert kinds == {"all-reduce"}


def gathered_parameters(run):
    """Those of which some device receives the whole, or the whole of one layer."""
    gathered = {shape for kind, shape in collectives(run) if kind in ("all-gather", "all-to-all")}
    return {
        name
        for name, parameter in run.program.abstract_model.shapes.items()
        if not run.program.param_shardings[name].is_fully_replicated
        for shape in (parameter.shape, parameter.shape[1:])
        if ",".join(map(str, shape)) in gathered
    }


@pytest.mark.more
@pytest.mark.slow
def test_the_tensor_axis_gathers_no_parameter():
    assert not gathered_parameters(three_steps((1, 1, 4), TIED))
    assert not gathered_parameters(three_steps((1, 1, 4), UNTIED))
    # As fully sharded data parallelism does, layer by layer.
    matrices = {name for name, axes in AbstractModel(TIED.build).axes.items() if "embed" in axes}
    assert matrices <= gathered_parameters(three_steps((1, 8, 1), TIED))


# The table --------------------------------------------------------------------------------------


def test_every_axis_of_every_experiment_has_a_rule_and_every_rule_an_axis():
    sizes = {"vocab_size": 8, "num_layers": 1, "model_dim": 8, "num_heads": 1, "mlp_dim": 8}
    others = [DecoderConfig(**sizes), EncoderConfig(**sizes, first_block=ConvolutionBlock())]
    models = [TIED, UNTIED, *(load_config(name).model for name in EXPERIMENTS), *others]
    found = [AbstractModel(model.build).axes.values() for model in models]
    of_activations = {"batch", "seq", "rank"}
    assert {axis for axes in found for each in axes for axis in each} | of_activations == set(RULES)


def test_rules_name_axes_of_the_mesh():
    for axis, rule in RULES.items():
        assert set(mesh_axes(rule)) <= set(MESH_AXES), axis


def test_a_parameter_goes_where_its_axes_say():
    mesh = make_mesh(MeshConfig(2, 2, 2))

    def placed(axes, shape):
        return parameter_sharding(mesh, "kernel", axes, shape).spec

    assert placed(("embed", "heads", "head_dim"), (8, 4, 2)) == P("fsdp", "tensor", None)
    assert placed(("vocab", "vocab_embed"), (8, 4)) == P(("tensor", "fsdp"), None)
    # The one head of multi-query attention is on every device.
    assert placed(("embed", "kv_heads", "head_dim"), (8, 1, 2)) == P("fsdp", None, None)


def test_a_name_without_a_rule_is_refused():
    mesh = make_mesh(MeshConfig())
    with pytest.raises(ConfigError, match=r"parameter w: axis 'embd' has no rule; .*'embed'"):
        parameter_sharding(mesh, "w", ("embd", "mlp"), (4, 4))
    with pytest.raises(KeyError, match="embd"):
        spec("batch", "embd")


@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        (("heads", "mlp"), (4, 4)),
        (("embed", "vocab"), (4, 4)),
        (("embed", "embed"), (4, 4)),
        (("kv_heads", "heads"), (1, 4)),
    ],
)
def test_two_axes_that_want_the_same_devices_are_refused(axes, shape):
    with pytest.raises(ConfigError, match=r"parameter w: .* twice"):
        parameter_sharding(make_mesh(MeshConfig()), "w", axes, shape)


@pytest.mark.parametrize("value", [5, 6, 12])
def test_a_size_that_does_not_divide_is_refused_by_name(value):
    """Whatever field it came from: here the width of factored embeddings (ALBERT)."""
    model = EncoderConfig(
        vocab_size=40,
        num_layers=1,
        model_dim=24,
        num_heads=8,
        mlp_dim=16,
        embeddings=TokenEmbeddings(norm=LayerNorm(eps=1e-12), dim=value),
        heads=(MaskedLanguageModel(),),
    )
    sizes = {"data": 1, "fsdp": 4, "tensor": 2}
    if value == 12:
        check_mesh(model, sizes)
        return
    with pytest.raises(ConfigError, match=rf"parameter \S+ .*= {value} is not div.* mesh.fsdp = 4"):
        check_mesh(model, sizes)
    check_mesh(model, sizes | {"fsdp": 1})


def test_a_spec_needs_a_mesh():
    assert spec("batch", "seq", None) is None
    with jax.set_mesh(make_mesh(MeshConfig(2, 2, 2))):
        assert spec("batch", "seq", None) == P(("data", "fsdp"), None, None)
    assert spec("vocab") is None


# The mesh ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (MeshConfig(), (1, 1, 1, 1, 1)),
        (MeshConfig(data=-1), (8, 1, 1, 1, 1)),
        (MeshConfig(fsdp=-1, tensor=2), (1, 4, 2, 1, 1)),
        (MeshConfig(data=2, tensor=3), (2, 1, 3, 1, 1)),
        (MeshConfig(data=2, sequence=-1), (2, 1, 1, 4, 1)),
        (MeshConfig(fsdp=2, expert=-1), (1, 2, 1, 1, 4)),
    ],
)
def test_sizes_of_the_mesh(config, sizes):
    mesh = make_mesh(config)
    assert tuple(mesh.shape.values()) == sizes
    assert mesh.axis_names == MESH_AXES
    assert set(mesh.axis_types) == {AxisType.Explicit}
    assert list(mesh.devices.flat) == jax.devices()[: prod(sizes)]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 3, "tensor": 3}, "needs 9 devices, 8 are here.*JAX_NUM_CPU_DEVICES=9"),
        ({"data": -1, "tensor": 3}, "3 does not divide the 8 devices"),
        ({"fsdp": 0}, r"mesh\.fsdp = 0"),
        ({"data": -2}, r"mesh\.data = -2"),
        ({"data": -1, "fsdp": -1}, "only one axis"),
    ],
)
def test_a_mesh_that_does_not_fit_says_why(sizes, message):
    with pytest.raises(ConfigError, match=message):
        make_mesh(MeshConfig(**sizes))


# Slices of TPUs ---------------------------------------------------------------------------------


class Tpu(NamedTuple):
    """What the order of a mesh depends on."""

    id: int
    slice_index: int
    coords: tuple[int, int, int]
    process_index: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v5"
    core_on_chip: int = 0


def two_slices():
    """Two slices of 2x2x1 chips."""
    places = [(x, y, 0) for y in range(2) for x in range(2)]
    return [Tpu(4 * n + i, n, place, n) for n in range(2) for i, place in enumerate(places)]


SLICED = [(2, 4, 1, 1, 1), (2, 2, 1, 2, 1), (4, 1, 2, 1, 1), (8, 1, 1, 1, 1), (2, 1, 1, 1, 4)]


@pytest.mark.parametrize("sizes", SLICED)
def test_only_the_data_axis_crosses_slices(sizes, monkeypatch):
    monkeypatch.setattr(sharding, "Mesh", lambda grid, *_, **__: grid)
    grid = make_mesh(MeshConfig(*sizes), two_slices())
    assert grid.shape == sizes
    assert len({device.id for device in grid.flat}) == 8
    for part in range(sizes[0]):
        inside = {device.slice_index for device in grid[part].flat}
        assert inside == {part * 2 // sizes[0]}


def test_slices_along_another_axis_are_refused():
    with pytest.raises(ConfigError, match=r"mesh.data = 1: .* 2 slices.*--mesh.data 2"):
        make_mesh(MeshConfig(fsdp=8), two_slices())
