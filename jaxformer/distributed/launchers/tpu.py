"""The hosts of a TPU slice, or of several slices (Megascale)."""

import re
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from jaxformer.distributed.launchers.base import Processes, Variables, host_of, needed, number

_PORT = 8482
"""JAX's default for TPUs."""
_METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/"
_DEVICES = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"
"""Google's PCI vendor id."""
_CHOSEN_CHIPS = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_PROCESS_BOUNDS")


def tpu_pod(variables: Variables) -> Processes | None:
    """Hosts that environment variables list, as in GKE."""
    workers = _listed_workers(variables)
    slices = number(variables, "MEGASCALE_NUM_SLICES", 1) or 1
    if not workers or len(workers) * slices == 1:
        return None
    older = "CLOUD_TPU_TASK_ID" in variables and "TPU_WORKER_ID" not in variables
    name = "CLOUD_TPU_TASK_ID" if older else "TPU_WORKER_ID"
    return _joined(workers, needed(variables, name, "the TPU pod"), variables)


def cloud_tpu_vm(variables: Variables) -> Processes | None:
    """Hosts that Google's metadata server lists, for Cloud TPU VMs, where no variables are set.

    The server is asked only on a machine with a TPU.
    """
    skipped = variables.get("TPU_SKIP_MDS_QUERY") or variables.get("JAX_PLATFORMS") == "cpu"
    chosen = any(name in variables for name in _CHOSEN_CHIPS)  # the user selected some chips
    if skipped or chosen or _listed_workers(variables) or not has_tpu():
        return None
    endpoints = read_metadata("worker-network-endpoints")
    worker = read_metadata("agent-worker-number")
    if not endpoints or not worker:
        return None
    # NAME:ID:ADDRESS,... or only names
    workers = [endpoint.strip().split(":")[-1] for endpoint in endpoints.split(",")]
    variables = _tpu_env(read_metadata("tpu-env") or "") | dict(variables)
    if len(workers) * (number(variables, "MEGASCALE_NUM_SLICES", 1) or 1) == 1:
        return None
    index = needed({"agent-worker-number": worker}, "agent-worker-number", "the TPU pod")
    return _joined(workers, index, variables)


def read_metadata(attribute: str) -> str | None:
    """Reads an attribute of this virtual machine from Google's metadata server."""
    request = urllib.request.Request(_METADATA + attribute, headers={"Metadata-Flavor": "Google"})
    for attempt in range(3):
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return response.read().decode()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
        except OSError:
            pass
        time.sleep(0.5 * attempt)
    return None


def _joined(workers: Sequence[str], worker: int, variables: Variables) -> Processes:
    """Returns the hosts of all slices, slice by slice."""
    slices = number(variables, "MEGASCALE_NUM_SLICES", 1) or 1
    which = needed(variables, "MEGASCALE_SLICE_ID", "the TPU pod") if slices > 1 else 0
    host = host_of(variables.get("MEGASCALE_COORDINATOR_ADDRESS") or workers[0])
    port = variables.get("JAX_COORDINATOR_PORT") or _PORT
    return Processes(f"{host}:{port}", len(workers) * slices, which * len(workers) + worker)


def _listed_workers(variables: Variables) -> list[str]:
    named = variables.get("TPU_PROCESS_ADDRESSES") or variables.get("TPU_WORKER_HOSTNAMES", "")
    return [worker.strip() for worker in named.split(",") if worker.strip()]


def _tpu_env(text: str) -> dict[str, str]:
    """Parses the lines KEY: 'value' of the attribute tpu-env."""
    return dict(re.findall(r"^\s*(\w+)\s*:\s*'?(.*?)'?\s*$", text, re.MULTILINE))


def has_tpu() -> bool:
    """Whether there is a Google PCI device other than a virtual disk or network card."""
    for vendor in _DEVICES.glob("*/vendor"):
        kind = vendor.with_name("class").read_text()
        if vendor.read_text().strip() == _GOOGLE and not kind.startswith(("0x01", "0x02")):
            return True
    return False
