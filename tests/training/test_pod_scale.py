"""Every experiment on a pod that is not here: lowered for it."""

import re
from dataclasses import replace
from functools import lru_cache
from math import prod
from pathlib import Path

import jax
import pytest
from experiments import WITH_MODEL
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from pods import CHIP, bytes_of, custom_calls

from jaxformer.config import load_config, validate
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.distributed.sharding import MESH_AXES
from jaxformer.errors import ConfigError
from jaxformer.models import MaskedLanguageModel
from jaxformer.optim import LAMB, Adafactor, AdamW, Lion, Muon
from jaxformer.training.loss import DistillationLoss
from jaxformer.training.step import TrainProgram
from jaxformer.zoo.recipes import sizes_of

pytestmark = pytest.mark.optimized

CONFIGS = Path(__file__).parents[2] / "configs"
# One of each architecture, and of what is cut in its own way; the others are slow.
QUICK = ("bert", "gemma", "gpt2", "llama:llama3-405b", "mistral", "t5:11b", "vit:22b")
# Their norms, convolutions and projections to latents, which are whole or cut along one axis, are
# more than a tenth.
UNEVEN = {
    "whisper.py:base",
    "whisper.py:small",
    "deepseek_v3.py",
    "wav2vec2.py",
    "wav2vec2.py:base",
    "wav2vec2.py:large",
}
# Other names of sizes that are here under their own (see test_zoo.py).
ALIASES = {"gpt2_small.py", "llama3_8b.py", "mistral_7b.py"}
FILES = [path.name for path in WITH_MODEL if path.name not in ALIASES]
# From 256 devices down to what a batch of eight rows can use.
PODS = [(8, 16, 2), (2, 32, 4), (8, 8, 4), (4, 8, 2), (4, 8, 1), (2, 4, 2), (8, 2, 1)]
TPU = AbstractDevice("TPU v5p", 2, "tpu")


def recipes():
    """Every file at the size it has by itself, and at each other size."""
    for file in FILES:
        yield pytest.param(file, id=file.removesuffix(".py"))
        sizes = sizes_of(file)
        for size in sizes if len(sizes) > 1 else ():
            yield pytest.param(f"{file}:{size}", id=f"{file.removesuffix('.py')}:{size}")


each_recipe = pytest.mark.parametrize("recipe", [*recipes()])


def abstract_program(config, device=TPU, loss=None):
    sizes = config.mesh.sizes(prod(vars(config.mesh).values()))
    explicit = (AxisType.Explicit,) * len(MESH_AXES)
    mesh = AbstractMesh(sizes, MESH_AXES, axis_types=explicit, abstract_device=device)
    return TrainProgram(config.model, config.optimizer, config.train, mesh, loss)


@lru_cache(maxsize=1)
def on_pod(recipe):
    """An experiment, and its program, on the largest pod that it divides over and that holds it."""
    config = load_config(str(CONFIGS / recipe))
    for sizes in PODS:
        candidate = replace(config, mesh=MeshConfig(*sizes))
        try:
            validate(candidate, prod(sizes))
        except ConfigError:
            continue
        program = abstract_program(candidate)
        if bytes_of(program.state_shapes)[1] < CHIP:
            return candidate, program
    raise AssertionError(f"{recipe} runs on none of {PODS}")


def lowered(config, program):
    lengths = config.batch_lengths
    return program.lower(config.data.batch_size, lengths, lowering_platforms=("tpu",))


@pytest.mark.first("t5:11b")
@each_recipe
@pytest.mark.quick("t5:11b", "llama:llama3-405b")
def test_the_step_lowers_for_a_pod_whose_chips_hold_their_share_of_the_state(recipe):
    config, program = on_pod(recipe)
    state = program.state_shapes
    # Of a tiny model the norms, which are whole, would show.
    if sizes_of(recipe.split(":")[0]) and recipe not in UNEVEN:
        whole, share = bytes_of((state.params, state.opt_state))
        assert share < 1.1 * whole / (config.mesh.fsdp * config.mesh.tensor)

    before = sum(x.nbytes for x in jax.live_arrays())
    step = lowered(config, program)
    assert sum(x.nbytes for x in jax.live_arrays()) - before < 2**20
    assert f"mhlo.num_partitions = {prod(vars(config.mesh).values())}" in step.as_text()
    after, metrics = step.out_info
    assert metrics["loss"].shape == ()
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )


@pytest.mark.more
def test_distillation_lowers_with_its_teacher():
    config, student = on_pod("distilbert.py")
    teacher_config = replace(load_config(str(CONFIGS / "bert.py")), mesh=config.mesh)
    teacher = abstract_program(teacher_config)
    common = [MaskedLanguageModel().name]
    parameters = teacher.state_shapes.params
    settings = config.train.distillation
    loss = DistillationLoss(common, settings, teacher.abstract_model, parameters, common)
    step = lowered(config, abstract_program(config, loss=loss))
    _, metrics = step.out_info
    assert {"loss", "soft_loss", "cosine_loss"} <= set(metrics)
    assert bytes_of((student.state_shapes, parameters))[1] < CHIP


@pytest.mark.more
@pytest.mark.quick("Muon")
@pytest.mark.parametrize(
    "optimizer",
    [Adafactor(), AdamW(), LAMB(), Lion(), Muon()],
    ids=lambda each: type(each).__name__,
)
def test_every_optimizer_lowers_for_a_pod(optimizer):
    config, _ = on_pod("tiny_decoder.py")
    config = replace(config, optimizer=optimizer)
    lowered(config, abstract_program(config))


@pytest.mark.more
def test_a_deeper_model_is_not_a_longer_program():
    config, program = on_pod("llama3_8b.py")
    shallow = replace(config, model=replace(config.model, num_layers=2))
    steps = lowered(config, program), lowered(shallow, abstract_program(shallow))
    counts = [step.as_text().count("dot_general") for step in steps]
    assert counts[0] == counts[1] > 0


@pytest.mark.more
def test_a_tpu_pod_gets_the_splash_kernel():
    config, program = on_pod("llama3_8b.py")
    # Forward, again in the backward pass (remat), the gradient of queries, that of keys and values.
    assert custom_calls(lowered(config, program).as_text()) == 4
    elsewhere = abstract_program(config, device=None)
    assert custom_calls(lowered(config, elsewhere).as_text()) == 0


@pytest.mark.slow
def test_no_device_ever_holds_a_whole_parameter_while_initialising():
    config = load_config(str(CONFIGS / "llama3_8b.py"))
    mesh = make_mesh(MeshConfig(fsdp=4, tensor=2))
    program = TrainProgram(config.model, config.optimizer, config.train, mesh)
    with jax.set_mesh(mesh):
        compiled = program._init.lower(jax.random.key(0)).compile()
    whole, share = bytes_of(program.state_shapes.params)
    memory = compiled.memory_analysis()
    # Parameters and two moments; in addition, the largest parameters while they are drawn.
    assert memory.output_size_in_bytes < 1.01 * 3 * whole / 8
    assert memory.temp_size_in_bytes < 1.5 * share
    made = set(re.findall(r"f32\[([\d,]+)\]", compiled.as_text()))
    for name, shape in program.abstract_model.shapes.items():
        sharding = program.param_shardings[name]
        if sharding.shard_shape(shape.shape) != shape.shape:
            assert ",".join(map(str, shape.shape)) not in made, name
