"""A run's folder through the command line: any path leads to it, and it is one run's alone."""

import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest
from tiny_run import EXPERIMENT, contents, wait_for

from jaxformer.checkpoints import files
from jaxformer.checkpoints.run_dir import locked
from jaxformer.cli.main import main
from jaxformer.errors import RunError

SHORT = ("--train.checkpoint-interval", "2", "--train.eval-interval", "4", "--train.keep", "2")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the experiment, and a run of four steps, which only copies may change."""
    home = tmp_path_factory.mktemp("home")
    (home / "tiny.py").write_text(EXPERIMENT)
    with contextlib.chdir(home):
        assert trained("whole", 4) == 0
    return home


@pytest.fixture
def place(home, tmp_path, monkeypatch):
    """A working folder with a copy of the run in `run`."""
    shutil.copy(home / "tiny.py", tmp_path)
    shutil.copytree(home / "whole", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(run, steps, *options):
    return main(
        ["train", "tiny.py", "--run-dir", str(run), "--train.steps", str(steps), *SHORT, *options]
    )


PATHS = {
    "..": lambda place: f"../{place.name}/sub/../run",
    "a trailing slash": lambda place: "run//",
    "a link": lambda place: "link",
    "a link in a link": lambda place: "links/again/",
    "~": lambda place: "~/run",
    "blanks": lambda place: "a  run, of % {mine} #1?",
    "not ASCII": lambda place: "прогон-실행-ö",
}


@pytest.mark.more
@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.quick("a link in a link")
def test_a_run_is_one_run_by_whatever_path_it_is_named(home, tmp_path, monkeypatch, capsys, kind):
    shutil.copy(home / "tiny.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("sub", "real", "links"):
        Path(folder).mkdir()
    os.symlink(tmp_path / "real", "link")
    os.symlink("../link", "links/again")
    path = PATHS[kind](tmp_path)
    assert trained(path, 4) == 0
    assert trained(path, 6) == 0
    assert "continuing from step 4" in capsys.readouterr().out
    assert main(["inspect", path]) == 0
    assert "steps held" in capsys.readouterr().out
    assert main(["evaluate", path]) == 0
    assert main(["export", f"{path}/checkpoints/6", "out"]) == 0
    assert not list(tmp_path.rglob("*.damaged*"))


@pytest.mark.parametrize(
    "where", ["checkpoints/4", "checkpoints/4/files.json", "checkpoints/4/state/_METADATA"]
)
@pytest.mark.first("checkpoints/4")
def test_what_cannot_be_read_is_not_damaged(place, capsys, monkeypatch, where):
    """Some errors of a disk, and of rights, which the user of the tests may not lack."""
    before, refused = contents(place / "run" / "checkpoints"), str(place / "run" / where)
    actual = Path.stat, Path.open, open

    def failing(function):
        def call(path, *args, **kwargs):
            if not isinstance(path, int) and os.path.abspath(path).startswith(refused):
                raise PermissionError(13, "Permission denied", os.fspath(path))
            return function(path, *args, **kwargs)

        return call

    for owner, name, function in zip(
        (Path, Path, __import__("builtins")), ("stat", "open", "open"), actual, strict=True
    ):
        monkeypatch.setattr(owner, name, failing(function))
    statuses = [trained("run", 6), main(["inspect", "run"]), main(["export", "run", "out"])]
    monkeypatch.undo()
    assert all(statuses)
    said = capsys.readouterr().err
    assert "Permission denied" in said
    assert "Traceback" not in said
    assert contents(place / "run" / "checkpoints") == before


@pytest.mark.parametrize(
    "name",
    [".lock", "metrics.jsonl", "wall_time.jsonl", "config.json", "evaluation.json", "loss.png"],
)
@pytest.mark.quick(".lock")
def test_nothing_is_written_through_a_link(place, name):
    outside = place / "precious"
    outside.write_bytes((place / "run" / name).read_bytes() if name != ".lock" else b"")
    if name in (".lock", "evaluation.json", "loss.png"):
        outside.write_text("years of work")
    before = outside.read_bytes()
    (place / "run" / name).unlink()
    (place / "run" / name).symlink_to(outside)
    status = trained("run", 6)
    assert outside.read_bytes() == before
    assert (status == 0) == (name != ".lock")


def test_the_checkpoints_of_another_run_are_not_reached_through_a_link(place, capsys):
    shutil.copytree("run", "copy")
    shutil.rmtree("copy/checkpoints")
    os.symlink("../run/checkpoints", "copy/checkpoints")
    before = contents(place / "run")
    assert trained("copy", 8) == 2
    assert "copy/checkpoints is a link" in capsys.readouterr().err
    assert contents(place / "run") == before


@pytest.mark.more
def test_a_step_that_is_a_link_is_removed_as_one(place):
    (place / "elsewhere").mkdir()
    os.rename("run/checkpoints/2", "elsewhere/2")
    os.symlink(place / "elsewhere/2", "run/checkpoints/2")
    before = contents(place / "elsewhere")
    assert trained("run", 8) == 0
    assert sorted(os.listdir("run/checkpoints")) == ["6", "8"]
    assert contents(place / "elsewhere") == before


def foreign_seed(place):
    assert trained("other", 6, "--train.seed", "5") == 0
    shutil.copytree("other/checkpoints/6", "run/checkpoints/6")


def renamed_step(place):
    shutil.copytree("run/checkpoints/4", "run/checkpoints/6")


def other_tokenizer(place):
    file = place / "run" / "tokenizer" / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": 5}))
    (place / "run" / "tokenizer" / "SHA256SUMS").unlink()


@pytest.mark.parametrize("change", [foreign_seed, renamed_step, other_tokenizer])
def test_a_checkpoint_belongs_to_its_run(place, capsys, change):
    change(place)
    before = contents(place / "run" / "checkpoints")
    capsys.readouterr()
    for status in (trained("run", 8), main(["inspect", "run"]), main(["export", "run", "out"])):
        assert status == 2
    assert "Traceback" not in capsys.readouterr().err
    assert contents(place / "run" / "checkpoints") == before


@pytest.mark.more
def test_a_changed_batch_size_of_steps_to_come_is_no_other_run(place):
    ramp = "--data.ramp Stage --data.ramp.0.batch-size 8 --data.ramp.0.until-step 6"
    assert trained("run", 6, *ramp.split(), "--data.batch-size", "4") == 0
    assert main(["inspect", "run", "--step", "4"]) == 0


@pytest.mark.parametrize("what", ["run", ".lock", "another in its place"])
@pytest.mark.more
@pytest.mark.quick("run", ".lock")
def test_a_run_that_was_removed_writes_nothing_more(place, capsys, what):
    """As the process would see it: the lock is asked before anything is committed."""
    seen = []

    def disturbed():
        with locked(Path("run")) as check:
            check()
            if what == ".lock":
                os.unlink("run/.lock")
            else:
                shutil.rmtree("run")
            if what == "another in its place":
                assert trained("run", 4) == 0
            seen.append(contents(place))
            check()

    with pytest.raises(RunError, match=r"^stopped: run .*removed"):
        disturbed()
    assert seen == [contents(place)]


@pytest.mark.slow
def test_a_step_that_is_read_is_deleted_after_that(place):
    hold = files.StepHold(place / "run" / "checkpoints" / "2")
    assert trained("run", 6) == 0
    assert files.saved_steps(place / "run" / "checkpoints") == [2, 4, 6]
    hold.close()
    assert trained("run", 8) == 0
    assert files.saved_steps(place / "run" / "checkpoints") == [6, 8]


@pytest.mark.slow
def test_a_run_is_read_while_it_trains(runs, tmp_path, monkeypatch):
    """With one checkpoint at a time, which would live for a step."""
    monkeypatch.chdir(tmp_path)
    often = "--train.checkpoint-interval 1 --train.keep 1 --train.eval-interval 9999"
    process = runs.start(Path("run"), "--train.steps", "9999", *often.split())
    try:
        wait_for(lambda: files.saved_steps(Path("run/checkpoints")), process)
        for number in range(3):
            assert main(["inspect", "run"]) == 0
            assert main(["generate", "run", "--prompt", "a", "--max-new-tokens", "2"]) == 0
            assert main(["export", "run", f"out-{number}"]) == 0
            assert main(["evaluate", "run", "--output", "found.json"]) == 0
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate()
    assert len(files.saved_steps(Path("run/checkpoints"))) <= 2
