"""Low-rank factors over a base in fewer bits: what is kept, trained, saved, restored and merged."""

import json
from dataclasses import replace

import chex
import jax
import numpy as np
import pytest
from tiny_run import hash_of, tiny_config, train_until
from train_steps import program_of, stepped
from transfers import transfer

from jaxformer.checkpoints.checkpointer import Checkpointer
from jaxformer.checkpoints.restore import (
    array_shapes,
    parameter_names,
    read_arrays,
    read_sharded,
    restore_newest,
)
from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.cli import main as cli
from jaxformer.io.serialization import to_json
from jaxformer.models.frozen import SCALES, restored
from jaxformer.models.lora import LoRA, is_factor
from jaxformer.optim import AdamW, Constant
from jaxformer.training.loop import train

pytestmark = pytest.mark.more

INT8 = LoRA(rank=2, dropout=0.1, base_dtype="int8")
OPTIMIZER = AdamW(schedule=Constant(learning_rate=0.01, warmup_steps=0))
QUERY = "transformer.stack.group.0.sublayers.0.attention.query.kernel"


def program_with(lora, mesh=(1, 1, 1), **settings):
    return program_of(tiny_config().model, mesh, OPTIMIZER, lora=lora, **settings)


@pytest.mark.parametrize(
    ("dtype", "mesh"),
    [
        pytest.param("bfloat16", (1, 1, 1), marks=pytest.mark.slow),
        ("int8", (1, 1, 1)),
        pytest.param("int8", (2, 2, 2), marks=pytest.mark.slow),
    ],
)
def test_a_base_is_converted_once_when_it_is_read(finished, dtype, mesh):
    program = program_with(LoRA(rank=2, base_dtype=dtype), mesh)
    params, report = transfer(program.init(0).params, finished, tiny_config().model)
    exact = SavedRun(finished).read(program.abstract_model.base.shapes)
    assert not [name for name in report.new if not is_factor(name)]
    for name, value in exact.items():
        kept = params[name]
        assert kept.dtype == program.abstract_model.shapes[name].dtype
        assert kept.sharding.is_equivalent_to(program.param_shardings[name], kept.ndim)
        assert (kept.dtype == np.float32) == (value[0].ndim < 1 + (".stack." in name)), name
        back = np.asarray(restored(name, jax.tree.map(np.asarray, params)), np.float32)
        step = 2 / 127 if kept.dtype == np.int8 else 2**-7
        np.testing.assert_allclose(back, value, rtol=2**-8, atol=0.5 * step * np.abs(value).max())
    assert (QUERY + SCALES in params) == (dtype == "int8")
    assert (params["embedding.table"].dtype == np.float32) is False


def tuned(base, **settings):
    config = tiny_config(**({"steps": 6, "lora": INT8, "ema_decay": 0.5} | settings))
    return replace(config, init_from=str(base))


@pytest.mark.slow
def test_a_run_over_int8_is_interrupted_evaluated_and_merged(finished, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(tuned(finished, sample_tokens=4), whole)
    train_until(3, tuned(finished), parts)
    train(tuned(finished), parts)
    assert hash_of(whole, 6) == hash_of(parts, 6)

    arrays = dict(read_arrays(whole / "checkpoints" / "6"))
    assert arrays[f"params/{QUERY}"].dtype == np.int8
    averaged = {name.removeprefix("ema/") for name in arrays if name.startswith("ema/")}
    assert averaged == set(program_with(INT8).trained)
    own = {name.removeprefix("params/"): x for name, x in arrays.items() if "params/" in name}
    a, b = (arrays[f"ema/{QUERY}{side}"] for side in (".lora_a", ".lora_b"))
    expected = np.asarray(restored(QUERY, own)) + 8 * np.einsum("ldr,lrnh->ldnh", a, b)
    found = SavedRun(whole).read([QUERY])[QUERY]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    merged, losses = tmp_path / "merged", []
    assert cli.main(["merge", str(whole), str(merged)]) == 0
    for folder in (whole, merged):
        output = tmp_path / f"{folder.name}.json"
        assert cli.main(["evaluate", str(folder), "--output", str(output)]) == 0
        losses.append(json.loads(output.read_text())["metrics"]["loss"])
    # The embeddings of the first are bfloat16 in a float32 computation, as those it is merged from.
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [LoRA(rank=2), None], ids=["factors", "frozen"])
def test_an_average_of_everything_that_an_older_version_saved_is_continued(lora, tmp_path):
    program = program_with(lora, ema_decay=0.5, frozen=() if lora else ("*.kernel",))
    state = program.init(0)
    older = replace(state, ema=state.params | {n: x + 1 for n, x in state.ema.items()})
    checkpoints = Checkpointer(tmp_path, to_json(tiny_config()), keep=1)
    checkpoints.save(4, older)
    checkpoints.close()
    step, found = restore_newest(tmp_path, program.state_shapes)
    assert step == 4
    assert set(found.ema) == set(program.trained) < set(state.params)
    chex.assert_trees_all_equal(found.ema, {name: x + 1 for name, x in state.ema.items()})
    stored = parameter_names(array_shapes(tmp_path / "4"), averaged=True)
    wanted = {
        stored[name]: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=program.param_shardings[name])
        for name, x in program.abstract_model.shapes.items()
    }
    best = read_sharded(tmp_path / "4", wanted)
    for name, array in stored.items():
        np.testing.assert_array_equal(best[array], older.ema[name], err_msg=name)


@pytest.mark.parametrize(
    "changes",
    [{"scan_layers": True}, {"remat": "full"}],
)
@pytest.mark.slow
def test_dropout_is_the_same_however_layers_are_computed(changes):
    losses, batch = [], {
        "inputs": np.arange(32, dtype=np.int32).reshape(2, 16),
        "targets": np.arange(1, 33, dtype=np.int32).reshape(2, 16),
        "weights": np.ones((2, 16), np.float32),
    }  # fmt: skip
    for fields, rate in (({}, 0.5), (changes, 0.5), ({}, 0.0)):
        model = replace(tiny_config().model, dropout=0.0, **fields)
        program = program_of(model, lora=LoRA(rank=2, dropout=rate))
        params, random = program.init(0).params, np.random.default_rng(0)
        for name in filter(is_factor, list(params)):
            params[name] += random.normal(size=params[name].shape).astype(np.float32)
        _, (metrics,) = stepped(program, batch, params)
        losses.append(metrics["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert abs(losses[0] - losses[2]) > 1e-3
