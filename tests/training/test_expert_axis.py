"""Losses and gradients with the experts of each mixture on several devices are those of one."""

import dataclasses
import functools

import chex
import jax
import numpy as np
import pytest
from tiny_models import random_arrays
from tiny_run import on_mesh, tiny_config
from train_steps import assert_same_gradients, gradients, program_of

from jaxformer.checkpoints.restore import read_arrays
from jaxformer.config import Config, validate
from jaxformer.data import DataConfig
from jaxformer.distributed import MeshConfig
from jaxformer.errors import ConfigError
from jaxformer.functional import ClampedSwiGLU, SigmoidTopK, TopKSoftmax
from jaxformer.models import DecoderConfig
from jaxformer.models.lora import LoRA
from jaxformer.nn import BalanceLoss, Experts, SharedExpert, ZLoss
from jaxformer.optim import AdamW, Constant
from jaxformer.training.loop import train

pytestmark = pytest.mark.usefixtures("compiled_here")
ROWS, LENGTH = 8, 6
SIZES = {"vocab_size": 64, "num_layers": 2, "model_dim": 16, "num_heads": 4, "mlp_dim": 16}
OPTIMIZER = AdamW(schedule=Constant(learning_rate=1e-3))
LOSSES = (BalanceLoss(weight=0.3, over="all_layers"), ZLoss(weight=0.2))
LORA = LoRA(rank=2, alpha=1.0, targets=("query", "gate", "up", "down", "router"))
MIXTURES = {
    "Mixtral": Experts(num=8, per_token=2, dim=8, losses=LOSSES),
    "gpt-oss": Experts(
        num=8, per_token=3, dim=8, router=TopKSoftmax(), bias=True, activation=ClampedSwiGLU()
    ),
    "DeepSeek": Experts(
        num=8,
        per_token=2,
        dim=8,
        router=SigmoidTopK(groups=4, kept_groups=2, scale=2.5),
        shared=SharedExpert(dim=8),
        dense_layers=1,
    ),
    "Qwen": Experts(num=8, per_token=2, dim=8, shared=SharedExpert(dim=8, gated=True)),
}
CAPACITY = dataclasses.replace(MIXTURES["Mixtral"], capacity=0.8)
# The sizes of data, fsdp, tensor, sequence and expert.
MESHES = [
    (1, 2, 2, 1, 2),
    (1, 2, 1, 1, 2),
    (1, 1, 2, 1, 4),
    (2, 1, 1, 1, 2),
    (1, 1, 1, 2, 2),
    (1, 1, 1, 1, 8),
]


def model_of(mixture, **fields):
    sizes = SIZES | {"windows": (None,) * SIZES["num_layers"], "feed_forward": mixture} | fields
    return DecoderConfig(**sizes, compute_dtype="float32")


