"""Every experiment on a pod that is not here: lowered for it, and compiled where libtpu is."""

import importlib.util
import re
from dataclasses import replace
from math import prod
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from jaxformer.config import load_config, validate
from jaxformer.errors import ConfigError
from jaxformer.sharding import MESH_AXES, MeshConfig, make_mesh
from jaxformer.training.optim import Adafactor, AdamW, Lion, Muon
from jaxformer.training.step import TrainProgram

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))
each_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
# From 256 devices down to what a batch of eight rows can use.
PODS = [(8, 16, 2), (8, 8, 4), (4, 8, 2), (2, 4, 2)]
TPU = AbstractDevice("TPU v5p", 2, "tpu")
GIB = 2**30


def config_for_pod(path):
    """An experiment on the largest pod that its heads, batch and vocabulary divide over."""
    config = load_config(str(path))
    for sizes in PODS:
        candidate = replace(config, mesh=MeshConfig(*sizes))
        try:
            validate(candidate, prod(sizes))
        except ConfigError:
            continue
        return candidate
    raise AssertionError(f"{path.stem} runs on none of {PODS}")


def abstract_program(config, device=TPU):
    sizes = config.mesh.sizes(prod(vars(config.mesh).values()))
    explicit = (AxisType.Explicit,) * 3
    mesh = AbstractMesh(sizes, MESH_AXES, axis_types=explicit, abstract_device=device)
    return TrainProgram(config.model, config.optimizer, config.train, mesh)


def lowered(config, device=TPU):
    rows, length = config.data.batch_size, config.data.sequence_length
    return abstract_program(config, device).lower(rows, length, lowering_platforms=("tpu",))


def bytes_of(tree):
    """Of all arrays together, and of what one device holds of them."""
    leaves = jax.tree.leaves(tree)
    whole = sum(x.size * x.dtype.itemsize for x in leaves)
    return whole, sum(prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)


def custom_calls(text):
    """How many kernels of Mosaic, the compiler of Pallas on TPUs, a lowered program calls."""
    return text.count("@tpu_custom_call")


@each_config
def test_the_step_lowers_for_a_pod(path):
    config = config_for_pod(path)
    before = sum(x.nbytes for x in jax.live_arrays())
    step = lowered(config)
    assert sum(x.nbytes for x in jax.live_arrays()) - before < 2**20
    assert f"mhlo.num_partitions = {prod(vars(config.mesh).values())}" in step.as_text()
    state, metrics = step.out_info
    assert metrics["loss"].shape == ()
    shapes = abstract_program(config).state_shapes
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), shapes
    )


@each_config
def test_the_state_is_cut_over_the_pod(path):
    config = config_for_pod(path)
    state = abstract_program(config).state_shapes
    for part in (state.params, state.opt_state):
        whole, share = bytes_of(part)
        assert share < 1.1 * whole / (config.mesh.fsdp * config.mesh.tensor)


@pytest.mark.parametrize("optimizer", [Adafactor(), AdamW(), Lion(), Muon()])
def test_every_optimizer_lowers_for_a_pod(optimizer):
    config = config_for_pod(CONFIGS[0].with_name("tiny_decoder.py"))
    lowered(replace(config, optimizer=optimizer))


def test_a_deeper_model_is_not_a_longer_program():
    config = config_for_pod(CONFIGS[0].with_name("llama3_8b.py"))
    shallow = replace(config, model=replace(config.model, num_layers=2))
    counts = [lowered(c).as_text().count("dot_general") for c in (config, shallow)]
    assert counts[0] == counts[1] > 0


def test_a_tpu_pod_gets_the_splash_kernel():
    config = config_for_pod(CONFIGS[0].with_name("llama3_8b.py"))
    # Forward, again in the backward pass (remat), the gradient of queries, that of keys and values.
    assert custom_calls(lowered(config).as_text()) == 4
    assert custom_calls(lowered(config, device=None).as_text()) == 0


def test_no_device_ever_holds_a_whole_parameter_while_initialising():
    config = load_config(str(CONFIGS[0].with_name("llama3_8b.py")))
    mesh = make_mesh(MeshConfig(fsdp=4, tensor=2))
    program = TrainProgram(config.model, config.optimizer, config.train, mesh)
    with jax.set_mesh(mesh):
        compiled = program._init.lower(jax.random.key(0)).compile()
    whole, share = bytes_of(program.state_shapes.params)
    memory = compiled.memory_analysis()
    # Parameters and two moments; besides them, the largest parameters while they are drawn.
    assert memory.output_size_in_bytes < 1.01 * 3 * whole / 8
    assert memory.temp_size_in_bytes < 1.5 * share
    made = set(re.findall(r"f32\[([\d,]+)\]", compiled.as_text()))
    for name, shape in program.template.shapes.items():
        sharding = program.param_shardings[name]
        if sharding.shard_shape(shape.shape) != shape.shape:
            assert ",".join(map(str, shape.shape)) not in made, name


@pytest.mark.slow
@pytest.mark.tpu_compiler
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
def test_llama_3_8b_compiles_and_fits_64_chips(monkeypatch):
    from jax.experimental import topologies

    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")  # there is no cloud to ask about its TPUs
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5p:4x4x4").devices
    config = load_config(str(CONFIGS[0].with_name("llama3_8b.py")))
    validate(config, len(devices))
    mesh = make_mesh(config.mesh, devices)
    program = TrainProgram(config.model, config.optimizer, config.train, mesh)
    rows, length = config.data.batch_size, config.data.sequence_length
    step = program.lower(rows, length)
    assert custom_calls(step.as_text()) == 4
    memory = step.compile().memory_analysis()
    _, share = bytes_of(program.state_shapes)
    # The state, donated, is the only thing that stays: parameters, two moments, the batch.
    assert memory.argument_size_in_bytes < 1.02 * share
    assert memory.alias_size_in_bytes > 0.98 * share
    # With full remat a layer keeps its input; the loss has a chunk of logits and their gradients.
    model = config.model
    inputs_of_layers = model.num_layers * model.model_dim * 2 * rows * length // len(devices)
    logits = 4 * model.vocab_size * config.train.loss_chunk * rows // len(devices)
    temporary = memory.temp_size_in_bytes
    assert temporary < inputs_of_layers + 3 * logits + 8 * GIB
    assert memory.argument_size_in_bytes + temporary < 95 * GIB
