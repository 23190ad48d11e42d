"""The script of gcloud commands, run with a stand-in for gcloud."""

import subprocess

import pytest
from odd_words import ODD

from jaxformer.errors import ArgumentError
from jaxformer.launch import Job, TpuVm, tpu_vm_script

JOB = Job("configs/a.py", "gs://bucket/run", "llama", ODD, (("A", "1 $B"),))
ONE = TpuVm(chips="v6e:4x4", zone="us-east5-a", setup=("pip install it",))
TWO = TpuVm(
    chips="v5p:4x4x4*2", zone="z", project="p", spot=True, reservation="r", service_account="s@p",
    runtime="v2", setup=("true",),
)  # fmt: skip
WHERE = ["--zone=us-east5-a"]


@pytest.mark.parametrize("cluster_of_tpus", [ONE, TWO], ids=["one", "two"])
def test_bash_reads_the_script(cluster_of_tpus):
    script = tpu_vm_script(JOB, cluster_of_tpus)
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_machines_are_asked_for(cluster):
    cluster.stand_in("gcloud")
    assert cluster.run(tpu_vm_script(JOB, ONE), "create") == (0, "")
    assert cluster.run(tpu_vm_script(JOB, TWO), "create") == (0, "")
    one, two = cluster.calls()
    assert one == [
        *("gcloud", "compute", "tpus", "queued-resources", "create", "llama", *WHERE),
        *("--accelerator-type=v6e-16", "--runtime-version=v2-alpha-tpuv6e", "--node-id=llama"),
    ]
    assert two[5:] == [
        *("llama", "--zone=z", "--project=p", "--accelerator-type=v5p-128"),
        *("--runtime-version=v2", "--node-count=2", "--node-prefix=llama", "--spot"),
        *("--reservation=r", "--service-account=s@p"),
    ]


def test_the_run_starts_on_every_machine_as_it_was_typed(cluster):
    """The stand-in runs what it is to run on the machines, here."""
    cluster.stand_in(
        "gcloud",
        "command = [word for word in words if word.startswith('--command=')][0]\n"
        "subprocess.run(['bash', '-c', command.removeprefix('--command=')], check=True)\n",
    )
    cluster.stand_in("python", "assert os.environ['A'] == '1 $B'; print('trains')")
    assert cluster.run(tpu_vm_script(JOB, TWO), "start")[0] == 0
    log = cluster.folder / "llama.log"
    for _ in range(100):
        if log.exists() and log.read_text().count("trains") == 2:
            break
        subprocess.run(["sleep", "0.05"], check=True)
    calls = cluster.calls()
    asked = sorted(call[4:8] for call in calls if call[0] == "gcloud")
    assert asked == [["ssh", f"llama-{node}", "--zone=z", "--project=p"] for node in range(2)]
    assert all("--worker=all" in call for call in calls if call[0] == "gcloud")
    assert [call for call in calls if call[0] == "python"] == [list(JOB.command)] * 2
    assert int((cluster.folder / "llama.pid").read_text()) > 0


def test_waiting_ends_when_the_machines_are_there_or_never_will_be(cluster):
    cluster.stand_in("gcloud", "print('ACTIVE')")
    assert cluster.run(tpu_vm_script(JOB, ONE), "wait") == (0, "")
    cluster.stand_in("gcloud", "print('FAILED')")
    assert cluster.run(tpu_vm_script(JOB, ONE), "wait") == (1, "FAILED\n")


def test_after_a_preemption_everything_starts_again(cluster):
    cluster.stand_in("gcloud", "print('ACTIVE')")
    assert cluster.run(tpu_vm_script(JOB, ONE), "again")[0] == 0
    assert [call[4] for call in cluster.calls()] == ["delete", "create", "describe", "ssh", "ssh"]


def test_a_machine_that_fails_is_told(cluster):
    cluster.stand_in("gcloud", "sys.exit(3)")
    assert cluster.run(tpu_vm_script(JOB, ONE), "setup")[0] != 0


def test_an_unknown_step_is_one_sentence(cluster):
    status, output = cluster.run(tpu_vm_script(JOB, ONE), "strat")
    assert status == 2
    assert output == "error: STEP = 'strat': must be one of those at the top of this file\n"


@pytest.mark.parametrize(
    ("options", "run_dir", "text"),
    [
        ({"chips": "h100:64"}, "gs://b/r", "must be TPUs; GPUs are launched with `launch slurm`"),
        ({"chips": "tpu7x:4x4x4"}, "gs://b/r", "use `launch jobset`"),
        ({"nodes": 3}, "gs://b/r", "nodes = 3: must be 4"),
        ({"zone": "a b"}, "gs://b/r", "zone = 'a b': must be one word"),
        ({"setup": ("a\nb",)}, "gs://b/r", "setup = .*: must be lines of bash"),
        ({"setup": ()}, "gs://b/r", "as in --setup 'git clone URL project'"),
        ({}, "runs/a", "run-dir = 'runs/a': must be a bucket"),
    ],
)
def test_what_tpu_machines_cannot_be(options, run_dir, text):
    with pytest.raises(ArgumentError, match=text):
        tpu_vm_script(
            Job("a.py", run_dir, "a"),
            TpuVm(**{"chips": "v6e:4x4", "zone": "z", "setup": ("true",)} | options),
        )
