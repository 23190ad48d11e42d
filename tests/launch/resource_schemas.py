"""The resources of JobSet and Kueue, as far as manifests use them, in JSON Schema.

Fields, types and patterns are those of the custom resource definitions: JobSet v1alpha2
(https://github.com/kubernetes-sigs/jobset, 2026-08) and Kueue v1beta2
(https://github.com/kubernetes-sigs/kueue, 2026-08). No other fields are allowed. What Kubernetes
itself defines, the Job of a JobSet, is checked with its own schemas.
"""

TEXT, NUMBER, SWITCH = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
_PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
NAME = {"type": "string", "pattern": rf"^{_PART}(\.{_PART})*$"}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def obj(required=(), **fields):
    return {
        "type": "object",
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


def array(items):
    return {"type": "array", "items": items, "minItems": 1}


def resource(api, kind, spec, *, namespaced=True):
    namespace = {"namespace": NAME} if namespaced else {}
    metadata = obj(["name"], name=NAME, labels=TEXTS, annotations=TEXTS, **namespace)
    fields = {"apiVersion": {"const": api}, "kind": {"const": kind}, "metadata": metadata}
    return obj([*fields, "spec"], **fields, spec=spec)


_RULE = obj(
    ["name", "action"],
    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    action={"enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]},
    onJobFailureReasons=array(
        {
            "enum": [
                "BackoffLimitExceeded",
                "DeadlineExceeded",
                "FailedIndexes",
                "MaxFailedIndexesExceeded",
                "PodFailurePolicy",
            ]
        }
    ),
    targetReplicatedJobs=array(TEXT),
)
_JOBSET = obj(
    network=obj(enableDNSHostnames=SWITCH, publishNotReadyAddresses=SWITCH, subdomain=TEXT),
    failurePolicy=obj(maxRestarts=NUMBER, rules=array(_RULE)),
    replicatedJobs=array(
        obj(["name", "template"], name=NAME, replicas=NUMBER, template={"type": "object"})
    ),
    suspend=SWITCH,
    ttlSecondsAfterFinished=NUMBER,
)
_QUOTA = obj(
    ["name", "nominalQuota"], name=TEXT, nominalQuota={"type": "string", "pattern": r"^\d+$"}
)
_GROUP = obj(
    ["coveredResources", "flavors"],
    coveredResources=array(TEXT),
    flavors=array(obj(["name", "resources"], name=NAME, resources=array(_QUOTA))),
)
_CLUSTER_QUEUE = obj(
    namespaceSelector={"type": "object"},
    queueingStrategy={"enum": ["StrictFIFO", "BestEffortFIFO"]},
    resourceGroups=array(_GROUP),
)
_KUEUE = "kueue.x-k8s.io/v1beta2"
SCHEMAS = {
    "JobSet": resource("jobset.x-k8s.io/v1alpha2", "JobSet", _JOBSET),
    "ResourceFlavor": resource(_KUEUE, "ResourceFlavor", obj(nodeLabels=TEXTS), namespaced=False),
    "ClusterQueue": resource(_KUEUE, "ClusterQueue", _CLUSTER_QUEUE, namespaced=False),
    "LocalQueue": resource(_KUEUE, "LocalQueue", obj(clusterQueue=NAME)),
}
