"""The commands other than training: inspect and help."""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from typed_commands import printed, refused

import jaxformer
from jaxformer.checkpoints.checkpointer import Checkpointer, content_hash, named_arrays
from jaxformer.checkpoints.run_dir import open_run_folder
from jaxformer.cli import main as cli
from jaxformer.config import Config
from jaxformer.distributed import MeshConfig
from jaxformer.distributed.join import DistributedConfig, join, make_cpu_devices
from jaxformer.errors import ConfigError
from jaxformer.io.serialization import to_json
from jaxformer.models import DecoderConfig

ROOT = Path(__file__).parents[2]
CONFIG = Config(DecoderConfig(vocab_size=8, num_layers=1, model_dim=8, num_heads=1, mlp_dim=8))
STATE = {
    "params": {"a.kernel": np.arange(6.0).reshape(2, 3), "b": np.ones(4)},
    "opt_state": (np.zeros(3),),
    "step": np.int32(7),
}


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "run"
    open_run_folder(folder, CONFIG)
    checkpointer = Checkpointer(folder / "checkpoints", to_json(CONFIG), keep=3)
    for step, loss in ((2, 3.0), (4, 2.5), (6, None)):
        state = jax.tree.map(lambda x, step=step: jax.numpy.asarray(x + step), STATE)
        checkpointer.save(step, state, loss and {"loss": loss})
    checkpointer.close()
    return folder


def field(output, name):
    (line,) = [line for line in output.splitlines() if line.startswith(name)]
    return line.removeprefix(name).strip()


def test_inspect_shows_steps_configuration_and_content(run_dir, capsys):
    output = printed(capsys, "inspect", run_dir)
    assert field(output, "steps held") == "2, 4, 6"
    assert field(output, "best step") == "4 (loss 2.5000)"
    assert field(output, "validation") == "not measured at step 6"
    assert field(output, "parameters") == "10"
    assert field(output, "model").startswith("DecoderConfig(num_layers=1, model_dim=8")
    state = jax.tree.map(lambda x: jax.numpy.asarray(x + 6), STATE)
    digest = content_hash(named_arrays(state).items())
    assert field(output, "content hash") == f"{digest} (step 6)"


def test_inspect_takes_a_step_and_names_damage(run_dir, capsys):
    (run_dir / "checkpoints" / "6" / "config" / "metadata").unlink()
    output = printed(capsys, "inspect", run_dir, "--step", 2)
    assert "(step 2)" in field(output, "content hash")
    assert field(output, "steps held") == "2, 4"
    assert field(output, "step 6 is damaged") == "config/metadata is missing"
    assert "contains 2, 4" in refused(capsys, "inspect", run_dir, "--step", 3)


def test_inspect_of_something_else(tmp_path, capsys):
    assert "is not a run folder" in refused(capsys, "inspect", tmp_path)


def test_help_lists_the_commands(capsys):
    output = printed(capsys, "--help")
    assert all(f"\n  {name} " in output for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_a_help(name, capsys):
    assert printed(capsys, name, "--help").startswith(f"usage: jaxformer {name} ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no command; choose one of train, plan, inspect"),
        (["inspct"], "'inspct' is not a command; did you mean 'inspect'?"),
        (["inspect", "run", "--stpe", "3"], "Unknown option --stpe; did you mean --step?"),
        (["zoo", "--all"], "Unknown option --all; available options are --details"),
        (["compare"], "name the folder of at least one run"),
        (["evaluate", "--step", "3"], "name a run first: jaxformer evaluate RUN_DIR"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, capsys):
    assert message in refused(capsys, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [["inspect"], ["inspect", "a", "b"], ["inspect", "a", "--step", "x"], ["forward", "a"],
     ["forward", "a", "--hidden-states", "True", "--inputs", "b", "--output", "c"],
     ["export", "a", "b", "--dtype", "int8"]],
)  # fmt: skip
def test_what_does_not_parse_exits_with_status_2(arguments, capsys):
    assert refused(capsys, *arguments)


def test_options_may_come_before_folders(run_dir, capsys):
    output = printed(capsys, "inspect", "--step", 2, run_dir)
    assert "(step 2)" in field(output, "content hash")


def test_jobs_described_in_part_are_refused(monkeypatch):
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    assert join(DistributedConfig()) == 1
    with pytest.raises(ConfigError, match="coordinator"):
        join(DistributedConfig(num_processes=2, process_id=0))
    with pytest.raises(ConfigError, match="process-id"):
        join(DistributedConfig(coordinator="localhost:1", num_processes=2))


@pytest.mark.parametrize(
    ("mesh", "processes", "environment", "devices"),
    [
        (MeshConfig(tensor=2), 1, {}, 2),
        (MeshConfig(data=2, tensor=2), 2, {}, 2),
        (MeshConfig(), 1, {}, None),
        (MeshConfig(data=-1), 1, {}, None),
        (MeshConfig(data=8), 1, {}, None),  # more than the cores
        (MeshConfig(tensor=2), 1, {"JAX_NUM_CPU_DEVICES": "4"}, None),
        (MeshConfig(tensor=2), 1, {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, None),
    ],
)
def test_virtual_devices_for_the_mesh_as_typed(monkeypatch, mesh, processes, environment, devices):
    for name in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    updates = {}
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    make_cpu_devices(mesh, processes)
    assert updates == ({} if devices is None else {"jax_num_cpu_devices": devices})


@pytest.mark.more
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["train.py", "configs/tiny_decoder.py", "--help"], 1, "closed by its reader"),
        (["-m", "jaxformer", "--help"], 0, ""),  # the list of commands may be read in part
    ],
)
def test_a_reader_who_leaves_early_gets_no_traceback(words, status, said):
    command = [sys.executable, "-W", "ignore", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert said in errors
    assert len(errors.splitlines()) == bool(said)
    assert process.returncode == status


@pytest.mark.more
def test_a_command_runs_with_its_output_closed(tmp_path):
    """As that of a daemon may be."""
    command = [sys.executable, "-W", "ignore", "-m", "jaxformer", "zoo", "gpt2"]
    shell = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], cwd=tmp_path, capture_output=True, check=False
    )
    assert (shell.returncode, shell.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("command", "module", "library", "extra"),
    [
        ("train", "jaxformer.cli.training.train", "grain", "train"),
        ("generate", "jaxformer.cli.inference.generate", "tokenizers", "hub"),
        ("verify", "jaxformer.cli.hub.parity", "torch", "parity"),
    ],
)
def test_a_missing_library_names_its_extra(command, module, library, extra, capsys, monkeypatch):
    """The first module that is imported of it is found missing."""

    def missing(name):
        assert name == module
        raise ModuleNotFoundError(f"No module named {library!r}", name=f"{library}.part")

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    message = f"jaxformer {command} needs {library}: pip install 'jaxformer[{extra}]'"
    assert refused(capsys, command) == f"error: {message}\n"


def test_the_version_names_what_computes(capsys):
    output = printed(capsys, "--version")
    assert all(each in output for each in (jaxformer.__version__, jax.__version__))
