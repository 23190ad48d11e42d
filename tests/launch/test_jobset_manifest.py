"""Manifests: valid by the schemas of their resources, and the pods join each other."""

import re
from dataclasses import replace

import pytest
import yaml
from odd_words import ODD
from resource_schemas import SCHEMAS

from jaxformer.distributed.chips import find_chip
from jaxformer.distributed.cluster import DistributedConfig, find_processes
from jaxformer.distributed.launchers import Processes
from jaxformer.errors import ArgumentError
from jaxformer.launch import Job, JobSet, jobset_manifest

jsonschema = pytest.importorskip("jsonschema")
kubernetes_validate = pytest.importorskip("kubernetes_validate")
pytestmark = pytest.mark.more

JOB = Job("configs/a.py:x", "gs://bucket/run", "llama", ODD, (("NOTE", "$(JAX_PROCESS_ID) $$"),))
GPUS = JobSet(chips="h100:64", image="docker.io/me/jaxformer:1")
SLICES = JobSet(chips="v5p:4x4x4*2", image="docker.io/me/jaxformer:1")
FULL = JobSet(
    chips="v6e:4x4", image="i", nodes=4, namespace="lab", queue="tpus", create_queue=True,
    spot=True, reservation="r", service_account="trainer", volumes=("runs:/mnt/runs",),
    host_network=True, grace=60, max_restarts=3,
)  # fmt: skip


def documents(cluster, job=JOB):
    return list(yaml.safe_load_all(jobset_manifest(job, cluster)))


def job_of(jobset):
    (replicated,) = jobset["spec"]["replicatedJobs"]
    return (
        replicated,
        replicated["template"]["spec"],
        replicated["template"]["spec"]["template"]["spec"],
    )


@pytest.mark.parametrize(
    "cluster",
    [
        GPUS,
        SLICES,
        FULL,
        JobSet(chips="h100:1", image="i"),
        JobSet(chips="v5e:1x1", image="i"),
        JobSet(chips="gb200:72", image="i", node_selector=("gpu=gb200", "a/b=")),
    ],
    ids=lambda cluster: cluster.chips,
)
def test_a_manifest_is_valid(cluster):
    found = documents(cluster)
    for document in found:
        jsonschema.validate(document, SCHEMAS[document["kind"]])
    template = found[-1]["spec"]["replicatedJobs"][0]["template"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}} | template
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)


def test_the_schemas_refuse_what_is_wrong():
    (jobset,) = documents(GPUS)
    for wrong in (
        jobset | {"kind": "Jobset"},
        jobset | {"spec": jobset["spec"] | {"replicas": 2}},
        jobset | {"metadata": {"name": "A"}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMAS["JobSet"])
    template = jobset["spec"]["replicatedJobs"][0]["template"]
    template["spec"]["template"]["spec"]["containers"][0]["comand"] = ["a"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}} | template
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)


def expanded(text, variables):
    """What Kubernetes makes of a word: $(NAME) where NAME is set, $$ is $."""

    def replaced(found):
        if found[0] == "$$":
            return "$"
        return variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([\w.-]+)\)", replaced, text)


def pod_variables(container, index, **more):
    """The environment of a pod of an indexed Job, with what a cluster adds."""
    field = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    variables = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": str(index), **more}
    for entry in container["env"]:
        if "value" not in entry:
            assert entry["valueFrom"] == {"fieldRef": {"fieldPath": field}}
        variables[entry["name"]] = expanded(entry.get("value", str(index)), variables)
    return variables


def test_pods_with_gpus_join_each_other():
    (jobset,) = documents(GPUS)
    replicated, job, pod = job_of(jobset)
    (container,) = pod["containers"]
    assert (replicated["replicas"], job["parallelism"], job["completions"]) == (1, 8, 8)
    assert job["completionMode"] == "Indexed"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    first = f"{JOB.name}-{replicated['name']}-0-0.{JOB.name}:55527"  # JobSet's names of pods
    assert jobset["spec"]["network"]["enableDNSHostnames"]
    found = [find_processes(DistributedConfig(), pod_variables(container, i)) for i in range(8)]
    assert found == [Processes(first, 8, index) for index in range(8)]
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}


