"""Kubernetes manifests: JobSets for TPUs on GKE and for GPUs."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from jaxformer.checks import check_argument
from jaxformer.distributed.slices import Slice, parse_chips
from jaxformer.errors import ArgumentError
from jaxformer.launch.google import google_names, machine_type
from jaxformer.launch.job import STOPPED, Job, check_nodes
from jaxformer.launch.kueue import queue_objects

_PORT = 55527
_DRIVER = "/usr/local/nvidia/lib64"
"""Where GKE mounts NVIDIA's driver, which the linker does not search by default."""
_CONTAINER = "train"
_SUFFIX = len("-abcde")
"""The suffix that Kubernetes adds to pod names."""


@dataclass(frozen=True, kw_only=True)
class JobSet:
    """Pods on Kubernetes, with the JobSet controller (and Kueue, for --queue)."""

    chips: str
    """TPU slices or GPUs, as for `plan`: v5p:4x4x4, v6e:16x16*2 (two slices), h100:64."""
    image: str
    """The container image, with jaxformer installed."""
    nodes: int | None = None
    """Number of machines, checked against the chips."""
    namespace: str = "default"
    """The namespace."""
    queue: str | None = None
    """Kueue's LocalQueue, which starts the job when resources are available."""
    create_queue: bool = False
    """Also write the objects of the queue, with these chips as its quota."""
    max_restarts: int = 10
    """Maximum restarts after failures; preemptions do not count."""
    grace: int = 120
    """Seconds between SIGTERM and SIGKILL for saving a checkpoint."""
    spot: bool = False
    """Use spot machines of GKE."""
    reservation: str | None = None
    """A reservation on GKE."""
    service_account: str | None = None
    """The Kubernetes service account with read and write access to the bucket."""
    volumes: tuple[str, ...] = ()
    """Persistent volume claims and their mount paths: CLAIM:/mnt/runs."""
    node_selector: tuple[str, ...] = ()
    """Node labels, NAME=VALUE, instead of GKE's, for GPUs in other clouds."""
    host_network: bool = False
    """Use the host network: faster between TPU slices, but allows only one job per machine."""

    def __post_init__(self):
        for name in ("namespace", "queue", "service_account"):
            value = getattr(self, name)
            valid = value is None or all(map(_is_name_part, value.split(".")))
            check_argument(name.replace("_", "-"), value, valid, "a name such as training")
        image = re.fullmatch(r"[\w./:@-]+", self.image, re.ASCII) is not None
        check_argument("image", self.image, image, "an image such as us-docker.pkg.dev/p/r/i:tag")
        check_argument("max-restarts", self.max_restarts, self.max_restarts >= 0, "at least 0")
        check_argument("grace", self.grace, self.grace >= 1, "at least 1 second")
        if self.create_queue and self.queue is None:
            raise ArgumentError("create-queue: must come with --queue NAME")

    @property
    def mounts(self) -> dict[str, str]:
        """The path of each persistent volume claim."""
        found = {}
        for text in self.volumes:
            claim, _, path = text.partition(":")
            valid = _is_name_part(claim) and path.startswith("/")
            check_argument("volumes", text, valid, "CLAIM:/PATH, as in runs:/mnt/runs")
            found[claim] = path
        return found

    @property
    def selector(self) -> dict[str, str]:
        """The node labels that replace GKE's."""
        found = {}
        for text in self.node_selector:
            name, equals, value = text.partition("=")
            check_argument("node-selector", text, bool(equals and name), "NAME=VALUE")
            found[name] = value
        return found


def _is_name_part(text: str) -> bool:
    return re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text) is not None


