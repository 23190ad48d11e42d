"""The script of gcloud commands, run with a stand-in for gcloud."""

import subprocess
from dataclasses import replace

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


def test_machines_are_asked_for(cluster):
    cluster.stand_in("gcloud")
    assert cluster.run(tpu_vm_script(JOB, ONE), "create") == (0, "")
    assert cluster.run(tpu_vm_script(JOB, TWO), "create") == (0, "")
    one, two = cluster.calls()
    assert one == [
        "gcloud",
        "compute",
        "tpus",
        "queued-resources",
        "create",
        "llama",
        *WHERE,
        *("--accelerator-type=v6e-16", "--runtime-version=v2-alpha-tpuv6e", "--node-id=llama"),
    ]
    assert two[5:] == [
        *("llama", "--zone=z", "--project=p", "--accelerator-type=v5p-128"),
        *("--runtime-version=v2", "--node-count=2", "--node-prefix=llama", "--spot"),
        *("--reservation=r", "--service-account=s@p"),
    ]


def test_the_run_starts_on_every_machine_as_it_was_typed(cluster):
    homes = cluster.machines("llama-0", "llama-1")
    cluster.stand_in("python", "assert os.environ['A'] == '1 $B'; print('trains')")
    assert cluster.run(tpu_vm_script(JOB, TWO), "start")[0] == 0
    assert [status_of_the_run(home) for home in homes] == ["0", "0"]
    assert all("trains" in (home / "llama.log").read_text() for home in homes)
    calls = cluster.calls()
    asked = sorted(call[4:8] for call in calls if call[0] == "gcloud")
    assert asked == [["ssh", f"llama-{node}", "--zone=z", "--project=p"] for node in range(2)]
    assert all("--worker=all" in call for call in calls if call[0] == "gcloud")
    assert [call for call in calls if call[0] == "python"] == [list(JOB.command)] * 2
    assert all(int((home / "llama.pid").read_text()) > 0 for home in homes)


def status_of_the_run(home):
    file = home / "llama.status"
    for _ in range(200):
        if file.exists() and file.read_text():
            return file.read_text().strip()
        subprocess.run(["/bin/sleep", "0.05"], check=True)
    raise AssertionError("the run does not end")


@pytest.mark.parametrize(
    ("statuses", "starts", "last"),
    [
        ((1, 75, 75, 75, 137, 0), 6, "0"),  # failures, and stops that are not counted
        ((1, 1, 1, 1), 3, "1"),
        ((2, 0), 1, "2"),  # what is refused now is refused again
    ],
)
def test_a_machine_starts_the_run_again(cluster, statuses, starts, last):
    (home,) = cluster.machines("llama")
    cluster.stand_in(
        "python",
        f"statuses, file = {statuses}, 'starts'\n"
        "count = len(open(file).read()) if os.path.exists(file) else 0\n"
        "open(file, 'a').write('x')\n"
        "sys.exit(statuses[count])",
    )
    script = tpu_vm_script(JOB, replace(ONE, max_restarts=2))
    assert cluster.run(script, "start")[0] == 0
    assert status_of_the_run(home) == last
    assert len((cluster.folder / "starts").read_text()) == starts
    status, output = cluster.run(script, "keep")
    assert (status, "complete" in output) == ((0, True) if last == "0" else (1, False))


def test_a_run_that_is_stopped_by_hand_stays_stopped(cluster):
    (home,) = cluster.machines("llama")
    cluster.stand_in(
        "python",
        "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        "open('trains', 'w').close()\ntime.sleep(60)",
    )
    script = tpu_vm_script(JOB, ONE)
    assert cluster.run(script, "start")[0] == 0
    while not (cluster.folder / "trains").exists():
        subprocess.run(["/bin/sleep", "0.05"], check=True)
    assert "is running already" in cluster.run(script, "start")[1]
    assert cluster.run(script, "stop")[0] == 0
    assert status_of_the_run(home) == "75"
    assert [call[0] for call in cluster.calls()].count("python") == 1


def test_machines_that_were_taken_away_are_asked_for_again(cluster):
    cluster.stand_in("sleep")
    cluster.stand_in(
        "gcloud",
        "states, file = ['SUSPENDED', 'ACTIVE'], 'asked'\n"
        "if 'describe' in words:\n"
        "    print(states[os.path.exists(file)])\n"
        "    open(file, 'w').close()\n"
        "if any('status' in word for word in words): print(0)\n",
    )
    status, output = cluster.run(tpu_vm_script(JOB, ONE), "keep")
    assert (status, "complete" in output) == (0, True)
    made = [call[4] for call in cluster.calls() if call[0] == "gcloud"]
    expected = ["describe", "delete", "create", "describe", "ssh", "ssh", "describe", "ssh"]
    assert made == expected


def test_setup_makes_a_newer_python(cluster):
    """With stand-ins for curl, whose script installs uv, and for uv."""
    cluster.machines()
    cluster.stand_in(
        "curl", "print('mkdir -p ~/.local/bin; cp \"$(command -v uv-)\" ~/.local/bin/uv')"
    )
    cluster.stand_in(
        "uv-",
        "if words[1] == 'venv':\n"
        "    os.makedirs(words[-1] + '/bin')\n"
        "    open(words[-1] + '/bin/activate', 'w').write('export ACTIVE=1')",
    )
    cluster.stand_in("sh", "os.execv('/bin/sh', ['sh', *words[1:]])")
    cluster.stand_in("it", "assert os.environ['ACTIVE'] == '1'")
    script = tpu_vm_script(JOB, replace(ONE, setup=("it", "uv pip install x")))
    assert cluster.run(script, "setup")[0] == 0
    made = [call for call in cluster.calls() if call[0] in ("uv", "it")]
    folder = str(cluster.folder / "llama" / "jaxformer-python")
    venv = ["uv", "venv", "--seed", "--python", "3.12", folder]
    assert made == [venv, ["it"], ["uv", "pip", "install", "x"]]


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
        ({"max_restarts": -1}, "gs://b/r", "max-restarts = -1"),
        ({"nodes": 3}, "gs://b/r", "nodes = 3"),
        ({"zone": "a b"}, "gs://b/r", "zone = 'a b'"),
        ({"setup": ("a\nb",)}, "gs://b/r", "setup ="),
        ({"setup": ()}, "gs://b/r", "as in --setup 'git clone URL project'"),
        ({}, "runs/a", "run-dir = 'runs/a'"),
    ],
)
def test_what_tpu_machines_cannot_be(options, run_dir, text):
    with pytest.raises(ArgumentError, match=text):
        tpu_vm_script(
            Job("a.py", run_dir, "a"),
            TpuVm(**{"chips": "v6e:4x4", "zone": "z", "setup": ("true",)} | options),
        )
