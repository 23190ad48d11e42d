"""mpirun of Open MPI."""

import re

from jaxformer.distributed.launchers.base import (
    Launcher,
    Processes,
    Variables,
    job_port,
    needed,
    number,
)
from jaxformer.distributed.launchers.gpus import local_gpus


class OpenMpi(Launcher):
    """The processes of an mpirun, which since Open MPI 5 does not tell the address of the first."""

    def detect(self, variables: Variables) -> Processes | None:
        count = number(variables, "OMPI_COMM_WORLD_SIZE", 1)
        if count in (None, 1):
            return None
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
        index, local, here = (needed(variables, name, "mpirun") for name in names)
        # For example 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911 or ...;tcp6://[fe80::b9b]:43370
        uri = variables.get("OMPI_MCA_orte_hnp_uri", "")
        found = re.match(r"(\d+)\..*?(?:tcp://([^,:]+)|tcp6://\[([^,\]]+))", uri)
        coordinator = None
        if found:
            host = found[2] or f"[{found[3]}]"
            coordinator = f"{host}:{job_port(int(found[1]) // 4096, variables)}"
        return Processes(coordinator, count, index, local_gpus(local, here, variables))