def jobset_manifest(job: Job, cluster: JobSet) -> str:
    """Returns a manifest for `kubectl apply`.

    The pods of a GPU job get the address of process 0, the number of pods and their index; pods of
    a TPU job get their number, and the rest from GKE. A pod that was stopped and has saved exits
    with a status that restarts all pods, without limit.

    Args:
        job: The run.
        cluster: The pods.

    Returns:
        YAML, with the commands to use it as comments.

    Raises:
        ArgumentError: The chips, the name or the folder of the run is invalid.
    """
    slices = parse_chips(cluster.chips)
    check_nodes(cluster.nodes, slices)
    tpu = slices.chip.kind == "tpu"
    replicated = "slice" if tpu else "workers"
    _check_names(job, slices, replicated)
    _check_run_dir(job, cluster)
    labels = {"kueue.x-k8s.io/queue-name": cluster.queue} if cluster.queue else {}
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": job.name,
            "namespace": cluster.namespace,
            **({"labels": labels} if labels else {}),
            **({"annotations": exclusive} if tpu and slices.hosts > slices.num_slices else {}),
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": cluster.max_restarts,
                "rules": [
                    {
                        "name": "stopped",
                        "action": "RestartJobSetAndIgnoreMaxRestarts",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": [
                {
                    "name": replicated,
                    "replicas": slices.num_slices,
                    "template": {"spec": _job_spec(job, cluster, slices, replicated)},
                }
            ],
        },
    }
    objects = [jobset]
    if cluster.create_queue:
        selector = _node_selector(cluster, slices)
        objects = [*queue_objects(cluster.queue, cluster.namespace, slices, selector), jobset]
    options = {"sort_keys": False, "width": 1000, "allow_unicode": True}
    return _heading(job, cluster, slices) + yaml.dump_all(objects, Dumper=_Dumper, **options)


def _job_spec(job: Job, cluster: JobSet, slices: Slice, replicated: str) -> dict[str, Any]:
    """Returns the Job of a slice, or of all GPUs."""
    hosts = slices.hosts // slices.num_slices
    stopped = {"containerName": _CONTAINER, "operator": "In", "values": [STOPPED]}
    return {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": stopped},
                {
                    "action": "FailJob",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
            ]
        },
        "template": {"spec": _pod_spec(job, cluster, slices, replicated)},
    }


