"""Jobs of Kubernetes."""

import importlib.util

from jaxformer.distributed.launchers.base import Launcher, Processes, Variables, needed, number

_PORT = 55527
"""JAX's own choice for pods."""


class JaxJob(Launcher):
    """The pods of Kubeflow's JAXJob."""

    def detect(self, variables: Variables) -> Processes | None:
        host = variables.get("COORDINATOR_ADDRESS")
        count = number(variables, "NUM_PROCESSES", 1)
        if not (host and "KUBERNETES_SERVICE_HOST" in variables) or count in (None, 1):
            return None
        names = ("PROCESS_ID", "COORDINATOR_PORT")
        index, port = (needed(variables, name, "the JAXJob") for name in names)
        return Processes(f"{host}:{port}", count, index)


class IndexedJob(Launcher):
    """The pods of an indexed Job, alone or of a JobSet, of which only the cluster knows the size.

    JobSet itself sets labels and annotations only. Manifests often hand them on as JOBSET_NAME and
    REPLICATED_JOB_NAME, which give the host name of the first pod in the JobSet's own domain.
    """

    def detect(self, variables: Variables) -> Processes | None:
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
