"""Arrays in an object store: how tensorstore, which writes them, is configured.

Orbax 0.12 passes gs:// URLs to tensorstore but not s3://, and has no option for the number of
retries. Tensorstore supports both, so this module replaces the orbax functions that build
tensorstore specs.
"""

import math
import os
import sys
from typing import Any

import orbax.checkpoint as ocp

from jaxformer.io.attempts import LONGEST_PAUSE, patience
from jaxformer.io.paths import any_path, is_remote
from jaxformer.io.remote import RemotePath

COMMIT_BY_FILE = ocp.options.AtomicityOptions(mode=ocp.options.AtomicityMode.COMMIT_FILE)
_places = sys.modules[ocp.type_handlers.get_ts_context.__module__]
"""The orbax modules that build tensorstore specs, which depend on the release."""
_gcs_store = _places.gcs_utils.get_kvstore_for_gcs


def enable_object_stores() -> None:
    """Lets orbax read and write s3:// and gs:// URLs; may be called repeatedly."""
    _places._use_gcs_driver = is_remote
    _places._normalize_path = _normalized
    _places.gcs_utils.get_kvstore_for_gcs = _store


def _normalized(path: str) -> str:
    return str(any_path(path, "checkpoint"))


def _store(url: str) -> dict[str, Any]:
    """Returns the tensorstore key-value store spec of a URL."""
    path = any_path(url, "checkpoint")
    if str(path).startswith("s3://"):
        return _s3_place(path) | {"s3_request_retries": _retries()}
    return _gcs_store(url) | {"gcs_request_retries": _retries()}


def _s3_place(path: RemotePath) -> dict[str, Any]:
    """Returns the spec of an S3 folder, with the endpoint and region configured for botocore."""
    place = {"driver": "s3", "bucket": path.bucket, "path": "/".join(path.parts[3:])}
    meta = path.store.s3.meta
    if "amazonaws.com" not in meta.endpoint_url:
        place |= {"endpoint": meta.endpoint_url, "aws_region": meta.region_name or "us-east-1"}
    # Otherwise tensorstore finds credentials as botocore does.
    if "AWS_ACCESS_KEY_ID" in os.environ:
        place["aws_credentials"] = {"type": "environment"}
    return place


def _retries() -> dict[str, Any]:
    """Returns as many retries as `attempt` makes; pauses double from half a second to 15 s."""
    seconds, first = patience(), 0.5
    doublings = math.log2(LONGEST_PAUSE / first)
    rising = math.log2(seconds / first + 1) if seconds else 0
    steady = (seconds - first * (2**doublings - 1)) / LONGEST_PAUSE
    count = rising if steady <= 0 else doublings + steady
    return {
        "max_retries": max(1, math.ceil(count)),
        "initial_delay": f"{round(first * 1000)}ms",
        "max_delay": f"{round(LONGEST_PAUSE * 1000)}ms",
    }
