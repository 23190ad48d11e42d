"""Runs with a ramp: the same bits as by hand and after a kill at any step, and an honest log."""

import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest
from tiny_run import hash_of, on_mesh, tiny_config

from jaxformer.checkpoints.checkpointer import content_hash, named_arrays
from jaxformer.config import validate
from jaxformer.data import Joined, Stage
from jaxformer.distributed.sharding import make_mesh
from jaxformer.errors import ConfigError
from jaxformer.training.logging.comparison import compared_runs
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.logging.throughput import RunWork
from jaxformer.training.loop import train
from jaxformer.training.step import TrainProgram

pytestmark = pytest.mark.more

RAMP = (Stage(8, until_step=2, sequence_length=12), Stage(4, until_tokens=576))
"""Steps 0 and 1 of 96 tokens, 2 and 3 of 192, from 4 on 384."""
STEPS = 7


def ramped(**changes):
    """The tiny run with stages of 8 x 12 and 4 x 48 tokens before its 8 x 48."""
    config = tiny_config(steps=STEPS, eval_interval=STEPS, checkpoint_interval=1, keep=STEPS)
    data = replace(config.data, **{"packing": Joined(), "ramp": RAMP} | changes)
    return replace(config, data=data, model=replace(config.model, num_layers=1))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ramp") / "run"
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(map(str, words))))
        train(ramped(), folder)
    return folder, lines


def killed(finished, folder, step):
    """The folder of the run as it was right after the checkpoint of a step."""
    shutil.copytree(finished[0], folder)
    for later in range(step + 1, STEPS + 1):
        shutil.rmtree(folder / "checkpoints" / str(later))


def rows_of(folder):
    return [
        {name: row[name] for name in ("step", "loss", "tokens", "tokens_seen")}
        for row in read_metrics(folder, "train")
    ]


@pytest.mark.slow
def test_it_equals_steps_made_by_hand(finished, tmp_path):
    config = ramped()
    plain = replace(config.data, ramp=(), batch_size=1).prepare(tmp_path / "data").train
    program = TrainProgram(config.model, config.optimizer, config.train, make_mesh(config.mesh))
    state = program.init(config.train.seed)
    first = 0
    for shape, rows in [((8, 12), 2)] * 2 + [((4, 48), 4)] * 2 + [((8, 48), 8)] * 3:
        longest = [plain.batch(first + row) for row in range(rows)]
        batch = {k: np.concatenate([row[k] for row in longest]).reshape(shape) for k in longest[0]}
        state, _ = program.train_step(state, jax.device_put(batch, program.batch_sharding))
        first += rows
    assert content_hash(named_arrays(jax.device_get(state)).items()) == hash_of(finished[0], STEPS)


@pytest.mark.parametrize("step", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4, 5))])
def test_a_kill_at_and_beside_a_boundary_changes_no_bit(finished, tmp_path, step):
    killed(finished, tmp_path / "run", step)
    train(ramped(), tmp_path / "run")
    assert hash_of(tmp_path / "run", STEPS) == hash_of(finished[0], STEPS)
    assert rows_of(tmp_path / "run") == rows_of(finished[0])


def test_the_log_says_what_is_compiled_and_counts_the_tokens(finished):
    folder, lines = finished
    shapes = ["8 rows of 12", "4 rows of 48", "8 rows of 48"]
    said = [line.split(" after ")[0] for line in lines if line.startswith("first step")]
    assert said == [f"first step of {shape} tokens" for shape in shapes]
    rows = read_metrics(folder, "train")
    assert [row["tokens"] for row in rows] == [96, 96, 192, 192, 384, 384, 384]
    assert [row["tokens_seen"] for row in rows] == np.cumsum(
        [row["tokens"] for row in rows]
    ).tolist()
    # The first step of a shape compiled, so that it says nothing of the speed.
    assert [row["step"] for row in rows if "step_seconds" not in row] == [1, 3, 5]
    for row in rows:
        if "step_seconds" in row:
            per_step = row["tokens_per_second"] * row["step_seconds"]
            assert per_step == pytest.approx(row["tokens"])


def test_the_work_of_a_run_is_the_sum_over_its_stages(finished):
    config = ramped()
    work = RunWork.of(config)
    assert [work.tokens(n) for n in range(8)] == [0, 96, 192, 384, 576, 960, 1344, 1728]
    per_token = [config.model.flops({"inputs": n}).training(causal=False) for n in (12, 48)]
    assert work.flops(3) == pytest.approx(192 * per_token[0] + 192 * per_token[1])
    (run,) = compared_runs([finished[0]], "loss")
    assert (run.row()["step"], run.row()["tokens"]) == (STEPS, 1728)
    assert run.row()["flops"] == work.flops(STEPS)


@pytest.mark.slow
def test_batches_may_grow_in_a_run_that_goes_on(tmp_path):
    """A run whose batches grow from step 3 on equals one that was told so when it was there."""
    constant = ramped(ramp=(), batch_size=4)
    grown = ramped(ramp=(Stage(4, until_step=3),))
    train(grown, tmp_path / "grown")
    early = replace(constant, train=replace(constant.train, checkpoint_interval=3))
    train(early, tmp_path / "told")
    for later in (6, 7):
        shutil.rmtree(tmp_path / "told" / "checkpoints" / str(later))
    with pytest.raises(ConfigError, match=r"data\.batch_size: 4 there, 8 now"):
        train(ramped(ramp=()), tmp_path / "told")
    with pytest.raises(ConfigError, match=r"data\.batch_size: 4 there, 8 now"):
        train(ramped(ramp=(Stage(4, until_step=2),)), tmp_path / "told")
    train(grown, tmp_path / "told")
    assert hash_of(tmp_path / "told", STEPS) == hash_of(tmp_path / "grown", STEPS)


@pytest.mark.slow
def test_a_mesh_of_eight_devices_learns_the_same(finished, tmp_path):
    train(on_mesh(ramped(), fsdp=2, tensor=4), tmp_path / "run")
    one, eight = ([row["loss"] for row in read_metrics(f)] for f in (finished[0], tmp_path / "run"))
    np.testing.assert_allclose(eight, one, rtol=2e-4)
    assert rows_of(tmp_path / "run")[-1]["tokens_seen"] == 1728


@pytest.mark.slow
def test_epochs_become_steps_of_all_stages(tmp_path):
    config = ramped()
    config = replace(config, train=replace(config.train, steps=None, epochs=0.05))
    result = train(config, tmp_path / "run")
    rows = config.data.prepare(tmp_path / "data").train.num_rows
    # 2 + 2 + 4 + 4 of the longest rows in the first four steps, then 8 in each.
    assert result.step == 4 + -(-(0.05 * rows - 12) // 8)


def test_each_stage_is_checked_against_the_mesh_and_the_accumulation():
    ramp = (Stage(16, until_step=2, sequence_length=24), Stage(12, until_step=4))
    config = on_mesh(ramped(ramp=ramp, batch_size=16), data=4, fsdp=2)
    with pytest.raises(ConfigError, match=r"data.ramp.1.batch_size = 12 is not divisible by") as e:
        validate(config, 8)
    assert "2 x 8 = 16" in str(e.value)
    validate(on_mesh(ramped(ramp=ramp, batch_size=16), data=2), 2)
