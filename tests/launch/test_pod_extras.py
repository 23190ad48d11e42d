"""The extras of a pod: they have what its run needs, and a run starts with them."""

import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import fsspec
import pytest
import yaml
from object_store import gcs_server  # noqa: F401 (a fixture)

from jaxformer.cli import main as cli
from jaxformer.io.paths import SCHEMES

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pods.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = [path for path in (ROOT / "jaxformer" / "launch").glob("*.py") if "[" in path.read_text()]
needs_index = pytest.mark.skipif(
    "JAXFORMER_INSTALLS" not in os.environ, reason="installs: set JAXFORMER_INSTALLS=1"
)


def libraries(extra):
    """The names of what an extra installs, those of the extras within it included."""
    found = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        name, _, inner = re.match(r"([\w-]+)(\[([\w,-]+)\])?", requirement).groups()
        own = name == PROJECT["name"]
        found |= set() if own else {f"{name}[{inner}]" if inner else name}
        found |= set().union(*map(libraries, inner.split(","))) if own else set()
    return found


def installed(text):
    """The extras of each `pip install` in a text."""
    found = re.findall(r"(?:jaxformer|\.|\./\w+)\[([a-z0-9,-]+)\]", text, re.IGNORECASE)
    return [names.split(",") for names in found]


def launched(capsys, command):
    assert cli.main(["launch", *command]) == 0
    return capsys.readouterr().out


def test_the_extras_of_every_page_and_message_exist():
    named = installed(PAGE) + [names for path in SOURCES for names in installed(path.read_text())]
    assert {"pod-tpu", "pod-gpu"} <= set(itertools.chain(*named))
    for extra in itertools.chain(*named):
        assert libraries(extra), extra


@pytest.mark.parametrize(
    ("command", "accelerator"),
    [
        (("jobset", "--chips", "v6e:2x4", "--image", "i"), "tpu"),
        (("jobset", "--chips", "h100:8", "--image", "i"), "cuda"),
        (("slurm", "--nodes", "1"), "cuda"),
    ],
    ids=["jobset of TPUs", "jobset of GPUs", "slurm"],
)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.quick("gs-slurm")
def test_what_a_file_says_to_install_reaches_its_bucket(capsys, command, accelerator, scheme):
    kind, *options = command
    where = ("--run-dir", f"{scheme}://bucket/run", "--", "--mesh.data", "-1")
    text = launched(capsys, (kind, "tiny_decoder", *options, *where))
    found = set().union(*map(libraries, installed(text)[0]))
    assert {SCHEMES[scheme], "optax", "pyarrow", f"jax[{accelerator}]"} <= found


@pytest.fixture(scope="module")
def pod(tmp_path_factory):
    """Python in an environment with only what the manifest of a TPU says."""
    folder = tmp_path_factory.mktemp("pod")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", f"{ROOT}[pod-tpu]"],
        check=False, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return python


@needs_index
@pytest.mark.slow
@pytest.mark.usefixtures("gcs_server")
def test_a_run_in_a_bucket_starts_with_what_the_manifest_installs(capsys, pod, tmp_path):
    options = ("--chips", "v6e:1x1", "--image", "i", "--program", f"{pod} -m jaxformer")
    steps = ("--train.steps", "2", "--data.batch-size", "4")
    bucket = fsspec.filesystem("gs", project="of-a-test")
    bucket.mkdir("pods")
    place = ("--run-dir", "gs://pods/run", "--", *steps)
    manifest = yaml.safe_load(launched(capsys, ("jobset", "tiny_decoder", *options, *place)))
    (replicated,) = manifest["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX", "PYTHON", "XLA"))}
    kept |= {"JAX_PLATFORMS": "cpu", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    kept |= {"JAXFORMER_CACHE": str(tmp_path / "cache")}
    told = {entry["name"]: entry["value"] for entry in container["env"]}
    for _ in range(2):  # the same manifest, applied again
        run = subprocess.run(
            container["command"], cwd=tmp_path, check=False, capture_output=True, text=True,
            env=kept | told, timeout=600,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
    assert "at step 2" in run.stdout
    told = subprocess.run(
        [pod, "-m", "jaxformer", "goodput", "gs://pods/run", "--json"],
        cwd=tmp_path, check=True, capture_output=True, text=True, env=kept, timeout=300,
    )  # fmt: skip
    assert [start["to_step"] for start in json.loads(told.stdout)["starts"]] == [2, 2]
    assert [file for file in bucket.ls("pods/compiled") if file.endswith("-cache")]


@needs_index
@pytest.mark.slow
def test_the_libraries_of_gpu_pods_fit_together(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    subprocess.run([*command, "--report", report, f"{ROOT}[pod-gpu]"], check=True, timeout=1800)
    names = {item["metadata"]["name"] for item in json.loads(report.read_text())["install"]}
    assert {"gcsfs", "s3fs"} <= names
    assert any(name.startswith("jax-cuda") for name in names)
