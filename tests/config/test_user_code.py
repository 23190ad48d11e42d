"""The user's Python: experiment files that fail, and components that a run finds again."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxformer.checkpoints.run_dir import open_run_folder, read_config
from jaxformer.config import load_config
from jaxformer.config.overrides import component_choices
from jaxformer.config.user_code import (
    KEPT_FILE,
    check_unchanged,
    experiment_text,
    find_user_class,
    import_file,
    in_one_sentence,
    origins,
)
from jaxformer.errors import ConfigError
from jaxformer.io.serialization import to_json

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "training.md").read_text()
DOCUMENTED = re.search(r"## Your own components.*?```python\n(.*?)```", GUIDE, re.DOTALL)[1]
"""The experiment that the documentation shows."""


@pytest.fixture(autouse=True)
def as_in_another_process():
    """Forgets what was imported from the user's files."""
    path = list(sys.path)

    def forget():
        for name in [name for name in sys.modules if name.startswith(("experiment@", "own_"))]:
            del sys.modules[name]
        sys.path[:] = path

    yield forget
    forget()


def experiment(folder, text=DOCUMENTED, name="grouped.py"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return load_config(str(folder / name))


# Files that fail --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"x = 1\ny = = 2\n", r"mine\.py:2: SyntaxError: invalid syntax"),
        (b"\x89PNG\r\n\x1a\n\x00", r"mine\.py.*: (SyntaxError|ValueError): "),
        (b"x = 1\x00", r"mine\.py.*: (SyntaxError|ValueError): .*null bytes"),
        (b"x = 1\nimport no_such_module\n", r"mine\.py:2: ModuleNotFoundError: No module named"),
        (b"from own_broken import x\n", r"own_broken\.py:1: ZeroDivisionError: division by zero"),
        (b"def get_config():\n    return 1 / 0\n", r"mine\.py:2: ZeroDivisionError"),
        (b"def get_config():\n    return {}['a']\n", r"mine\.py:2: KeyError: 'a'"),
        (b"def get_config():\n    raise SystemExit(3)\n", r"mine\.py:2: SystemExit: 3"),
        (b"def get_config(size): pass\n", r"mine\.py: TypeError: .* 'size'"),
        (b"get_config = 3\n", r"mine\.py does not define get_config\(\)"),
        (b"def get_config():\n    return 3\n", r"mine\.py: get_config\(\) returned a int, not"),
        (
            b"from jaxformer.config.train import TrainConfig\n"
            b"def get_config():\n    return TrainConfig(steps=-1)\n",
            r"mine\.py:3: .*steps",
        ),
        (
            b"from jaxformer.config.train import TrainConfig\n"
            b"def get_config():\n    return TrainConfig(step=1)\n",
            r"mine\.py:3: TypeError: .* 'step'",
        ),
        (DOCUMENTED.replace("steps=300", "steps=3e2").encode(), r"steps = 300.0: must be an int"),
        (DOCUMENTED.replace("1e4", "1e4, group=True").encode(), r"group = True: must be an int"),
    ],
)
def test_what_goes_wrong_in_an_experiment_is_one_sentence(tmp_path, text, message):
    (tmp_path / "own_broken.py").write_text("1 / 0\n")
    (tmp_path / "mine.py").write_bytes(text)
    with pytest.raises(ConfigError) as error:
        load_config(str(tmp_path / "mine.py"))
    assert re.search(message, str(error.value)), str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="is not a file"):
        load_config(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be read"):
        import_file(tmp_path)


def test_an_interruption_stays_one(tmp_path):
    with pytest.raises(KeyboardInterrupt), in_one_sentence(tmp_path):
        raise KeyboardInterrupt


# Components of one's own ------------------------------------------------------------------------


def test_the_same_text_defines_the_same_classes(tmp_path):
    first, second = experiment(tmp_path / "a"), experiment(tmp_path / "b")
    assert first == second
    assert not list(tmp_path.rglob("__pycache__"))
    changed = experiment(tmp_path / "b", DOCUMENTED + "x = 1\n")
    assert first != changed
    assert to_json(first) == to_json(changed)
    assert component_choices(first.model, "position").keys() > {"RoPE", "GroupedRoPE"}


def test_a_run_keeps_its_components(tmp_path, caplog, as_in_another_process):
    config = experiment(tmp_path / "there")
    run = tmp_path / "run"
    open_run_folder(run, config)
    assert (run / KEPT_FILE).read_text() == DOCUMENTED
    assert read_config(run) == config
    assert not caplog.messages

    (tmp_path / "there" / "grouped.py").unlink()
    as_in_another_process()
    found = read_config(run)
    assert caplog.messages == [f"executing {run / KEPT_FILE}, which defines experiment.GroupedRoPE"]
    assert to_json(found) == to_json(config)
    assert found.model.position.group == 2

    # A run made of this one keeps them too.
    open_run_folder(tmp_path / "merged", found)
    assert (tmp_path / "merged" / KEPT_FILE).read_text() == DOCUMENTED
    config_files = [tmp_path / name / "config.json" for name in ("run", "merged")]
    assert config_files[0].read_text() == config_files[1].read_text()


def test_a_run_of_the_library_keeps_and_executes_nothing(tmp_path):
    config = experiment(tmp_path, DOCUMENTED.replace("GroupedRoPE(theta", "RoPE(theta"))
    assert origins(config) == {}
    assert experiment_text(config) is None
    open_run_folder(tmp_path / "run", config)
    assert sorted(item.name for item in (tmp_path / "run").iterdir()) == ["config.json"]
    (tmp_path / "run" / KEPT_FILE).write_text("1 / 0")
    assert read_config(tmp_path / "run") == config


@pytest.mark.parametrize(
    ("old", "new", "is_refused"),
    [
        ("steps=300", "steps=400", False),
        ("class GroupedRoPE", "# a comment\nclass GroupedRoPE", False),
        ('"""Tokens that share a position."""', '"""Other words."""', False),
        ("def get_config", "UNRELATED = 3\n\n\ndef get_config", False),
        ("query_positions // self.group", "query_positions * self.group", True),
        ("query_positions // self", "FACTOR * query_positions // self", True),
        ("group: int = 2", "group: int = 3", True),
    ],
)
def test_a_changed_component_is_another_run(tmp_path, as_in_another_process, old, new, is_refused):
    text = "FACTOR = 2\n" + DOCUMENTED
    open_run_folder(tmp_path / "run", experiment(tmp_path, text))
    as_in_another_process()
    changed = experiment(tmp_path, text.replace(old, new))
    kept = tmp_path / "run" / KEPT_FILE
    if not is_refused:
        check_unchanged(changed, kept)
        return
    with pytest.raises(ConfigError, match=r"the code of GroupedRoPE differs from .*experiment\.py"):
        open_run_folder(tmp_path / "run", changed)
    assert kept.read_text() == text


def test_what_a_component_uses_belongs_to_it(tmp_path):
    text = DOCUMENTED.replace("query_positions // self.group", "_first(query_positions)")
    text += "\ndef _first(positions):\n    return positions // LENGTH\n\nLENGTH = 2\n"
    open_run_folder(tmp_path / "run", experiment(tmp_path, text))
    changed = experiment(tmp_path, text.replace("LENGTH = 2", "LENGTH = 3"))
    with pytest.raises(ConfigError, match="the code of GroupedRoPE"):
        open_run_folder(tmp_path / "run", changed)


def test_a_folder_with_an_experiment_of_the_users_is_not_a_runs(tmp_path):
    config = experiment(tmp_path / "there", name=KEPT_FILE)
    (tmp_path / "there" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not a run folder: .* contains notes.txt"):
        open_run_folder(tmp_path / "there", config)
    (tmp_path / "there" / KEPT_FILE).write_text("other = 1")
    with pytest.raises(ConfigError, match=r"contains experiment.py, notes.txt"):
        open_run_folder(tmp_path / "there", config)


# A component in a module beside the experiment.
MODULE = DOCUMENTED.partition("def get_config")[0]
IMPORTING = (
    "from own_rope import GroupedRoPE\n"
    + DOCUMENTED.partition("@dataclass")[0]
    + ("def get_config" + DOCUMENTED.partition("def get_config")[2])
)


def test_a_component_of_a_module(tmp_path, caplog, as_in_another_process):
    (tmp_path / "there").mkdir()
    module = tmp_path / "there" / "own_rope.py"
    module.write_text(MODULE)
    config = experiment(tmp_path / "there", IMPORTING)
    run = tmp_path / "run"
    open_run_folder(run, config)
    assert not (run / KEPT_FILE).exists()
    assert read_config(run) == config

    as_in_another_process()
    assert to_json(read_config(run)) == to_json(config)
    assert caplog.messages == [
        f"importing own_rope (it was in {tmp_path / 'there'}), which defines own_rope.GroupedRoPE"
    ]

    module.write_text(MODULE.replace("query_positions // ", "query_positions * ") + "\nX = 1\n")
    as_in_another_process()
    read_config(run)
    assert "own_rope.GroupedRoPE has changed since this run was started" in caplog.messages[-1]

    module.write_text("")
    as_in_another_process()
    with pytest.raises(ConfigError, match=r"own_rope.py does not define GroupedRoPE"):
        read_config(run)
    module.unlink()
    as_in_another_process()
    with pytest.raises(ConfigError, match="the module own_rope, which defines own_rope"):
        read_config(run)


def test_classes_that_could_not_be_found_again(tmp_path, monkeypatch):
    inside = "def get_config" + DOCUMENTED.partition("def get_config")[2].replace(
        "    model = ", "    class Own(RoPE):\n        pass\n    model = "
    ).replace("GroupedRoPE(", "Own(")
    text = DOCUMENTED.partition("@dataclass")[0] + inside
    with pytest.raises(ConfigError, match="Own is defined in a function, where it cannot be found"):
        open_run_folder(tmp_path / "run", experiment(tmp_path, text))
    assert not (tmp_path / "run").exists()

    config = experiment(tmp_path)
    monkeypatch.setattr(type(config.model.position), "__module__", "__main__")
    with pytest.raises(ConfigError, match="GroupedRoPE is defined in __main__"):
        origins(config)


def test_components_of_two_experiments(tmp_path):
    experiment(tmp_path / "other", DOCUMENTED + "\nOTHER = True\n")
    text = DOCUMENTED.replace("class Grouped", "class Twice").replace(
        "position=GroupedRoPE(theta=1e4)",
        "position=TwiceRoPE(theta=1e4), relative_position=load_config("
        f"{str(tmp_path / 'other' / 'grouped.py')!r}).model.position",
    )
    text = text.replace("import Config,", "import Config, load_config,")
    with pytest.raises(ConfigError, match="both define components of this run"):
        experiment_text(experiment(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("os.system", {}, "os.system is not a library class"),
        ("own.X", {"own.X": 3}, "is not a library class"),
        ("own.X", {"own.X": {"folder": 3}}, "is not a library class"),
        ("own.X", [1], "is not a library class"),
        ("own.X", None, "is not a library class"),
        ("experiment.X", {"experiment.X": {"folder": "."}}, "experiment.py, which defines exp"),
        ("own_none.X", {"own_none.X": {"module": "own_none"}}, "module own_none, which defines"),
        ("..x.X", {"..x.X": {"module": "..x", "folder": "\0"}}, "module ..x, which defines"),
        ("json.X", {"json.X": {"module": "json"}}, "does not define X"),
    ],
)
def test_what_a_hostile_configuration_names(tmp_path, name, known, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        find_user_class(name, known, tmp_path / KEPT_FILE)


def test_what_is_no_component_is_not_built(tmp_path):
    open_run_folder(tmp_path / "run", experiment(tmp_path))
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    saved["model"]["position"] = {"type": "subprocess.Popen", "args": "ls"}
    saved["origins"] = {"subprocess.Popen": {"module": "subprocess", "folder": "."}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(saved))
    with pytest.raises(ConfigError, match=r"'subprocess\.Popen' is not a known type"):
        read_config(tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "expected a JSON object, found a number"),
        (
            '{"type": "jaxformer.config.experiment.Config", "model": "x"}',
            "config.model = 'x': must be",
        ),
    ],
)
def test_configurations_that_are_none(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        read_config(tmp_path)
    assert len(str(error.value)) < 1000


# The whole of it, each step in a separate process ------------------------------------------------

TINY = [
    *("--train.steps", "4"),
    *("--train.eval-interval", "2"),
    *("--train.checkpoint-interval", "2"),
    *("--train.sample-tokens", "0"),
    *("--data.source.max-bytes", "60000"),
    *("--data.sequence-length", "32"),
    *("--data.batch-size", "4"),
    *("--data.max-validation-batches", "1"),
    *("--optimizer.schedule.warmup-steps", "1"),
]


@pytest.mark.slow
def test_a_run_with_own_components_is_opened_by_everything_from_anywhere(tmp_path):
    there, elsewhere, run = tmp_path / "there", tmp_path / "elsewhere", tmp_path / "run"
    there.mkdir()
    elsewhere.mkdir()
    file = there / "grouped.py"
    file.write_text(DOCUMENTED)

    def start(*arguments, status=0):
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "JAX_NUM_CPU_DEVICES": "1",
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
        )
        output = done.stdout + done.stderr
        assert done.returncode == status, output
        assert "Traceback" not in output
        return output

    train, command = (ROOT / "train.py", file), ("-m", "jaxformer")
    choices = start(*train, "--help")
    assert re.search(r"--model.position \{.*RoPE,GroupedRoPE,.*\} \(now GroupedRoPE\)", choices)
    start(*train, "--run-dir", run, *TINY)
    more = [*TINY, "--train.steps", "6"]
    assert "continuing from step 4" in start(*train, "--run-dir", run, *more)
    tuned = [*TINY, "--init-from", run, "--train.lora", "LoRA", "--run-dir", tmp_path / "tuned"]
    start(*train, *tuned)
    file.unlink()
    used = f"executing {run / KEPT_FILE}, which defines experiment.GroupedRoPE"
    prompt = ("--prompt", "The", "--max-new-tokens", "3")
    for words in (("generate", run, *prompt), ("evaluate", run)):
        assert used in start(*command, *words)
    assert "position=GroupedRoPE(" in start(*command, "inspect", run)
    start(*command, "compare", run, tmp_path / "tuned")
    refusal = start(*command, "export", run, tmp_path / "exported", status=2)
    assert "position.type = 'GroupedRoPE'" in refusal
    start(*command, "merge", tmp_path / "tuned", tmp_path / "merged")
    # The copy is an experiment's file itself.
    again = (ROOT / "train.py", tmp_path / "merged" / KEPT_FILE)
    start(*again, "--init-from", tmp_path / "merged", "--run-dir", tmp_path / "again", *TINY)