def batch():
    """Rows of which the first half ends with padding."""
    random = np.random.default_rng(0)
    tokens = random.integers(1, 64, (ROWS, LENGTH + 1), dtype=np.int32)
    segments = np.ones((ROWS, LENGTH), np.int32)
    segments[: ROWS // 2, 4:] = 0
    weights = (segments > 0).astype(np.float32)
    arrays = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
    return arrays | {"weights": weights, "segments": segments}


@functools.lru_cache
def found(model, mesh, options):
    """The gradients, the loss and the metrics on a mesh."""
    program = program_of(model, mesh, **dict(options))
    return gradients(program, batch(), random_arrays(program.abstract_model.shapes))


def assert_same(model, mesh, **options):
    expected, actual = (found(model, each, (*options.items(),)) for each in ((1,), mesh))
    assert_same_gradients(actual, expected)


@pytest.mark.more
@pytest.mark.quick("*-DeepSeek")
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("mesh", MESHES[:1], ids=str)
def test_gradients_and_losses_are_those_of_one_device(name, mesh):
    assert_same(model_of(MIXTURES[name]), mesh)


@pytest.mark.more
@pytest.mark.quick("*2, 2)")
@pytest.mark.parametrize("mesh", MESHES[1:], ids=str)
def test_on_several_axes(mesh):
    assert_same(model_of(MIXTURES["DeepSeek"]), mesh)


@pytest.mark.more
@pytest.mark.quick("fields2-*")
@pytest.mark.parametrize(
    ("fields", "train", "mesh"),
    [
        ({"remat": "full"}, {"gradient_accumulation": 2}, (2, 1, 1, 1, 2)),
        ({"scan_layers": True, "remat": "dots"}, {"loss_chunk": 4}, (2, 1, 1, 1, 2)),
        ({"num_layers": 1, "windows": (None,)}, {"lora": LORA}, (1, 2, 2, 1, 2)),
        ({"feed_forward": CAPACITY}, {}, (2, 1, 1, 2, 2)),
    ],
)
def test_layers_and_batches_in_parts_factors_and_capacities(fields, train, mesh):
    assert_same(model_of(MIXTURES["Mixtral"], **fields), mesh, **train)


def test_a_capacity_below_one_token_is_refused():
    mixture = Experts(num=8, per_token=2, capacity=0.1)
    data = DataConfig(sequence_length=32, batch_size=24)
    model = dataclasses.replace(model_of(mixture), vocab_size=4096)
    config = Config(model=model, data=data)
    with pytest.raises(ConfigError, match=r"capacity = 0\.1.* 0\.125"):
        validate(config, 1)
    mixture = dataclasses.replace(mixture, capacity=0.125)
    validate(dataclasses.replace(config, model=model.with_fields(feed_forward=mixture)), 1)


def test_each_device_keeps_its_experts_and_their_optimizer_state():
    program = program_of(model_of(MIXTURES["DeepSeek"]), (1, 2, 1, 1, 4), OPTIMIZER)
    axes = program.abstract_model.axes
    kernels = {(1, 8, 16, 8), (1, 8, 8, 16)}
    for name, x in program.state_shapes.params.items():
        assert ("expert" in axes[name]) == ("expert" in x.sharding.spec) == (x.shape in kernels)
    moments = [x for x in jax.tree.leaves(program.state_shapes.opt_state) if x.shape in kernels]
    assert len(moments) == 6
    for x in moments:
        assert x.sharding.shard_shape(x.shape) == (1, 2, 8, 8)


def small(expert=1, **settings):
    """A run with four experts, on the devices of an axis."""
    config = tiny_config(checkpoint_interval=2, loggers=(), **settings)
    mixture = Experts(num=4, per_token=2, dim=16)
    model = dataclasses.replace(config.model, feed_forward=mixture)
    changed = dataclasses.replace(config, model=model, optimizer=OPTIMIZER)
    return on_mesh(changed, expert=expert)


@pytest.mark.slow
def test_a_run_goes_on_with_another_axis(tmp_path):
    train(small(expert=2, steps=2), tmp_path / "run")
    train(small(expert=4, steps=4), tmp_path / "run")
    train(small(steps=4), tmp_path / "one")
    run, one = (dict(read_arrays(tmp_path / name / "checkpoints" / "4")) for name in ("run", "one"))
    chex.assert_trees_all_close(run, one, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("model", "sizes", "nearest"),
    [
        (DecoderConfig(**SIZES), {"expert": 2}, {"data": 2, "expert": 1}),
        (model_of(MIXTURES["Mixtral"]), {"expert": 6}, {"data": 3, "expert": 2}),
        (model_of(Experts(num=5)), {"fsdp": 2, "expert": -1}, {"data": 4, "expert": 1}),
    ],
)
def test_what_the_axis_does_not_divide_is_refused(model, sizes, nearest):
    data = DataConfig(sequence_length=32, batch_size=24)
    config = Config(model=dataclasses.replace(model, vocab_size=4096), data=data)
    options = " ".join(f"--mesh.{name} {size}" for name, size in nearest.items())
    with pytest.raises(ConfigError, match=f"mesh.expert = .*{options}"):
        validate(dataclasses.replace(config, mesh=MeshConfig(**sizes)), 8)
    validate(dataclasses.replace(config, mesh=MeshConfig(**sizes | nearest)), 8)
