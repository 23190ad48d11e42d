"""Training low-rank factors: on every mesh, in parts, over a base in fewer bits; plain weights."""

import json
from dataclasses import replace
from functools import lru_cache

import chex
import jax
import numpy as np
import pytest
from jaxprs import equations
from test_step import GROUPED
from tiny_models import random_arrays, tiny_encoder
from tiny_run import hash_of, tiny_config, train_until
from train_steps import packed_rows, program_of, stepped
from transfers import transfer

from jaxformer.checkpoints import files as checkpoint_files
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
from jaxformer.config import Config
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional.arrays import on_mesh
from jaxformer.io.serialization import from_json, to_json
from jaxformer.models import Classification
from jaxformer.models.frozen import SCALES, restored
from jaxformer.models.lora import LoRA, is_factor
from jaxformer.optim import SGD, AdamW, Constant
from jaxformer.training.loop import train
from jaxformer.training.transfer.merge import merge

LORA = LoRA(rank=2, alpha=5.0, targets=("*.query.kernel", "*.value.kernel", "*.output.kernel"))
PLAIN = GROUPED.with_fields(dropout=0.0, **{"self_attention.dropout": 0.0})
OPTIMIZER = SGD(schedule=Constant(learning_rate=0.05, warmup_steps=0))


def run(model=PLAIN, mesh=(1, 1, 1), **settings):
    program = program_of(model, mesh, OPTIMIZER, lora=LORA, **settings)
    # Fresh weights are so small that attention is flat and its gradients drown in rounding.
    start = random_arrays(program.abstract_model.shapes)
    state, history = stepped(program, packed_rows(), start, steps=3)
    return program, start, state, history[-1]["loss"]


@lru_cache
def reference():
    _, start, state, loss = run()
    return start, jax.tree.map(np.asarray, state.params), loss


def assert_same_update(state, loss):
    _, expected, expected_loss = reference()
    chex.assert_trees_all_close(state.params, expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)


def test_the_factors_learn_and_nothing_else():
    start, end, _ = reference()
    for name, value in end.items():
        assert (value != start[name]).any() == is_factor(name), name


@pytest.mark.parametrize("mesh", [(1, 8, 1), (2, 2, 2)])
@pytest.mark.slow
def test_every_mesh_makes_the_same_update(mesh):
    program, _, state, loss = run(mesh=mesh)
    assert_same_update(state, loss)
    for name, value in state.params.items():
        assert value.sharding.is_equivalent_to(program.param_shardings[name], value.ndim), name
    spec = {name: sharding.spec for name, sharding in program.param_shardings.items()}
    query, output = (
        f"transformer.stack.group.0.sublayers.0.attention.{n}.kernel" for n in ("query", "output")
    )
    tensor = "tensor" if mesh[2] > 1 else None  # axes of one device are not named
    assert spec[query + ".lora_a"] == jax.P(None, "fsdp", None)
    assert spec[query + ".lora_b"] == jax.P(None, None, tensor, None)
    assert spec[output + ".lora_a"] == jax.P(None, tensor, None, None)
    assert spec[output + ".lora_b"] == jax.P(None, None, "fsdp")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({"scan_layers": False}, {}),
        ({"remat": "full"}, {}),
        ({}, {"gradient_accumulation": 4}),
    ],
    ids=["unrolled", "remat", "in parts"],
)
def test_however_it_is_computed(changes, settings):
    _, _, state, loss = run(replace(PLAIN, **changes), **settings)
    assert_same_update(state, loss)


def test_moments_exist_for_what_learns_alone():
    model = tiny_encoder(heads=(Classification(num_labels=3),))
    optimizer = AdamW(schedule=Constant(learning_rate=0.1, warmup_steps=0))
    head = {"heads.label.output.kernel", "heads.label.output.bias"}
    for trained, besides in (
        (("heads.*", "pooler.*"), {*head, "pooler.kernel"}),
        (None, head),
        ((), set()),
    ):
        lora = LoRA(rank=2, trained=trained)
        frozen = ("pooler.bias",) if trained else ()
        program = program_of(model, optimizer=optimizer, lora=lora, frozen=frozen, ema_decay=0.5)
        learning = {name for name in program.abstract_model.shapes if is_factor(name)} | besides
        assert set(program.trained) == learning
        shapes = program.state_shapes
        size = sum(shapes.params[name].size for name in learning)
        moments = [leaf.size for leaf in jax.tree.leaves(shapes.opt_state) if leaf.ndim]
        assert sum(moments) == 2 * size
        assert sum(leaf.size for leaf in jax.tree.leaves(shapes.ema)) == size


@pytest.mark.parametrize("changes", [{}, {"remat": "full"}, {"scan_layers": False}])
def test_no_kernel_has_a_gradient_and_no_product_of_factors_exists(changes):
    model = replace(PLAIN, tie_embeddings=False, **changes)
    program = program_of(model, lora=LORA, loss_chunk=6)
    batch = jax.device_put(packed_rows(), program.batch_sharding)
    with on_mesh(program.mesh):
        jaxpr = jax.make_jaxpr(program._gradients)(
            program.state_shapes.params, {}, batch, jax.random.key(0)
        )
    kernels = {
        shape.shape[int(program.abstract_model.axes[name][0] == "layers") :]
        for name, shape in program.abstract_model.base.shapes.items()
        if name in program.abstract_model.kernels
    }
    sizes = {tuple(sorted(shape)) for shape in kernels}
    made = [
        equation.outvars[0].aval.shape
        for equation in equations(jaxpr.jaxpr)
        if equation.primitive.name == "dot_general"
    ]
    assert len(made) > 20
    assert not [shape for shape in made if tuple(sorted(shape)) in sizes]