def environment(cluster, job=JOB):
    (container,) = job_of(documents(cluster, job)[-1])[2]["containers"]
    names = [entry["name"] for entry in container["env"]]
    assert len(names) == len(set(names))  # of two with one name Kubernetes takes either
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def test_gpus_find_their_driver_and_have_the_memory_that_a_plan_counts_on():
    found = environment(GPUS)
    assert found["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
    whole = find_chip("h100").memory.value / float(found["XLA_PYTHON_CLIENT_MEM_FRACTION"])
    assert whole == 80 * 10**9
    # XLA's own cache for GPUs is a folder of the machine, whatever the name says.
    assert found["JAX_COMPILATION_CACHE_DIR"] == "gs://bucket/compiled"
    assert found["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] == "none"
    elsewhere = JobSet(chips="h100:8", image="i", node_selector=("gpu=h100",))
    assert "LD_LIBRARY_PATH" not in environment(elsewhere)


def test_tpus_keep_what_they_have_compiled_and_need_nothing_of_gpus():
    assert environment(SLICES) == {
        "JAX_NUM_PROCESSES": "32",
        "JAX_COMPILATION_CACHE_DIR": "gs://bucket/compiled",
        "NOTE": "$$(JAX_PROCESS_ID) $$$$",
    }


def test_variables_of_the_user_come_first():
    own = (
        ("LD_LIBRARY_PATH", "/opt"),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95"),
        ("JAX_COMPILATION_CACHE_DIR", "/mnt/ssd"),
    )
    found = environment(GPUS, replace(JOB, environment=own))
    assert dict(own).items() <= found.items()
    assert "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES" not in found


def test_a_single_pod_trains_alone():
    (jobset,) = documents(JobSet(chips="h100:8", image="i"))
    (container,) = job_of(jobset)[2]["containers"]
    assert find_processes(DistributedConfig(), pod_variables(container, 0)) is None


def test_pods_of_slices_join_each_other():
    (jobset,) = documents(SLICES)
    replicated, job, pod = job_of(jobset)
    (container,) = pod["containers"]
    assert (replicated["replicas"], job["parallelism"]) == (2, 16)
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "4x4x4",
    }
    (pool,) = jobset["metadata"]["annotations"].values()
    assert pool == "cloud.google.com/gke-nodepool"

    def told(which, worker):  # by GKE
        names = [f"llama-slice-{which}-{host}.llama" for host in range(16)]
        return {
            "TPU_WORKER_HOSTNAMES": ",".join(names),
            "TPU_WORKER_ID": str(worker),
            "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_SLICE_ID": str(which),
            "MEGASCALE_COORDINATOR_ADDRESS": "llama-slice-0-0.llama",
        }

    places = [(which, worker) for which in range(2) for worker in range(16)]
    found = [
        find_processes(DistributedConfig(), pod_variables(container, worker, **told(which, worker)))
        for which, worker in places
    ]
    assert found == [Processes("llama-slice-0-0.llama:8482", 32, index) for index in range(32)]
    # never 32 single runs
    with pytest.raises(Exception, match="the address of process 0 is unknown"):
        find_processes(DistributedConfig(), pod_variables(container, 3))


def test_a_stopped_run_starts_again_and_a_broken_one_not_for_ever():
    (jobset,) = documents(GPUS)
    policy, job = jobset["spec"]["failurePolicy"], job_of(jobset)[1]
    (rule,) = policy["rules"]
    assert policy["maxRestarts"] == 10
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    stopped, evicted = job["podFailurePolicy"]["rules"]
    assert stopped["onExitCodes"] == {"containerName": "train", "operator": "In", "values": [75]}
    assert evicted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert JOB.command[JOB.command.index("--job.stopped-status") + 1] == "75"
    assert (job["backoffLimit"], job_of(jobset)[2]["restartPolicy"]) == (0, "Never")


@pytest.mark.parametrize("cluster", [GPUS, SLICES], ids=lambda cluster: cluster.chips)
def test_words_arrive_as_they_were_typed(cluster):
    odd = ("0o17", "1e3", "1:30", "y", "null", "~", "", " a", "- b", "#c", "ü", "$(A)", "$$", "%")
    job = Job("a.py", "gs://b/r", "a", (*ODD, *odd), JOB.environment)
    (jobset,) = documents(cluster, job)
    (container,) = job_of(jobset)[2]["containers"]
    variables = pod_variables(container, 2) | {"A": "wrong"}
    assert tuple(expanded(word, variables) for word in container["command"]) == job.command
    assert variables["NOTE"] == "$(JAX_PROCESS_ID) $$"


def test_words_that_yaml_might_take_for_numbers_are_quoted():
    text = jobset_manifest(Job("a.py", "gs://b/r", "a", ("0o17", "1_000", "75")), GPUS)
    for word in ("0o17", "1_000", "75"):
        assert f'- "{word}"\n' in text


def test_everything_that_can_be_asked_for():
    flavor, queue, local, jobset = documents(FULL)
    replicated, _, pod = job_of(jobset)
    assert jobset["metadata"]["namespace"] == local["metadata"]["namespace"] == "lab"
    assert jobset["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "tpus"}
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    (group,) = queue["spec"]["resourceGroups"]
    (quota,) = group["flavors"][0]["resources"]
    assert group["flavors"][0]["name"] == flavor["metadata"]["name"] == "v6e-4x4"
    assert (quota["name"], quota["nominalQuota"]) == ("google.com/tpu", "16")
    assert flavor["spec"]["nodeLabels"] == pod["nodeSelector"]
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert pod["nodeSelector"]["cloud.google.com/reservation-name"] == "r"
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert (pod["serviceAccountName"], pod["terminationGracePeriodSeconds"]) == ("trainer", 60)
    assert pod["volumes"] == [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}]
    (container,) = pod["containers"]
    assert container["volumeMounts"] == [{"name": "runs", "mountPath": "/mnt/runs"}]
    assert replicated["replicas"] == 1


def test_a_run_on_a_volume():
    volumes = JobSet(chips="h100:16", image="i", volumes=("claim:/mnt/runs",))
    job = Job("a.py", "/mnt/runs/a", "a")
    (jobset,) = documents(volumes, job)
    names = {volume["name"] for volume in job_of(jobset)[2]["volumes"]}
    assert names == {"claim", "shared-memory"}
    for run_dir in ("runs/a", "/mnt/other", "/mnt/runsx/a"):
        with pytest.raises(ArgumentError, match=r"run-dir = .*: must be a bucket"):
            jobset_manifest(Job("a.py", run_dir, "a"), volumes)


def test_names_of_pods_have_room():
    jobset_manifest(Job("a.py", "gs://b/r", "a" * 46), SLICES)
    with pytest.raises(ArgumentError, match="at most 46 characters"):
        jobset_manifest(Job("a.py", "gs://b/r", "a" * 47), SLICES)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"chips": "v5p:4x4x5"}, "the nearest are 4x4x4"),
        ({"chips": "v5p:4x4x4", "nodes": 8}, "nodes = 8: must be 16"),
        ({"chips": "h100:12"}, "whole machines of 8"),
        ({"image": "a b"}, "image = 'a b': must be an image"),
        ({"namespace": "A"}, "namespace = 'A': must be a name"),
        ({"create_queue": True}, "create-queue: must come with --queue"),
        ({"volumes": ("claim",)}, "volumes = 'claim': must be CLAIM:/PATH"),
        ({"node_selector": ("gpu",)}, "node-selector = 'gpu': must be NAME=VALUE"),
        ({"max_restarts": -1}, "max-restarts = -1: must be at least 0"),
        ({"grace": 0}, "grace = 0: must be at least 1 second"),
    ],
)
def test_what_a_jobset_cannot_be(options, text):
    with pytest.raises(ArgumentError, match=text):
        jobset_manifest(JOB, JobSet(**{"chips": "h100:8", "image": "i"} | options))
