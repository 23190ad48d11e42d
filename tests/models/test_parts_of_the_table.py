"""One part of each kind, written from the table of docs/extending.md: learned, saved, restored."""

import importlib
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import batch_for, structure_of
from train_steps import program_of, stepped

from jaxformer.checkpoints.restore import read_arrays
from jaxformer.cli.main import main
from jaxformer.config import load_config
from jaxformer.errors import ConfigError
from jaxformer.functional import Activation, Norm, Position
from jaxformer.models import DecoderConfig
from jaxformer.models.heads.base import LossFunction, LossOptions, class_loss
from jaxformer.nn import MLP, FeedForwardConfig, Residual, Sublayer

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"

EXPERIMENT = '''
"""A decoder every part of which is its author's own."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import optax
from tiny_run import tiny_config

from jaxformer.functional import Activation, Norm, Position
from jaxformer.nn import (
    MLP, Block, Residual, TokenEmbeddings, TransformerBlock, constant, parameter,
)
from jaxformer.optim import Optimizer, Schedule


@dataclass(frozen=True)
class Soft(Norm):
    eps: float = 1.0

    def parameters(self, dim, axis="embed"):
        vector = ((dim,), (axis,))
        return {
            "gain": (*vector, 1.0), "bias": (*vector, 0.1), "alpha": ((), (), 2.0),
            "mix": ((2, dim), ("kinds", axis), 0.3),
        }

    def __call__(self, x, gain, bias, alpha, mix):
        y = jnp.tanh(alpha * x.astype(jnp.float32))
        return (y * (gain + mix[0] * mix[1])[None, None] + bias[None, None]).astype(x.dtype)


@dataclass(frozen=True)
class Swish(Activation):
    def parameters(self, dim, axis="mlp"):
        return {"beta": ((dim,), (axis,), 1.0)}

    def __call__(self, x, beta):
        return x * jax.nn.sigmoid(beta[None, None] * x)


@dataclass(frozen=True)
class Table(Position):
    def table(self, *, model_dim, num_heads):
        return (16, model_dim), ("positions", "vocab_embed")

    def embed(self, x, positions, table=None):
        return x + table[positions % 16].astype(x.dtype)


@dataclass(frozen=True)
class Halved(Residual):
    def __call__(self, x, sublayers, norms):
        for sublayer, norm in zip(sublayers, norms):
            x = x + 0.5 * sublayer(norm(x))
        return x


class LoudBlock(Block):
    def __init__(self, key, config, sublayers):
        super().__init__(key, config, sublayers)
        self.volume = parameter(key, (config.model_dim,), ("norm",), constant(1.0))

    def __call__(self, x, context, key):
        return super().__call__(x * self.volume[...].astype(x.dtype)[None, None], context, key)


@dataclass(frozen=True)
class Loud(TransformerBlock):
    def make(self, key, config, sublayers):
        return LoudBlock(key, config, sublayers)


@dataclass(frozen=True)
class Sign(Optimizer):
    def direction(self, axes):
        sign = optax.stateless(lambda updates, params: jax.tree.map(jnp.sign, updates))
        return optax.chain(optax.ema(0.9), sign)


@dataclass(frozen=True)
class Steps(Schedule):
    def shape(self, step, total_steps):
        return jnp.where(step < total_steps / 2, 1.0, 0.5)


def get_config():
    config = tiny_config(loggers=(), steps=3, checkpoint_interval=3)
    model = replace(
        config.model, norm=Soft(), embeddings=TokenEmbeddings(norm=Soft()), position=Table(),
        feed_forward=MLP(activation=Swish()), residual=Halved(), block=Loud(), scan_layers=True,
        remat="full",
    )
    optimizer = Sign(schedule=Steps(learning_rate=1e-3, warmup_steps=0))
    return replace(config, model=model, optimizer=optimizer)
'''

OWN = ("norms.0.gain", "norms.1.bias", "norms.0.alpha", "norms.1.mix", "activation.beta", "volume")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(EXPERIMENT)
    return path


@pytest.mark.slow
def test_every_parameter_that_a_part_declares_learns(experiment):
    config = load_config(str(experiment))
    names = structure_of(config.model).shapes
    for own in OWN:
        assert sum(name.endswith(own) for name in names) == 1, own
    for place in ("transformer.final_norm", "transformer.inputs.embedding_norm"):
        assert {f"{place}.{name}" for name in ("gain", "bias", "alpha", "mix")} <= names.keys()
    assert names["transformer.inputs.position_table"].shape == (16, 32)

    program = program_of(config.model, (2, 1, 2), config.optimizer, gradient_accumulation=2)
    before = jax.device_get(program.init(0).params)
    batch = batch_for(config.model, rows=8, length=20)
    batch = {name: batch[name] for name in config.model.batch_spec(8, {"inputs": 20})}
    state, (metrics,) = stepped(program, batch)
    assert metrics["skipped"] == 0
    for name, value in jax.device_get(state.params).items():
        moved = np.mean(value != before[name])
        assert moved > (0.05 if "table" in name else 0.9), name


