"""Kubernetes Jobs."""

import importlib.util

from jaxformer.distributed.launchers.base import Processes, Variables, needed, number

_PORT = 55527
"""JAX's default for pods."""


def jax_job(variables: Variables) -> Processes | None:
    """The pods of Kubeflow's JAXJob."""
    host = variables.get("COORDINATOR_ADDRESS")
    count = number(variables, "NUM_PROCESSES", 1)
    if not (host and "KUBERNETES_SERVICE_HOST" in variables) or count in (None, 1):
        return None
    names = ("PROCESS_ID", "COORDINATOR_PORT")
    index, port = (needed(variables, name, "the JAXJob") for name in names)
    return Processes(f"{host}:{port}", count, index)


def indexed_job(variables: Variables) -> Processes | None:
    """The pods of an indexed Job, alone or in a JobSet; only the cluster has their number.

    JobSet itself sets only labels and annotations. Manifests often pass them on as JOBSET_NAME and
    REPLICATED_JOB_NAME, which determine the host name of the first pod in the JobSet's domain.
    """
    index = number(variables, "JOB_COMPLETION_INDEX")
    if index is None or not variables.get("KUBERNETES_SERVICE_HOST"):
        return None
    coordinator = None
    jobset, job = (variables.get(name) for name in ("JOBSET_NAME", "REPLICATED_JOB_NAME"))
    if jobset and job:
        port = variables.get("JAX_COORDINATOR_PORT") or _PORT
        coordinator = f"{jobset}-{job}-0-0.{jobset}:{port}"
    asks = importlib.util.find_spec("kubernetes") is not None
    return Processes(coordinator, None, index, cluster_knows=asks)
