"""Who trains together, read from options and from what launchers put into the environment."""

import importlib.util
import socket
import sys
import urllib.error
from io import BytesIO
from unittest.mock import Mock

import pytest

from jaxformer.distributed.cluster import DistributedConfig as Config
from jaxformer.distributed.cluster import find_processes
from jaxformer.distributed.join import join
from jaxformer.distributed.launchers import Processes, tpu
from jaxformer.distributed.launchers.base import host_of
from jaxformer.distributed.launchers.kubernetes import indexed_job
from jaxformer.distributed.launchers.tasks import first_node
from jaxformer.errors import ConfigError

JOB = 70001  # 70001 % 4096 = 369
PORT = 65535 - 4095 + 369


def srun(nodes, tasks_per_node, **more):
    """What srun gives each of its tasks, in their order: a list of tasks for each node."""
    groups = []
    for tasks in tasks_per_node:
        if groups and groups[-1][0] == tasks:
            groups[-1][1] += 1
        else:
            groups.append([tasks, 1])
    written = ",".join(f"{size}(x{times})" if times > 1 else str(size) for size, times in groups)
    places = [(node, task) for node, tasks in enumerate(tasks_per_node) for task in range(tasks)]
    return [
        {
            "SLURM_JOB_ID": str(JOB),
            "SLURM_JOB_NUM_NODES": str(len(tasks_per_node)),
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NODELIST": nodes,
            "SLURM_STEP_NUM_TASKS": str(len(places)),
            "SLURM_STEP_TASKS_PER_NODE": written,
            "SLURM_NTASKS": str(len(places)),
            "SLURM_PROCID": str(index),
            "SLURM_NODEID": str(node),
            "SLURM_LOCALID": str(task),
        }
        | more
        for index, (node, task) in enumerate(places)
    ]


SLURM, ONE_EACH = srun("gpu[017-018]", [4, 4])[6], srun("gpu[017-018]", [1, 1])[1]
ALLOCATED = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_NNODES": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}
POD = {"TPU_WORKER_ID": "2", "TPU_WORKER_HOSTNAMES": "t-0,t-1,t-2,t-3"}
SLICES = {
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "m-0:8080",
}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
INDEXED = KUBERNETES | {"JOB_COMPLETION_INDEX": "3"}
JOBSET = INDEXED | {"JOBSET_NAME": "run", "REPLICATED_JOB_NAME": "workers"}
JAXJOB = KUBERNETES | {
    "COORDINATOR_ADDRESS": "run-worker-0",
    "COORDINATOR_PORT": "6666",
    "NUM_PROCESSES": "3",
    "PROCESS_ID": "2",
}
HERE = {"JAX_COORDINATOR_ADDRESS": "h:1"}
ASKED = Processes(None, None, None)


def assert_refused(job, variables, *texts):
    with pytest.raises(ConfigError) as caught:
        find_processes(job, variables)
    for text in texts:
        assert text in str(caught.value)