# Whole runs ---------------------------------------------------------------------------------------


def tuned_config(base, **settings):
    return replace(tiny_config(**({"steps": 8, "lora": LORA} | settings)), init_from=str(base))


@pytest.fixture(scope="module")
def tuned(finished, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned") / "run"
    train(tuned_config(finished), folder)
    return folder


@pytest.fixture(scope="module")
def merged(tuned, tmp_path_factory):
    folder = tmp_path_factory.mktemp("merged") / "deep" / "run"
    merge(tuned, folder)
    return folder


def arrays_in(folder, step, prefix="params/"):
    arrays = read_arrays(folder / "checkpoints" / str(step), (prefix,))
    return {name.removeprefix(prefix): array for name, array in arrays}


@pytest.mark.slow
def test_a_run_starts_from_another_and_leaves_it_as_it_was(finished, tuned):
    before, after = arrays_in(finished, 12), arrays_in(tuned, 8)
    factors = set(after) - set(before)
    chex.assert_trees_all_equal({name: after[name] for name in before}, before)
    assert len(factors) == 2 * 3
    assert all(after[name].any() for name in factors)


@pytest.mark.slow
def test_a_merged_folder_is_a_run_like_any_other(tuned, merged, capsys):
    config = from_json(json.loads((merged / "config.json").read_text()), Config)
    assert config.train.lora is None
    assert config.init_from == str(tuned)
    assert config.model == tiny_config().model
    assert {item.name for item in merged.iterdir()} >= {"tokenizer", "checkpoints"}
    assert cli.main(["inspect", str(merged)]) == 0
    shown = capsys.readouterr().out
    assert "steps held    8" in shown
    for run_dir in (tuned, merged):
        assert cli.main(["evaluate", str(run_dir), "--output", str(run_dir / "e.json")]) == 0
    losses = [json.loads((f / "e.json").read_text())["metrics"]["loss"] for f in (tuned, merged)]
    np.testing.assert_allclose(*losses, rtol=1e-6)


@pytest.mark.slow
def test_a_run_starts_from_factors_as_from_what_they_amount_to(tuned, merged):
    model = tiny_config().model
    fresh = program_of(model, (2, 2, 2)).init(1).params
    (one, report), (other, plain) = (transfer(fresh, f, model) for f in (tuned, merged))
    chex.assert_trees_all_equal(one, other)
    assert (report.merged, plain.merged) == (3, 0)
    assert not report.new
    assert not report.left
    assert "3 of them with merged low-rank factors" in report.report


@pytest.mark.more
def test_the_command_says_what_it_did(tuned, tmp_path, capsys):
    out = tmp_path / "plain"
    out.mkdir()
    assert cli.main(["merge", str(tuned), str(out), "--step", "4"]) == 0
    shown = capsys.readouterr().out
    assert f"{out}: the weights of {tuned} at step 4" in shown
    assert "factors of 3 kernels" in shown
    assert "attention.query.kernel" in shown
    assert f"--init-from {out}" in shown
    assert checkpoint_files.saved_steps(out / "checkpoints") == [4]


@pytest.mark.more
def test_what_cannot_be_merged(finished, tuned, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    for source, target, message in (
        (finished, tmp_path / "out", "did not train low-rank factors"),
        (tmp_path, tmp_path / "out", "not a run folder"),
        (tuned, tmp_path, "is not empty"),
        (tuned, tmp_path / "thesis.tex", "is a file"),
    ):
        assert cli.main(["merge", str(source), str(target)]) == 2
        assert message in capsys.readouterr().err
    assert cli.main(["merge", str(tuned), str(tmp_path / "out"), "--step", "5"]) == 2
    assert "contains 4, 8" in capsys.readouterr().err
    assert [item.name for item in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_failure_leaves_nothing_behind(tuned, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("no space")

    monkeypatch.setattr("jaxformer.checkpoints.saved_run.Checkpointer", full)
    with pytest.raises(DataError, match="no space; nothing was written"):
        merge(tuned, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_target_that_is_none_is_refused_before_training(tmp_path):
    config = tiny_config(lora=LoRA(targets=("*.qeury.kernel",)))
    with pytest.raises(ConfigError, match="did you mean"):
        train(config, tmp_path / "run")


# A base in fewer bits -----------------------------------------------------------------------------

INT8 = LoRA(rank=2, dropout=0.1, base_dtype="int8")
QUERY = "transformer.stack.group.0.sublayers.0.attention.query.kernel"


def program_with(lora, mesh=(1, 1, 1), **settings):
    return program_of(tiny_config().model, mesh, AdamW(), lora=lora, **settings)


@pytest.mark.more
@pytest.mark.quick("int8-mesh1")
@pytest.mark.parametrize(
    ("dtype", "mesh"), [("bfloat16", (1, 1, 1)), ("int8", (1, 1, 1)), ("int8", (2, 2, 2))]
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


@pytest.mark.slow
def test_a_run_over_int8_is_interrupted_evaluated_and_merged(finished, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = {"steps": 6, "lora": INT8, "ema_decay": 0.5}
    train(tuned_config(finished, sample_tokens=4, **settings), whole)
    train_until(3, tuned_config(finished, **settings), parts)
    train(tuned_config(finished, **settings), parts)
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


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"scan_layers": True}, {"remat": "full"}])
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
