"""Terms and metrics that parts of a model add: their sums, gradients and places in the log."""

from dataclasses import dataclass, replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import batch_for, random_parameters, structure_of, tiny, tiny_encoder_decoder
from tiny_run import tiny_config
from train_steps import program_of, stepped

import jaxformer
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.functional import add_loss, add_metric
from jaxformer.functional.losses.terms import collect_terms
from jaxformer.nn import MLP, FeedForward, FeedForwardConfig
from jaxformer.optim import SGD, Constant
from jaxformer.training.logging.metrics_writer import read_metrics

pytestmark = pytest.mark.more

WEIGHT = 0.3


@dataclass(frozen=True)
class Penalised(FeedForwardConfig):
    """A feed-forward layer that adds the mean square of its output to the loss."""

    name: str = "energy"

    def build(self, key, config, position, window):
        return PenalisedLayer(key, config, self.name)


class PenalisedLayer(FeedForward):
    def __init__(self, key, config, title):
        super().__init__(key, config)
        self.title = title

    def __call__(self, x, context, key):
        y = super().__call__(x, context, key)
        add_loss(self.title, jnp.mean(jnp.square(y)), weight=WEIGHT)
        add_metric("positive", jnp.mean((y > 0).astype(jnp.float32)))
        return y


def config_with(**changes):
    sizes = {"num_layers": 4, "model_dim": 24, "num_heads": 4, "num_kv_heads": 4, "mlp_dim": 16}
    return tiny(**({"feed_forward": Penalised(), "vocab_size": 32} | sizes | changes))


def batch_of(config, rows=8):
    found = batch_for(config, rows=rows)
    return {name: found[name] for name in config.batch_spec(rows, {"inputs": 7})}


def descended(config, sizes=(1, 1, 1), **settings):
    """The parameters before and after a step of plain gradient descent, and its metrics."""
    optimizer = SGD(schedule=Constant(learning_rate=1.0, warmup_steps=0), momentum=0.0)
    program = program_of(config, sizes, optimizer, clip_norm=None, **settings)
    state, (metrics,) = stepped(program, batch_of(config))
    return *jax.device_get((program.init(0).params, state.params)), metrics


def written_by_hand(params, config, batch):
    """The loss with the terms, from the outputs of each layer's feed-forward sublayer."""
    model = structure_of(config).module(params)
    recorded = jaxformer.functional.activations.with_cache(model.loss, "*.hook_mlp_out")
    (_, sums), outputs = recorded(batch)
    assert len(outputs) == config.num_layers
    energies = [jnp.mean(jnp.square(y)) for y in outputs.values()]
    heads = sum(term.loss / term.weight for term in sums.values())
    return heads + WEIGHT * sum(energies), (heads, sum(energies))


LAYOUTS = {
    "scanned": {"scan_layers": True},
    "unrolled": {},
    "recomputed": {"scan_layers": True, "remat": "full"},
    "of two kinds": {"scan_layers": True, "windows": (3, None)},
    "repeated": {"scan_layers": True, "layer_repeats": 2, "remat": "dots"},
}


@pytest.mark.parametrize("changes", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.quick("scanned")
def test_the_gradient_is_that_of_a_loss_written_by_hand(changes):
    config = config_with(**changes)
    before, after, metrics = descended(config)
    grad = jax.jit(jax.grad(lambda p: written_by_hand(p, config, batch_of(config)), has_aux=True))
    expected, (loss, energy) = grad(before)
    found = jax.tree.map(np.subtract, before, after)
    chex.assert_trees_all_close(found, expected, rtol=5e-5, atol=1e-6)
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert metrics["energy"] == pytest.approx(float(energy), rel=1e-5)
    assert metrics["total_loss"] == pytest.approx(float(loss + WEIGHT * energy), rel=1e-5)
    assert 0.2 < metrics["positive"] < 0.8


MESHES = {
    "in parts": ((1, 1, 1), 4),
    "copies": ((8, 1, 1), 1),
    "copies in parts": ((4, 1, 1), 2),
    "all axes": ((2, 2, 2), 1),
    "all axes in parts": ((2, 2, 2), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "parts"), MESHES.values(), ids=MESHES)
def test_accumulation_and_meshes_change_nothing(sizes, parts):
    config = config_with(scan_layers=True, remat="full")
    _, expected, whole = descended(config)
    _, found, metrics = descended(config, sizes, gradient_accumulation=parts)
    chex.assert_trees_all_close(found, expected, rtol=5e-5, atol=1e-6)
    for name in ("loss", "energy", "total_loss", "positive"):
        assert metrics[name] == pytest.approx(whole[name], rel=1e-5)


def test_both_stacks_of_an_encoder_decoder_add_theirs():
    config = tiny_encoder_decoder(feed_forward=Penalised(), scan_layers=True)
    batch = {name: jnp.asarray(x) for name, x in batch_for(config, rows=3).items()}
    model = structure_of(config).module(random_parameters(config))
    _, terms = jax.jit(collect_terms(model.loss))(batch)
    assert terms["count", "positive"] == config.num_layers + config.num_decoder_layers
    assert terms["weighted", "energy"] == pytest.approx(WEIGHT * float(terms["loss", "energy"]))


def test_without_terms_and_outside_of_training_nothing_is_added():
    config = config_with(scan_layers=True)
    plain = replace(config, feed_forward=MLP())
    model, parameters = structure_of(config), random_parameters(config)
    batch = batch_of(config)

    def losses(structure):
        return lambda p: structure.module(p).loss(batch)

    def program(structure, collects=False):
        loss = losses(structure)
        return str(jax.make_jaxpr(collect_terms(loss) if collects else loss)(parameters).jaxpr)

    # A model without terms has the same program whether or not someone collects.
    assert program(structure_of(plain), collects=True) == program(structure_of(plain))
    outputs, _ = jax.eval_shape(losses(model), parameters)
    assert outputs.hidden.shape == (8, 7, 24)
    _, terms = jax.eval_shape(collect_terms(losses(model)), parameters)
    assert {name for _, name in terms} == {"energy", "positive"}


def test_what_cannot_be_added_is_named():
    with pytest.raises(ArgumentError, match="inside a scan"):
        collect_terms(jax.jit(lambda x: add_metric("b", x.sum())))(jnp.ones(3))
    with pytest.raises(ConfigError, match="'loss'"):
        descended(config_with(feed_forward=Penalised(name="loss")))


@pytest.mark.slow
def test_a_run_logs_them(tmp_path, capsys):
    config = tiny_config(steps=2, loggers=())
    config = replace(config, model=replace(config.model, feed_forward=Penalised()))
    jaxformer.train(config, tmp_path / "run")
    train = read_metrics(tmp_path / "run", "train")
    assert len(train) == 2
    for row in train:
        total = row["loss"] + WEIGHT * row["energy"]
        assert row["total_loss"] == pytest.approx(total, rel=1e-5)
        assert 0 < row["positive"] < 1
    assert all("energy" not in row for row in read_metrics(tmp_path / "run", "validation"))
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("step 2/2"))
    assert "energy " in line
    assert "positive " in line
