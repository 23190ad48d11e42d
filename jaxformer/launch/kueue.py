"""The Kubernetes objects of a Kueue queue."""

from collections.abc import Mapping
from typing import Any

from jaxformer.distributed.slices import Slice

_API = "kueue.x-k8s.io/v1beta2"


def queue_objects(
    name: str, namespace: str, slices: Slice, node_labels: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Returns the objects of a queue with a quota for some chips."""
    tpu = slices.chip.kind == "tpu"
    resource = "google.com/tpu" if tpu else "nvidia.com/gpu"
    flavor = f"{slices.chip.name}-{slices.shape}" if tpu else slices.chip.name
    quota = {"name": resource, "nominalQuota": str(slices.chips)}
    return [
        {
            "apiVersion": _API,
            "kind": "ResourceFlavor",
            "metadata": {"name": flavor},
            "spec": {"nodeLabels": dict(node_labels)},
        },
        {
            "apiVersion": _API,
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {
                "namespaceSelector": {},
                "queueingStrategy": "BestEffortFIFO",
                "resourceGroups": [
                    {
                        "coveredResources": [resource],
                        "flavors": [{"name": flavor, "resources": [quota]}],
                    }
                ],
            },
        },
        {
            "apiVersion": _API,
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"clusterQueue": name},
        },
    ]
