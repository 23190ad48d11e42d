"""Losses and gradients with the experts of each mixture on several devices are those of one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_run import on_mesh, tiny_config

from jaxformer.checkpoints.restore import read_arrays
from jaxformer.config import Config, TrainConfig, validate
from jaxformer.data import DataConfig
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.errors import ConfigError
from jaxformer.functional import ClampedSwiGLU, SigmoidTopK, TopKSoftmax
from jaxformer.models import DecoderConfig
from jaxformer.models.lora import LoRA
from jaxformer.nn import BalanceLoss, Experts, SharedExpert, ZLoss
from jaxformer.optim import AdamW, Constant
from jaxformer.training.loop import train
from jaxformer.training.step import TrainProgram

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
MESHES = [
    MeshConfig(fsdp=2, tensor=2, expert=2),
    MeshConfig(fsdp=2, expert=2),
    MeshConfig(tensor=2, expert=4),
    MeshConfig(data=2, expert=2),
    MeshConfig(sequence=2, expert=2),
    MeshConfig(expert=8),
]


def model_of(mixture, **fields):
    sizes = SIZES | {"windows": (None,) * SIZES["num_layers"], "feed_forward": mixture} | fields
    return DecoderConfig(**sizes, compute_dtype="float32")


def program_of(model, config, train=None):
    mesh = make_mesh(config, jax.devices()[: np.prod(config.sizes(8))])
    return TrainProgram(model, OPTIMIZER, train or TrainConfig(), mesh)


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
def found(model, config, train=None):
    """The gradients, the loss and the metrics on a mesh."""
    program = program_of(model, config, train)
    params = program.init(0).params
    random = np.random.default_rng(1)
    for name, x in params.items():  # biases begin as zeros
        drawn = random.normal(0, 0.4, x.shape).astype(np.float32)
        params[name] = jax.device_put(drawn, x.sharding)
    placed = {name: jax.device_put(x, program.batch_sharding) for name, x in batch().items()}

    def of_step(params, batch, key):
        gradients, (sums, metrics) = program._gradients(params, {}, batch, key, jnp.zeros((), int))
        return gradients, sums, metrics

    with jax.set_mesh(program.mesh):
        return jax.device_get(jax.jit(of_step)(params, placed, jax.random.key(1)))


def assert_same(model, config, train=None):
    expected, actual = found(model, MeshConfig(), train), found(model, config, train)
    named = jax.tree_util.tree_flatten_with_path(expected)[0]
    top = max(float(np.abs(y).max()) for y in jax.tree.leaves(expected[0]))
    for (path, y), x in zip(named, jax.tree.leaves(actual), strict=True):
        scale = max(np.abs(y).max(), 1e-3 * top)
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * scale, err_msg=str(path))


@pytest.mark.more
@pytest.mark.quick("*-DeepSeek")
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("mesh", MESHES[:1], ids=str)
def test_gradients_and_losses_are_those_of_one_device(name, mesh):
    assert_same(model_of(MIXTURES[name]), mesh)


@pytest.mark.more
@pytest.mark.quick("*2 x 2", "*1 x 8")
@pytest.mark.parametrize("mesh", MESHES[1:], ids=str)
def test_on_several_axes(mesh):
    assert_same(model_of(MIXTURES["DeepSeek"]), mesh)


@pytest.mark.more
@pytest.mark.quick("fields2-*")
@pytest.mark.parametrize(
    ("fields", "train", "sizes"),
    [
        ({"remat": "full"}, TrainConfig(gradient_accumulation=2), {"data": 2}),
        ({"scan_layers": True, "remat": "dots"}, TrainConfig(loss_chunk=4), {"data": 2}),
        ({}, TrainConfig(lora=LORA), {"fsdp": 2, "tensor": 2}),
        ({"feed_forward": CAPACITY}, TrainConfig(), {"data": 2, "sequence": 2}),
    ],
)
def test_layers_and_batches_in_parts_factors_and_capacities(fields, train, sizes):
    assert_same(model_of(MIXTURES["Mixtral"], **fields), MeshConfig(expert=2, **sizes), train)


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
    program = program_of(model_of(MIXTURES["DeepSeek"]), MeshConfig(fsdp=2, expert=4))
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


@pytest.mark.more
@pytest.mark.slow
def test_a_run_goes_on_with_another_axis(tmp_path):
    train(small(expert=2, steps=2), tmp_path / "run")
    train(small(expert=4, steps=4), tmp_path / "run")
    train(small(steps=4), tmp_path / "one")
    folders = [tmp_path / name / "checkpoints" / "4" for name in ("run", "one")]
    for (name, left), (_, right) in zip(*map(read_arrays, folders), strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-4, atol=2e-5, err_msg=name)


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
