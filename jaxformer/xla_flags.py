"""Sets an XLA flag that works around wrong sums in some releases of jaxlib.

XLA's CPU compiler delegates reductions and fused operations to a library (YNNPACK). In jaxlib
0.10.2 such a fusion may read uninitialized memory: the gradient of a frozen block is then wrong or
NaN, depending on previous contents. It also sums rows of 3 wrongly
(https://github.com/jax-ml/jax/issues/39103), and arrays with 7 axes crash the process, as in 0.11.0
(https://github.com/jax-ml/jax/issues/39257).

XLA reads the variable once, when JAX initializes its backends, and applies it to every program,
including user code under `jax.jit`; compiler options would protect only programs of this library.
"""

import logging
import os
import sys
from collections.abc import MutableMapping
from importlib.metadata import version

YNN_FUSIONS = "--xla_cpu_experimental_ynn_fusion_type"
NO_YNN_REDUCTIONS = f"{YNN_FUSIONS}=-reduce"
"""Enables all fusion kinds except reductions; supported by jaxlib from 0.10.0 to 0.12.0."""

# 0.10.0, 0.10.1 and 0.12.0 pass all checks of `doctor`. So did 0.11.1 and 0.11.2, but wrong
# gradients have been reported for them.
_AFFECTED = ("0.10.2", "0.11.")

_log = logging.getLogger(__name__)


def avoid_wrong_sums(
    environment: MutableMapping[str, str] = os.environ, release: str = version("jaxlib")
) -> None:
    """Adds the flag to XLA_FLAGS if the jaxlib release needs it and the user has not set it.

    If it is too late, or XLA_FLAGS names a file of flags, a warning says what to do.
    """
    flags = environment.get("XLA_FLAGS", "").strip()
    if not release.startswith(_AFFECTED) or YNN_FUSIONS in flags:
        return
    names_a_file = flags and not flags.startswith("-")
    if names_a_file or _computes_on_a_cpu():
        _log.warning(
            "jaxlib %s computes some gradients wrongly on a CPU, and it is too late to prevent it: "
            "import jaxformer before JAX computes anything, or start with XLA_FLAGS=%s",
            release,
            NO_YNN_REDUCTIONS,
        )
        return
    environment["XLA_FLAGS"] = f"{flags} {NO_YNN_REDUCTIONS}".strip()


def _computes_on_a_cpu() -> bool:
    """Whether JAX has already initialized its CPU backend; does not initialize any."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not bridge.backends_are_initialized():
        return False
    return sys.modules["jax"].default_backend() == "cpu"
