"""Runs in object stores: killed midway, they end with the bits of an undisturbed local run."""

import os
import signal

import pytest
from object_store import (  # noqa: F401 (fixtures)
    CLIENT_VARIABLES,
    bucket,
    gcs_bucket,
    gcs_server,
    s3_server,
)
from tiny_run import finish_all, hash_of, losses_of, wait_for

from jaxformer.checkpoints.files import COMMIT_FILE, saved_steps
from jaxformer.io.paths import any_path

STEPS = 24
OPTIONS = (
    *("--train.steps", str(STEPS), "--train.checkpoint-interval", "4"),
    *("--train.eval-interval", "12", "--mesh.data", "2"),
)


def start_two(runs, run_dir, **environment):
    environment |= {name: os.environ[name] for name in CLIENT_VARIABLES if name in os.environ}
    return runs.start_two(run_dir, *OPTIONS, **environment)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["bucket", "gcs_bucket"])
def test_two_processes_are_killed_and_end_with_the_bits_of_a_local_run(
    runs, request, store, tmp_path
):
    bucket = request.getfixturevalue(store)  # noqa: F811
    finish_all(start_two(runs, tmp_path / "undisturbed"))
    run_dir = any_path(f"{bucket}/runs/killed", "run_dir")
    steps = run_dir / "checkpoints"

    def is_saving(least):
        """Whether a later step has begun that is not complete."""
        begun = [int(item.name) for item in steps.iterdir()] if steps.exists() else []
        later = (steps / str(step) / COMMIT_FILE for step in begun if step >= least)
        return any(not commit.is_file() for commit in later)

    # Each start has its own machine: nothing but the store remembers the run.
    processes = start_two(runs, str(run_dir), JAXFORMER_CACHE=str(tmp_path / "cache-0"))
    wait_for(lambda: is_saving(8), *processes, pause=0.1)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    for process in processes:
        process.communicate()
    assert saved_steps(steps)
    output = finish_all(start_two(runs, str(run_dir), JAXFORMER_CACHE=str(tmp_path / "cache-1")))[0]
    assert "continuing from step" in output
    assert hash_of(run_dir, STEPS) == hash_of(tmp_path / "undisturbed", STEPS)
    assert losses_of(run_dir) == losses_of(tmp_path / "undisturbed")
    assert not [name for name in run_dir.files() if name.startswith(".lock")]


@pytest.mark.slow
def test_a_process_that_was_stopped_and_lost_its_lease_says_so(runs, bucket, tmp_path):  # noqa: F811
    run_dir = any_path(f"{bucket}/runs/lost", "run_dir")
    own = {name: os.environ[name] for name in CLIENT_VARIABLES if name in os.environ}
    often = ("--train.checkpoint-interval", "2", "--train.eval-interval", "1000")

    def start(steps, cache):
        options = ("--train.steps", str(steps), *often)
        return runs.start(str(run_dir), *options, **own, JAXFORMER_CACHE=str(tmp_path / cache))

    first = start(2000, "cache-0")
    try:
        wait_for(lambda: saved_steps(run_dir / "checkpoints"), first, pause=0.1)
        first.send_signal(signal.SIGSTOP)
        done = max(saved_steps(run_dir / "checkpoints"))
        second = start(done + 4, "cache-1")
        output, _ = second.communicate(timeout=300)
        assert second.returncode == 0, output
        steps = saved_steps(run_dir / "checkpoints")
        first.send_signal(signal.SIGCONT)
        output, _ = first.communicate(timeout=120)
    finally:
        first.kill()
    assert first.returncode == 1
    assert output.splitlines()[-1].startswith("error: stopped: "), output[-500:]
    assert "Traceback" not in output
    assert saved_steps(run_dir / "checkpoints") == steps