def _pod_spec(job: Job, cluster: JobSet, slices: Slice, replicated: str) -> dict[str, Any]:
    gpu = slices.chip.kind == "gpu"
    resource = "nvidia.com/gpu" if gpu else "google.com/tpu"
    mounts = dict(cluster.mounts)
    volumes = {claim: {"persistentVolumeClaim": {"claimName": claim}} for claim in mounts}
    if gpu:
        mounts["shared-memory"] = "/dev/shm"
        volumes["shared-memory"] = {"emptyDir": {"medium": "Memory"}}
    container = {
        "name": _CONTAINER,
        "image": cluster.image,
        "command": [_escaped(word) for word in job.command],
        "env": _environment(job, cluster, slices, replicated),
        "resources": {"limits": {resource: slices.chips // slices.hosts}},
    }
    if mounts:
        paths = [{"name": name, "mountPath": path} for name, path in mounts.items()]
        container["volumeMounts"] = paths
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": cluster.grace,
        "nodeSelector": _node_selector(cluster, slices),
    }
    if cluster.service_account is not None:
        spec["serviceAccountName"] = cluster.service_account
    if cluster.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    spec["containers"] = [container]
    if volumes:
        spec["volumes"] = [{"name": name, **source} for name, source in volumes.items()]
    return spec


def _environment(job: Job, cluster: JobSet, slices: Slice, replicated: str) -> list[dict[str, Any]]:
    """Returns the environment variables that join the processes, and the others."""
    found: list[dict[str, Any]] = [{"name": "JAX_NUM_PROCESSES", "value": str(slices.hosts)}]
    if slices.chip.kind == "gpu" and slices.hosts > 1:
        first = f"{job.name}-{replicated}-0-0.{job.name}:{_PORT}"
        index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        found += [
            {"name": "JAX_COORDINATOR_ADDRESS", "value": first},
            {"name": "JAX_PROCESS_ID", "valueFrom": {"fieldRef": {"fieldPath": index}}},
        ]
    on_gke = slices.chip.kind == "gpu" and not cluster.node_selector
    driver = {"LD_LIBRARY_PATH": _DRIVER} if on_gke else {}
    variables = driver | job.variables(slices.chip.kind)
    return found + [{"name": name, "value": _escaped(text)} for name, text in variables.items()]


def _escaped(word: str) -> str:
    """Escapes $(NAME), which Kubernetes would replace in commands and variables."""
    return word.replace("$", "$$")


def _node_selector(cluster: JobSet, slices: Slice) -> dict[str, str]:
    if cluster.node_selector:
        return cluster.selector
    names = google_names(slices.chip)
    if slices.chip.kind == "tpu":
        found = {
            "cloud.google.com/gke-tpu-accelerator": names.accelerator,
            "cloud.google.com/gke-tpu-topology": slices.shape,
        }
    else:
        found = {"cloud.google.com/gke-accelerator": names.accelerator}
    if cluster.spot:
        found["cloud.google.com/gke-spot"] = "true"
    if cluster.reservation is not None:
        found["cloud.google.com/reservation-name"] = cluster.reservation
    return found


def _check_names(job: Job, slices: Slice, replicated: str) -> None:
    """Checks that pod names, which are host names, are not too long."""
    hosts = slices.hosts // slices.num_slices
    longest = f"{job.name}-{replicated}-{slices.num_slices - 1}-{hosts - 1}"
    over = len(longest) + _SUFFIX - 63
    check_argument(
        "name", job.name, over <= 0,
        f"at most {len(job.name) - over} characters: pods are called {longest}-...",
    )  # fmt: skip


def _check_run_dir(job: Job, cluster: JobSet) -> None:
    """Checks that the run outlives its pods."""
    folder = PurePosixPath(job.run_dir)
    mounted = any(folder.is_relative_to(path) for path in cluster.mounts.values())
    check_argument(
        "run-dir", job.run_dir, job.is_remote or mounted,
        "a bucket (gs://BUCKET/RUN) or a folder of a volume (--volumes CLAIM:/mnt/runs --run-dir "
        "/mnt/runs/RUN); the local disk of a pod is lost with it",
    )  # fmt: skip


def _heading(job: Job, cluster: JobSet, slices: Slice) -> str:
    hosts = slices.hosts // slices.num_slices
    several = slices.num_slices > 1
    pools = f"{slices.num_slices} node pools, each" if several else "a node pool"
    each = slices.chips // slices.hosts
    if cluster.node_selector:
        needs = f"{hosts} nodes with {each} GPUs each"
    else:
        shape = f"--tpu-topology={slices.shape}"
        if slices.chip.kind == "gpu":
            kind = google_names(slices.chip).accelerator
            shape = f"--accelerator=type={kind},count={each},gpu-driver-version=latest"
        needs = f"{pools} of --machine-type={machine_type(slices)} {shape} --num-nodes={hosts}"
    here = f"-n {cluster.namespace}"
    selected = f"-l jobset.sigs.k8s.io/jobset-name={job.name}"
    return (
        f"# {slices.name}: {slices.hosts} pods. The cluster needs JobSet (0.6 or later) and\n"
        f"# {needs}.\n"
        f"# The image has Python 3.11 or later and `pip install '.[pod-{slices.chip.kind}]'`.\n"
        f"# Start:  kubectl apply -f THIS_FILE\n"
        f"# Watch:  kubectl logs {here} -f {selected},batch.kubernetes.io/job-completion-index=0\n"
        f"# Stop:   kubectl delete {here} jobset {job.name}\n"
        "# The same manifest, applied again, continues the run from its last checkpoint.\n"
    )


class _Dumper(yaml.SafeDumper):
    """Quotes every string that another YAML parser could interpret differently."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = re.fullmatch(r"[A-Za-z][\w./:-]+\w|--[a-z][\w.-]+", value, re.ASCII) is not None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _represent)
