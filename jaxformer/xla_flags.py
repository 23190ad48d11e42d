"""The one flag of XLA that the package sets, since some releases of jaxlib sum wrongly without it.

XLA's compiler for CPUs leaves sums, and what surrounds them, to a library (YNNPACK). In jaxlib
0.10.2 such a fusion may read memory that nothing has written: the gradient of a frozen block is
then wrong or NaN, by what the memory held before. There it sums rows of 3 wrongly as well
(https://github.com/jax-ml/jax/issues/39103), and arrays of 7 axes kill the process, as in 0.11.0
(https://github.com/jax-ml/jax/issues/39257).

XLA reads the variable once, when JAX starts its devices, and obeys it in every program, also those
of a user's own `jax.jit`; the options of an executable would protect our own programs alone.
"""

import logging
import os
import sys
from collections.abc import MutableMapping
from importlib.metadata import version

YNN_FUSIONS = "--xla_cpu_experimental_ynn_fusion_type"
NO_YNN_REDUCTIONS = f"{YNN_FUSIONS}=-reduce"
"""All of the compiler's choices but fusions of sums; jaxlib knows it from 0.10.0 to 0.12.0."""

# 0.10.0, 0.10.1 and 0.12.0 compute all that `doctor` asks of them. So did 0.11.1 and 0.11.2, but
# others have seen wrong gradients.
_AFFECTED = ("0.10.2", "0.11.")

_log = logging.getLogger(__name__)


def avoid_wrong_sums(
    environment: MutableMapping[str, str] = os.environ, release: str = version("jaxlib")
) -> None:
    """Adds the flag to XLA_FLAGS, where the release of jaxlib needs it and the user chose nothing.

    Where it is too late, or XLA_FLAGS names a file of flags, a warning says what to do.
    """
    flags = environment.get("XLA_FLAGS", "").strip()
    if not release.startswith(_AFFECTED) or YNN_FUSIONS in flags:
        return
    names_a_file = flags and not flags.startswith("-")
    if names_a_file or _computes_on_a_cpu():
        _log.warning(
            "jaxlib %s computes some gradients wrongly on a CPU, and it is too late to prevent it: "
            "import jaxformer before JAX computes anything, or start with XLA_FLAGS=%s",
            *(release, NO_YNN_REDUCTIONS),
        )
        return
    environment["XLA_FLAGS"] = f"{flags} {NO_YNN_REDUCTIONS}".strip()


def _computes_on_a_cpu() -> bool:
    """Whether JAX has started its devices, and they are CPUs; starts none."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not bridge.backends_are_initialized():
        return False
    return sys.modules["jax"].default_backend() == "cpu"