@pytest.mark.slow
def test_a_run_of_them_is_saved_restored_and_inspected(experiment, tmp_path, capsys):
    once, twice = str(tmp_path / "once"), str(tmp_path / "twice")
    assert main(["train", str(experiment), "--run-dir", once, "--train.steps", "4"]) == 0
    for steps in ("3", "4"):
        assert main(["train", str(experiment), "--run-dir", twice, "--train.steps", steps]) == 0
    capsys.readouterr()
    shown = []
    for run in (once, twice):
        assert main(["inspect", run]) == 0
        rows = capsys.readouterr().out.splitlines()
        assert "norm=Soft()" in " ".join(rows)
        shown.append([x for x in rows if x.startswith(("parameters", "content hash"))])
    config = load_config(str(experiment))
    sizes = {name: x.size for name, x in structure_of(config.model).shapes.items()}
    assert shown[0][0].split() == ["parameters", f"{sum(sizes.values()):,}"]
    saved = {
        name.removeprefix("params/"): array
        for name, array in read_arrays(tmp_path / "twice" / "checkpoints" / "4", ("params/",))
    }
    assert {name: x.size for name, x in saved.items()} == sizes
    assert main(["generate", twice, "--prompt", "def", "--max-new-tokens", "4"]) == 0


# What a part must not do --------------------------------------------------------------------------


class Wide(Norm):
    def __init__(self):
        super().__init__(eps=1.0)

    def parameters(self, dim, axis="embed"):
        return {"scale": ((dim,), (axis,), 1.0)}

    def __call__(self, x, scale):
        return x.astype(jnp.float32) * scale[None, None]


class Deaf(Wide):
    def __call__(self, x):
        return x


class Taken(Wide):
    def parameters(self, dim, axis="embed"):
        return {"norm": ((dim,), (axis,), 1.0)}

    def __call__(self, x, norm):
        return x


class WideActivation(Activation):
    def __call__(self, x):
        return x[..., :-1]


class WidePosition(Position):
    def embed(self, x, positions, table=None):
        return x + jnp.ones((1, 1, 1), jnp.float32)


class Turned(Position):
    def rotate(self, query, key, query_positions, key_positions, lengths=None):
        return query.astype(jnp.float32), key.astype(jnp.float32)


class ShortResidual(Residual):
    def __call__(self, x, sublayers, norms):
        return x[:, :-1]


class NothingConfig(FeedForwardConfig):
    def build(self, key, config, position, window):
        return Nothing()


class Nothing(Sublayer):
    def __call__(self, x, context, key):
        return None


class SummedLoss(LossFunction):
    def __call__(self, logits, targets, weights):
        return jnp.sum(logits)


WRONG = {
    "norm": (
        Wide(),
        r"Wide returned float32 \[2, 7, 32\]: must be bfloat16 \[2, 7, 32\]; .*astype",
    ),
    "norm without": (Deaf(), r"Deaf.__call__: must take x, scale="),
    "norm with a name": (Taken(), r"Taken.parameters: 'norm' is taken"),
    "feed_forward with an activation": (
        MLP(activation=WideActivation()),
        r"WideActivation returned float32 \[2, 7, 63\]: must be",
    ),
    "position": (WidePosition(), r"WidePosition returned float32 .*: must be bfloat16"),
    "position of heads": (Turned(), r"Turned returned float32 \[2, 7, 4, 8\]: must be bfloat16"),
    "residual": (ShortResidual(), r"ShortResidual returned bfloat16 \[2, 6, 32\]"),
    "feed_forward": (NothingConfig(), r"Nothing returned a NoneType: must be"),
}


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("case", WRONG)
def test_a_part_that_returns_something_else_is_named(case, scan):
    part, said = WRONG[case]
    field = case.partition(" ")[0]
    sizes = {"model_dim": 32, "num_heads": 4, "mlp_dim": 64, "num_layers": 2, "vocab_size": 9}
    config = DecoderConfig(**sizes, **{field: part}, scan_layers=scan)

    def states(key):
        return config.build(key).hidden(jnp.zeros((2, 7), jnp.int32))

    with pytest.raises(ConfigError, match=said) as error:
        jax.eval_shape(states, jax.random.key(0))
    assert "\n" not in str(error.value)


def test_a_loss_of_another_shape_is_named():
    logits, targets = jnp.zeros((2, 5, 7)), jnp.zeros((2, 5), jnp.int32)
    with pytest.raises(ConfigError, match=r"SummedLoss returned float32 \[\]: must be .* \[2, 5\]"):
        class_loss(logits, targets, jnp.ones((2, 5)), LossOptions(function=SummedLoss()))


# The table ----------------------------------------------------------------------------------------


def rows_of_the_table():
    """The classes to derive from, and what the page says to write."""
    lines = PAGE.read_text().split("| part | field |")[1].splitlines()[2:]
    for line in lines[: lines.index("")]:
        _, part, _, bases, methods, _ = (cell.strip() for cell in line.split("|"))
        for base in re.findall(r"`([\w.]+\.\w+)`", bases):
            yield pytest.param(base, set(re.findall(r"`(\w+)`", methods)), methods, id=part)


@pytest.mark.parametrize(("base", "methods", "text"), rows_of_the_table())
def test_the_table_names_all_that_has_to_be_written(base, methods, text):
    module, _, name = base.rpartition(".")
    kind = getattr(importlib.import_module(f"jaxformer.{module}"), name)
    assert kind.__abstractmethods__ <= methods or text == "the same"
    for method in methods - {"nn", "Sublayer"}:
        assert hasattr(kind, method), method