@pytest.fixture(autouse=True)
def no_device_files(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxformer.distributed.launchers.tasks._DEVICE_FILES", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("job", "variables", "expected"),
    [
        (Config(), {}, None),
        (Config("h:1", 2, 0), {}, Processes("h:1", 2, 0)),
        (Config("[fe80::1]:1", 2, 1), {}, Processes("[fe80::1]:1", 2, 1)),
        (Config(), HERE | {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"},
         Processes("h:1", 2, 1)),
        (Config("o:2", 3), HERE | {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"},
         Processes("o:2", 3, 1)),
        *(
            (Config(), {"JAX_COORDINATOR_ADDRESS": host, "JAX_COORDINATOR_PORT": "9",
                        "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"},
             Processes(address, 2, 0))
            for host, address in {"h": "h:9", "[fe80::1]": "[fe80::1]:9", "h:1": "h:1"}.items()
        ),
        (Config(num_processes=1), INDEXED, None),
        (Config(), SLURM | {"JAX_NUM_PROCESSES": "1"}, None),
        (Config(auto=True), {}, ASKED),
        # srun.
        (Config("h:1"), ONE_EACH, Processes("h:1", 2, 1)),
        # A step of fewer tasks than the allocation, whose shell is no job at all.
        (Config(), ONE_EACH | {"SLURM_NTASKS": "8"}, Processes(f"gpu017:{PORT}", 2, 1)),
        (Config(), SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, None),
        (Config(), {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),
        (Config(), {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "9"}, None),
        (Config(), ONE_EACH | {"JAX_COORDINATOR_PORT": "1234"}, Processes("gpu017:1234", 2, 1)),
        # mpirun; within an allocation of SLURM its daemons are the tasks.
        (Config(), OPEN_MPI, Processes("10.96.0.1:62624", 4, 3, (1,))),
        (Config(), SLURM | OPEN_MPI, Processes("10.96.0.1:62624", 4, 3, (1,))),
        (Config(), OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "4096.0;tcp6://[fe80::1,fe80::2]:5"},
         Processes("[fe80::1]:61441", 4, 3, (1,))),
        (Config(), {"OMPI_COMM_WORLD_SIZE": "1"}, None),
        # TPU pods.
        (Config(), POD, Processes("t-0:8482", 4, 2)),
        (Config(), {"CLOUD_TPU_TASK_ID": "1", "TPU_PROCESS_ADDRESSES": "a:8471,b:8471"},
         Processes("a:8482", 2, 1)),
        (Config(auto=True), SLICES, ASKED),
        (Config(), {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}, None),
        (Config(), {"CLOUD_TPU_TASK_ID": "0"}, None),
        # Kubernetes: a pod alone is nothing special.
        (Config(), KUBERNETES, None),
        (Config("h:1", 4), INDEXED, Processes("h:1", 4, 3)),
        (Config(), INDEXED | HERE | {"JAX_NUM_PROCESSES": "4"}, Processes("h:1", 4, 3)),
        (Config(), KUBERNETES | POD | {"JOB_COMPLETION_INDEX": "2"}, Processes("t-0:8482", 4, 2)),
        (Config(), INDEXED | {"JAX_COORDINATOR_ADDRESS": "run-workers-0-0.run:1234",
                              "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"},
         Processes("run-workers-0-0.run:1234", 4, 3)),
        (Config(num_processes=4), JOBSET, Processes("run-workers-0-0.run:55527", 4, 3)),
        (Config(), JOBSET | {"JAX_NUM_PROCESSES": "4"},
         Processes("run-workers-0-0.run:55527", 4, 3)),
        (Config(), JAXJOB, Processes("run-worker-0:6666", 3, 2)),
        (Config(), JAXJOB | {"NUM_PROCESSES": "1"}, None),
        # One node.
        (Config(), {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "8"}, None),
        # srun -n1, by intention.
        (Config(), ALLOCATED | {"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "1"}, None),
        (Config(), {"PBS_NUM_NODES": "1"}, None),
        (Config(), {"LSB_MCPU_HOSTS": "a 16"}, None),
        (Config(), {"NHOSTS": "1"}, None),
        # Left over in a shell.
        (Config(), {"WORLD_SIZE": "4"}, None),
        (Config(), {"PMI_SIZE": "1", "PMI_RANK": "0"}, None),
    ],
)  # fmt: skip
def test_who_trains_together(job, variables, expected):
    assert find_processes(job, variables) == expected


@pytest.mark.parametrize(
    ("job", "variables", "texts"),
    [
        (Config(num_processes=2, process_id=0), {}, ["--job.coordinator HOST:PORT"]),
        (Config(), {"JAX_PROCESS_ID": "1"}, ["--job.coordinator HOST:PORT"]),
        (Config("h:1", num_processes=2), {}, ["h:1", "--job.process-id is missing"]),
        (Config("h:1", 2, 2), {}, ["job.process_id = 2", "less than job.num_processes = 2"]),
        (Config("h:1", 2, -1), {}, ["job.process_id = -1", "at least 0"]),
        (Config(stopped_status=-1), {}, ["job.stopped_status = -1", "0 to 255"]),
        (Config(stopped_status=256), {}, ["job.stopped_status = 256", "from 0 to 255"]),
        (
            Config(num_processes=2, process_id=0),
            {"JAX_COORDINATOR_ADDRESS": "h"},
            ["JAX_COORDINATOR_ADDRESS = 'h'", "HOST:PORT"],
        ),
        (Config("h:1", 0, 0), {}, ["job.num_processes = 0", "at least 1"]),
        (Config("h:1", 2, 0, initialization_timeout=0), {}, ["job.initialization_timeout = 0"]),
        *(
            (Config(address, 2, 0), {}, [f"job.coordinator = {address!r}", "HOST:PORT"])
            for address in ("h", "h:", ":1", "h:0", "h:65536", "h:x", "fe80::1:1", "h:-1")
        ),
        (Config(), HERE | {"JAX_NUM_PROCESSES": "abc"}, ["JAX_NUM_PROCESSES = 'abc'", "integer"]),
        (Config(), HERE | {"JAX_NUM_PROCESSES": "9" * 5000}, ["JAX_NUM_PROCESSES = '999"]),
        (Config(), {"JAX_PROCESS_ID": "-1"}, ["JAX_PROCESS_ID = -1"]),
        (Config(), {"JAX_COORDINATOR_PORT": "http"}, ["JAX_COORDINATOR_PORT = 'http'"]),
        (Config(), {"JAX_LOCAL_DEVICE_IDS": "0,b"}, ["JAX_LOCAL_DEVICE_IDS = 'b'"]),
        (Config(), SLURM | {"SLURM_STEP_NUM_TASKS": "many"}, ["SLURM_STEP_NUM_TASKS = 'many'"]),
        (
            Config(),
            {"SLURM_STEP_NUM_TASKS": "4"},
            ["srun", "SLURM_PROCID", "--job.num-processes 1"],
        ),
        (
            Config(),
            SLURM | {"SLURM_STEP_NODELIST": ""},
            ["the address of process 0", "--job.coordinator"],
        ),
        (Config(), SLURM | {"SLURM_PROCID": "8"}, ["job.process_id = 8", "job.num_processes = 8"]),
        (Config(), OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": ""}, ["4 processes", "--job.coordinator"]),
        (Config(), {"OMPI_COMM_WORLD_SIZE": "2"}, ["mpirun", "OMPI_COMM_WORLD_RANK"]),
        (Config(), {"TPU_WORKER_HOSTNAMES": "a,b"}, ["TPU pod", "TPU_WORKER_ID"]),
        (Config(), POD | {"MEGASCALE_NUM_SLICES": "2"}, ["MEGASCALE_SLICE_ID"]),
        (Config(), {"MEGASCALE_NUM_SLICES": "2"}, ["MEGASCALE_NUM_SLICES = 2"]),
        (
            Config(),
            INDEXED,
            ["process 3", "--job.coordinator", "jax[k8s]", "--job.num-processes 1"],
        ),
        (Config("h:1"), INDEXED, ["process 3", "give --job.num-processes"]),
        (
            Config(),
            JAXJOB | {"PROCESS_ID": ""},
            ["the JAXJob started several processes, but PROCESS_ID"],
        ),
        (Config(), SLURM | {"CUDA_VISIBLE_DEVICES": "0,1,2"}, ["share 3 GPUs evenly"]),
        (
            Config(),
            SLURM | {"SLURM_GPUS_PER_TASK": "3", "CUDA_VISIBLE_DEVICES": "0,1,2,3"},
            ["share 4 GPUs evenly"],
        ),
    ],
)
def test_what_cannot_be(job, variables, texts):
    assert "kubernetes" not in sys.modules
    assert_refused(job, variables, *texts)


# SLURM ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks_per_node", "variables", "devices"),
    [
        # One task for a node has all of its GPUs, whichever way they are shown to it.
        ([1, 1], {}, [None, None]),
        ([1, 1], {"SLURM_GPUS_ON_NODE": "8"}, [None, None]),
        ([1, 1], {"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"},
         [None, None]),
        ([1, 1], {"SLURM_GPUS_ON_NODE": "8", "SLURM_GPUS_PER_TASK": "8",
                  "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, [None, None]),
        # A task for each GPU, where each sees all of the node's.
        ([4, 4], {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [(0,), (1,), (2,), (3,)] * 2),
        ([4, 4, 3], {}, [(0,), (1,), (2,), (3,)] * 2 + [(0,), (1,), (2,)]),
        ([2], {"SLURM_GPUS_ON_NODE": "8"}, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ([2], {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c,GPU-d"}, [(0, 1), (2, 3)]),
        ([2], {"ROCR_VISIBLE_DEVICES": "0,1,2,3"}, [(0, 1), (2, 3)]),
        # --gpus-per-task without binding: the first tasks do not take what is the others'.
        ([2], {"SLURM_GPUS_PER_TASK": "2", "SLURM_GPUS_ON_NODE": "4",
               "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [(0, 1), (2, 3)]),
        # --gpus-per-task and --gpu-bind: each sees its own, numbered from 0.
        ([4], {"CUDA_VISIBLE_DEVICES": "0"}, [None] * 4),
        ([4], {"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "0,1"}, [None] * 4),
        ([4], {"SLURM_GPUS_PER_TASK": "2", "CUDA_VISIBLE_DEVICES": "0,1"}, [None] * 4),
        # No GPUs, or chosen by hand.
        ([4], {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [None] * 4),
        ([4], {"JAX_LOCAL_DEVICE_IDS": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [None] * 4),
        ([2], {"CUDA_VISIBLE_DEVICES": ""}, [None] * 2),
    ],
)  # fmt: skip
def test_every_gpu_of_a_node_has_one_task(tasks_per_node, variables, devices):
    tasks = srun("gpu[017-019]", tasks_per_node, **variables)
    found = [find_processes(Config(), task) for task in tasks]
    assert [each.devices for each in found] == devices
    assert {each.coordinator for each in found} == {f"gpu017:{PORT}"}
    assert [(each.count, each.index) for each in found] == [
        (len(tasks), index) for index in range(len(tasks))
    ]


def test_gpus_that_only_the_system_knows_are_shared(no_device_files):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (no_device_files / name).touch()
    found = [find_processes(Config(), task) for task in srun("n", [2])]
    assert [each.devices for each in found] == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[3,5-7],m", "n3"),
        ("node[001-004,007],rack[1-2]node[5-6]", "node001"),
        ("rack[2-3]node[05,06]-ib", "rack2node05-ib"),
        ("a-b.example.org,c", "a-b.example.org"),
        ("", None),
    ],
)
def test_the_first_of_a_list_of_nodes(nodes, first):
    assert first_node(nodes) == first


def test_two_steps_of_a_job_have_two_ports():
    ports = {
        find_processes(Config(), srun("n[1-2]", [1, 1], SLURM_STEP_ID=str(step))[0]).coordinator
        for step in range(8)
    }
    assert len(ports) == 8


def test_the_nodes_of_pbs_are_lines_of_a_file(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\nc\n")
    assert_refused(Config(), {"PBS_NODEFILE": str(nodes)}, "PBS allocated 3 nodes")
    nodes.write_text("a\na\n")
    assert find_processes(Config(), {"PBS_NODEFILE": str(nodes)}) is None


RANKS = {
    "mpiexec": {"PMI_SIZE": "4", "PMI_RANK": "3"},
    "MVAPICH2": {"MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_RANK": "3"},
    "torchrun": {"WORLD_SIZE": "4", "RANK": "3", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
    "flux run": {"FLUX_JOB_SIZE": "4", "FLUX_TASK_RANK": "3"},
    "jsrun": {"JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_RANK": "3"},
}


NO_SRUN = ("SLURM allocated 4 nodes", "with srun", "--job.num-processes 1")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (ALLOCATED, NO_SRUN),  # the batch script
        (ALLOCATED | {"SLURM_STEP_ID": "4294967291", "SLURM_STEP_NUM_TASKS": "1"}, NO_SRUN),
        # salloc's shell
        (ALLOCATED | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, NO_SRUN),
        ({"SLURM_NNODES": "4"}, NO_SRUN),
        ({"PBS_NUM_NODES": "2"}, ["PBS allocated 2 nodes"]),
        ({"LSB_MCPU_HOSTS": "a 16 b 16"}, ["LSF allocated 2 nodes"]),
        ({"NHOSTS": "5"}, ["Grid Engine allocated 5 nodes"]),
        *(
            (RANKS[name], (f"{size} = 4", name, f"--job.process-id ${rank}, which is 3 here"))
            for name in RANKS
            for size, rank, *_ in [RANKS[name]]
        ),
    ],
)
def test_what_does_not_say_who_trains_together_stops(variables, words):
    assert_refused(Config(), variables, *words)
    assert find_processes(Config(num_processes=1), variables) is None
    assert find_processes(Config("h:1", 4, 3), variables) == Processes("h:1", 4, 3)


@pytest.mark.parametrize("launcher", RANKS)
def test_ranks_that_srun_confirms_are_its_own(launcher):
    """As with srun --mpi=pmi2; where they differ, each task of srun has started several."""
    tasks = srun("n[1-2]", [2, 2])
    assert find_processes(Config(), tasks[3] | RANKS[launcher]).index == 3
    with pytest.raises(ConfigError, match="not train together"):
        find_processes(Config(), tasks[0] | RANKS[launcher])


# Kubernetes -------------------------------------------------------------------------------------


def test_a_cluster_that_jax_can_ask_is_asked(monkeypatch):
    assert not indexed_job(INDEXED).cluster_knows
    monkeypatch.setattr(importlib.util, "find_spec", Mock())
    assert find_processes(Config(), INDEXED) == Processes(None, None, 3)
    assert find_processes(Config(num_processes=4), INDEXED) == Processes(None, 4, 3)


# TPUs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "host"),
    [
        *(("h", "h"), ("h:8080", "h"), ("10.0.0.1:8080", "10.0.0.1"), ("fe80::1", "[fe80::1]")),
        *(("[fe80::1]:8080", "[fe80::1]"), ("[fe80::1]", "[fe80::1]")),
    ],
)
def test_the_host_of_an_address(address, host):
    assert host_of(address) == host


def test_hosts_of_slices_are_numbered_slice_by_slice():
    found = [
        find_processes(
            Config(),
            {
                "TPU_WORKER_HOSTNAMES": "a-0,a-1" if which == 0 else "b-0,b-1",
                "TPU_WORKER_ID": str(worker),
                "MEGASCALE_NUM_SLICES": "3",
                "MEGASCALE_SLICE_ID": str(which),
                "MEGASCALE_COORDINATOR_ADDRESS": "a-0:8080",
            },
        )
        for which in range(3)
        for worker in range(2)
    ]
    assert found == [Processes("a-0:8482", 6, index) for index in range(6)]


TWO_HOSTS = {
    "worker-network-endpoints": "unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3",
    "agent-worker-number": "1",
    "tpu-env": "ACCELERATOR_TYPE: 'v5p-16'\nWORKER_ID: '1'\n",
}


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (TWO_HOSTS, Processes("10.0.0.2:8482", 2, 1)),
        (TWO_HOSTS | {"worker-network-endpoints": "t-0,t-1"}, Processes("t-0:8482", 2, 1)),
        (
            TWO_HOSTS
            | {
                "tpu-env": "MEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n"
                "MEGASCALE_COORDINATOR_ADDRESS: '10.0.0.9:8080'\n"
            },
            Processes("10.0.0.9:8482", 4, 3),
        ),
        (
            TWO_HOSTS | {"worker-network-endpoints": "a:b:10.0.0.2", "agent-worker-number": "0"},
            None,
        ),
        ({}, None),  # no metadata server, as on hosted notebooks
    ],
)
def test_a_tpu_vm_known_to_its_metadata_server_alone(attributes, expected, monkeypatch):
    monkeypatch.setattr(tpu, "has_tpu", lambda: True)
    monkeypatch.setattr(tpu, "read_metadata", attributes.get)
    assert find_processes(Config(), {}) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {"TPU_SKIP_MDS_QUERY": "1"},
        {"JAX_PLATFORMS": "cpu"},
        {"TPU_VISIBLE_CHIPS": "0", "TPU_PROCESS_BOUNDS": "1,1,1"},
        {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"},
    ],
)
def test_the_metadata_server_is_not_asked_in_vain(variables, monkeypatch):
    asked = Mock()
    monkeypatch.setattr(tpu, "read_metadata", asked)
    for has_tpu, given in ((True, variables), (False, {})):
        monkeypatch.setattr(tpu, "has_tpu", lambda has_tpu=has_tpu: has_tpu)
        assert tpu.cloud_tpu_vm(given) is None
    asked.assert_not_called()


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([], False),
        ([("0x1ae0", "0x020000"), ("0x1ae0", "0x010802"), ("0x10de", "0x030200")], False),
        ([("0x1ae0", "0x020000"), ("0x1ae0", "0x120000")], True),
    ],
    ids=["none", "a GPU, and a disk and a network card by Google", "a TPU"],
)
def test_a_machine_with_chips(devices, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(tpu, "_DEVICES", tmp_path)
    for number, (vendor, kind) in enumerate(devices):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "vendor").write_text(f"{vendor}\n")
        (tmp_path / str(number) / "class").write_text(f"{kind}\n")
    assert tpu.has_tpu() is expected


def test_what_the_metadata_server_answers(monkeypatch):
    asked = Mock(
        side_effect=[
            urllib.error.URLError("no route"),
            BytesIO(b"1"),
            urllib.error.HTTPError("", 404, "", {}, None),
            *[urllib.error.URLError("no route")] * 3,
        ]
    )
    monkeypatch.setattr(tpu.urllib.request, "urlopen", asked)
    monkeypatch.setattr(tpu.time, "sleep", Mock())
    assert tpu.read_metadata("agent-worker-number") == "1"
    request = asked.call_args.args[0]
    assert request.full_url.endswith("/instance/attributes/agent-worker-number")
    assert request.get_header("Metadata-flavor") == "Google"
    assert tpu.read_metadata("agent-worker-number") is None
    assert tpu.read_metadata("agent-worker-number") is None


# Joining ----------------------------------------------------------------------------------------


def test_a_host_that_cannot_be_found_is_one_sentence(monkeypatch):
    unknown = Mock(side_effect=socket.gaierror(-2, "Name or service not known"))
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError) as caught:
        join(Config("run-0.nowhere:1", 2, 1, initialization_timeout=1))
    text = str(caught.value)
    assert "job.coordinator = 'run-0.nowhere:1'" in text
    assert "Name or service not known" in text
    assert unknown.call_count > 2  # a pod's name comes with the pod


def test_a_cluster_that_does_not_answer_is_one_sentence(monkeypatch):
    class ApiException(Exception):
        """As the clients of clusters have their own."""

    refused = Mock(side_effect=ApiException("Forbidden:\n  pods is forbidden"))
    monkeypatch.setattr("jax.distributed.initialize", refused)
    with pytest.raises(ConfigError, match=r"\(Forbidden: pods is forbidden\): set --job"):
        join(Config(auto=True))
