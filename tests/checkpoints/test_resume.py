"""Real training processes, killed and told to stop, end with the bits of an undisturbed one."""

import random
import re
import signal
import time

import pytest
from tiny_run import hash_of, losses_of, steps_logged, wait_for

from jaxformer.checkpoints import files as checkpoint_files

pytestmark = pytest.mark.more

STEPS = 300


def options(steps=STEPS) -> tuple[str, ...]:
    intervals = ("--train.checkpoint-interval", "5", "--train.eval-interval", "100")
    return ("--train.steps", str(steps), *intervals)


@pytest.fixture(scope="module")
def undisturbed(request, runs, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    runs.finish(run_dir, *options(getattr(request, "param", STEPS)))
    return run_dir


@pytest.mark.parametrize(
    ("kinds", "steps", "undisturbed"),
    [
        (("stepping", "saving"), 60, 60),
        pytest.param(("starting", "stepping", "saving") * 5, STEPS, STEPS, marks=pytest.mark.slow),
    ],
    indirect=["undisturbed"],
    ids=["briefly", "again and again"],
)
def test_killed_at_random_moments(runs, undisturbed, tmp_path, kinds, steps):
    chance = random.Random(0)
    run_dir, during_saves = tmp_path / "run", 0
    unfinished = (run_dir / "checkpoints").glob
    for kind in kinds:
        process = runs.start(run_dir, *options(steps))
        goal = steps_logged(run_dir) + chance.randint(3, 25)
        if kind == "starting":
            time.sleep(chance.random() * 4)
            assert process.poll() is None, process.communicate()
        else:
            wait_for(lambda goal=goal: steps_logged(run_dir) >= goal, process, pause=0.0005)
        if kind == "saving":
            wait_for(lambda: any(unfinished("*.orbax-checkpoint-tmp*")), process, pause=0.0005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        during_saves += any(unfinished("*.orbax-checkpoint-tmp*"))
    assert during_saves >= kinds.count("saving") * 3 // 5
    runs.finish(run_dir, *options(steps))
    assert hash_of(run_dir, steps) == hash_of(undisturbed, steps)
    # Each step is recorded once, with the loss that it would have had: same data, same dropout.
    assert losses_of(run_dir) == losses_of(undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "damages"),
    [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGTERM, True)],
)
def test_a_signal_saves_and_exits_cleanly(runs, undisturbed, tmp_path, number, damages):
    """A checkpoint that is cut off afterwards is passed over, which is said."""
    run_dir = tmp_path / "run"
    process = runs.start(run_dir, *options())
    wait_for(lambda: steps_logged(run_dir) >= 42, process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    stopped = int(re.search(r"stopped after step (\d+)", output).group(1))
    assert 42 <= stopped < STEPS
    previous, newest = checkpoint_files.saved_steps(run_dir / "checkpoints")[-2:]
    assert newest == stopped
    saved = run_dir / "checkpoints" / str(newest)
    if damages:
        largest = max(saved.rglob("*"), key=lambda item: item.stat().st_size)
        largest.write_bytes(largest.read_bytes()[:100])
    output = runs.finish(run_dir, *options())
    assert f"continuing from step {previous if damages else stopped}" in output
    assert (f"Skipped the damaged checkpoint {saved}" in output) == damages
    assert hash_of(run_dir, STEPS) == hash_of(undisturbed, STEPS)
