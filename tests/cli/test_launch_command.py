"""`jaxformer launch` on configs of the repository."""

import re
import shlex
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from typed_commands import status_of

from jaxformer.cli.launch import JobSetRun, SlurmRun, TpuVmRun

ROOT = Path(__file__).parents[2]


@pytest.fixture
def launch(monkeypatch, capsys):
    """Runs a command line; returns the status, the output and the messages."""
    monkeypatch.chdir(ROOT)

    def run(command):
        return status_of("launch", *shlex.split(command)), *capsys.readouterr()

    return run


def test_a_slurm_script(launch):
    status, script, messages = launch(
        "slurm configs/llama3_8b.py --nodes 8 --setup 'source .venv/bin/activate' "
        "-- --train.steps 300"
    )
    assert (status, messages) == (0, "")
    assert "#SBATCH --nodes=8\n" in script
    assert "source .venv/bin/activate\n" in script
    assert "--run-dir runs/llama3-8b " in script
    assert "--train.steps 300\n" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_a_jobset(launch):
    status, text, messages = launch(
        "jobset configs/llama3_8b.py --chips v5p:4x4x4 --image me/jaxformer:1 --name try-1 "
        "--run-dir gs://bucket/run --env A=1 B=2 --program 'uv run jaxformer'"
    )
    assert status == 0
    assert messages.startswith("memory: fits: ")
    assert "95.73 GiB" in messages
    jobset = yaml.safe_load(text)
    (container,) = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert jobset["metadata"]["name"] == "try-1"
    assert container["command"][:5] == ["uv", "run", "jaxformer", "train", "configs/llama3_8b.py"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables == {
        "JAX_NUM_PROCESSES": "16",
        "JAX_COMPILATION_CACHE_DIR": "gs://bucket/compiled",
        "A": "1",
        "B": "2",
    }


def test_tpu_machines(launch):
    status, script, messages = launch(
        "tpu-vm llama3_8b --chips v6e:8x8 --zone us-east5-a --run-dir gs://bucket/run "
        "--setup 'pip install it' --no-check-memory"
    )
    assert (status, messages) == (0, "")
    assert "--accelerator-type=v6e-64" in script


@pytest.mark.slow
def test_what_cannot_fit_is_refused_unless_it_is_asked_for(launch):
    command = "jobset llama3_8b --chips v6e:4x4 --image i --run-dir gs://b/r"
    longer = "-- --data.sequence-length 131072 --data.batch-size 16"
    status, manifest, messages = launch(f"{command} {longer}")
    assert (status, manifest) == (2, "")
    assert re.fullmatch(
        r"error: llama3_8b needs \S+ of 31.24 GiB on each device of v6e:4x4: `jaxformer plan "
        r"llama3_8b --chips v6e:4x4`, .*--no-check-memory .*\n",
        messages,
    )
    status, manifest, messages = launch(f"{command} --no-check-memory {longer}")
    assert (status, messages) == (0, "")
    assert yaml.safe_load(manifest)["kind"] == "JobSet"


def test_a_config_that_takes_its_model_from_a_checkpoint(launch):
    command = "slurm finetune_classification --nodes 1 -- --init-from hf/bert --data.train a.csv"
    status, script, _ = launch(command)
    assert status == 0
    assert "--init-from hf/bert" in script
    assert launch(command + " --train.stepz 3")[0] == 2


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("slurm", "name an experiment first"),
        ("slurm configs/lama.py --nodes 1", "did you mean 'configs/llama.py'"),
        ("slurm llama3_8c --nodes 1", "did you mean 'llama3_8b'"),
        ("slurm llama3_8b", "nodes"),
        ("slurm llama3_8b --nodes 1 --name A_b", "name = 'A_b'"),
        ("slurm llama3_8b --nodes 1 --run-dir ftp://h/r", "run-dir = ftp://h/r"),
        ("slurm llama3_8b --nodes 1 --env A", "env = 'A'"),
        ("slurm llama3_8b --nodes 1 -- --train.stepz 3", "did you mean"),
        ("slurm llama3_8b --nodes 1 -- --run-dir a", "--run-dir"),
        ("slurm llama3_8b --nodes 8 -- --mesh.fsdp 128", "1 x 128 x 1"),  # of 64 devices
        ("slurm llama3_8b --nodes 8 -- --data.batch-size 3", "data.batch_size = 3"),
        ("jobset llama3_8b --chips v5p:4x4x4 --image i", "run-dir = 'runs/llama3-8b'"),
        ("tpu-vm llama3_8b --chips v6e:8x8 --zone z --run-dir gs://b/r", "setup = ()"),
        ("lsf llama3_8b", "'launch lsf' is not a command"),
    ],
)
def test_bad_input_is_one_sentence_and_no_file(launch, command, text):
    status, output, messages = launch(command)
    assert (status, output) == (2, "")
    assert text in messages
    assert messages.startswith("error: ")
    assert messages.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "options"), [("slurm", SlurmRun), ("jobset", JobSetRun), ("tpu-vm", TpuVmRun)]
)
def test_help(launch, command, options):
    assert f"launch {command}" in launch("--help")[1]
    status, output, _ = launch(f"{command} --help")
    assert status == 0
    assert "-- --train.steps 1000 > job." in output
    described = launch(f"{command} tiny_decoder --help")[1]
    for field in fields(options):
        assert f"--{field.name.replace('_', '-')}" in described


@pytest.mark.more
def test_every_launch_command_of_the_page_works(launch):
    page = (ROOT / "docs" / "pods.md").read_text()
    commands = re.findall(
        r"^python -m jaxformer launch (.*?) > \S+$", page, re.MULTILINE | re.DOTALL
    )
    assert len(commands) == 3
    for command in commands:
        status, output, messages = launch(command.replace("\\\n", " "))
        assert status == 0, command
        assert "--chips" not in command or messages.startswith("memory: fits: "), messages
        assert "--train.steps" in output
