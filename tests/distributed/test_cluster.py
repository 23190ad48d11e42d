"""Who trains together, read from options and from what launchers put into the environment."""

import sys

import pytest

from jaxformer.distributed.cluster import DistributedConfig as Config
from jaxformer.distributed.cluster import find_processes
from jaxformer.distributed.launchers import Processes
from jaxformer.errors import ConfigError

pytestmark = pytest.mark.more

SLURM = {
    "SLURM_JOB_ID": "70001",  # 70001 % 4096 = 369
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "gpu[017-018]",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
}
ONE_EACH = SLURM | {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
FIRST = "gpu017:61809"
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
HERE = {"JAX_COORDINATOR_ADDRESS": "h:1"}
ASKED = Processes(None, None, None)


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
        # srun (tests of its node lists and GPUs: test_launchers.py).
        (Config(), SLURM, Processes(FIRST, 8, 6, (2,))),
        (Config("h:1"), ONE_EACH, Processes("h:1", 2, 1)),
        # A step of fewer tasks than the allocation, whose shell is no job at all.
        (Config(), ONE_EACH | {"SLURM_NTASKS": "8"}, Processes(FIRST, 2, 1)),
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
        (
            Config(),
            INDEXED,
            ["process 3", "--job.coordinator", "jax[k8s]", "--job.num-processes 1"],
        ),
        (Config("h:1"), INDEXED, ["process 3", "give --job.num-processes"]),
    ],
)
def test_what_cannot_be(job, variables, texts):
    assert "kubernetes" not in sys.modules
    with pytest.raises(ConfigError) as caught:
        find_processes(job, variables)
    for text in texts:
        assert text in str(caught.value)
