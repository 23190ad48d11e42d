"""What a job is called, and which values it refuses."""

import pytest

from jaxformer.distributed.slices import parse_chips
from jaxformer.errors import ArgumentError
from jaxformer.launch import Job
from jaxformer.launch.google import accelerator_type, machine_type
from jaxformer.launch.job import check_nodes, default_name, is_label, variables


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("configs/llama3_8b.py", "llama3-8b"),
        ("configs/t5.py:11b", "t5-11b"),
        ("bert:base", "bert-base"),
        ("/shared/My Config.py:Größe,2", "my-config-gr-e-2"),
        ("2017_base.py", "run-2017-base"),
        ("x" * 90, "x" * 40),
    ],
)
def test_a_job_is_called_after_its_config(config, name):
    assert default_name(config) == name
    assert is_label(name)


@pytest.mark.parametrize("name", ["", "Llama", "a_b", "-a", "a-", "1a", "a.b", "a" * 64, "a b\n"])
def test_a_name_that_is_no_label(name):
    with pytest.raises(ArgumentError, match="must be a DNS label"):
        Job("c.py", "runs/a", name)


@pytest.mark.parametrize(
    ("run_dir", "text"),
    [
        (" ", "must be a folder or a bucket"),
        ("ftp://host/run", "must be a local path or gs://bucket/... or s3://"),
        ("gs://", "must name a bucket, such as gs://bucket/folder"),
    ],
)
def test_a_place_that_no_run_can_have(run_dir, text):
    with pytest.raises(ArgumentError, match=f"^run-dir = '?{run_dir}'?: {text}"):
        Job("c.py", run_dir, "c")


def test_the_command_of_each_process():
    job = Job("c.py", "gs://b/r", "c", ("--train.steps", "3"), program=("uv", "run", "jaxformer"))
    assert " ".join(job.command) == (
        "uv run jaxformer train c.py --run-dir gs://b/r --job.stopped-status 75 --train.steps 3"
    )


@pytest.mark.parametrize(
    ("run_dir", "folder"),
    [
        ("gs://bucket/run", "gs://bucket/compiled"),
        ("s3://bucket/a/run/", "s3://bucket/a/compiled"),
        ("/mnt/runs/llama", "/mnt/runs/compiled"),
        ("run", "compiled"),
        ("gs://bucket", ""),  # within the run itself, which holds nothing else
        ("gs://bucket/", ""),
    ],
)
def test_compiled_programs_are_kept_beside_the_run(run_dir, folder):
    job = Job("c.py", run_dir, "c")
    assert job.compiled == folder
    assert job.variables("tpu") == ({"JAX_COMPILATION_CACHE_DIR": folder} if folder else {})


def test_variables_of_the_environment():
    given = ["A=", "XLA_FLAGS=--a=1 --b=2"]
    assert variables(given) == (("A", ""), ("XLA_FLAGS", "--a=1 --b=2"))
    for wrong in ("A", "=1", "1A=2", "A-B=1", "A=1\nB=2"):
        with pytest.raises(ArgumentError, match="must be NAME=VALUE"):
            variables([wrong])


def test_nodes_are_those_of_the_chips():
    check_nodes(16, parse_chips("v5p:4x4x4"))
    check_nodes(None, parse_chips("v5p:4x4x4"))
    with pytest.raises(ArgumentError, match="nodes = 8: must be 16, the machines of v5p:4x4x4"):
        check_nodes(8, parse_chips("v5p:4x4x4"))


@pytest.mark.parametrize(
    ("chips", "name", "machine"),
    [
        ("v4:2x2x2", "v4-16", "ct4p-hightpu-4t"),
        ("v5e:16x16", "v5litepod-256", "ct5lp-hightpu-4t"),
        ("v5e:1x1", "v5litepod-1", "ct5lp-hightpu-1t"),
        ("v5p:4x4x4", "v5p-128", "ct5p-hightpu-4t"),
        ("v5p:4x4x4*2", "v5p-128", "ct5p-hightpu-4t"),
        ("v6e:4x4*4", "v6e-16", "ct6e-standard-4t"),
    ],
)
def test_google_names_a_slice(chips, name, machine):
    """As xpk's table and the documentation of Cloud TPU have them."""
    slices = parse_chips(chips)
    assert (accelerator_type(slices), machine_type(slices)) == (name, machine)


@pytest.mark.parametrize(
    ("chips", "text"),
    [
        ("tpu7x:4x4x4", "must be TPUs of the Cloud TPU API"),
        ("v5p:4x4x16", "must be v5p:4x8x8, the topology of"),
    ],
)
def test_a_slice_that_the_tpu_api_does_not_make(chips, text):
    with pytest.raises(ArgumentError, match=text):
        accelerator_type(parse_chips(chips))
