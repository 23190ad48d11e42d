"""The programs that XLA has compiled, kept on disk for the next process."""

import logging
from pathlib import Path

import jax

from jaxformer.io.staging import cache_folder

_log = logging.getLogger(__name__)


def keep_compiled(folder: Path | None = None) -> None:
    """Keeps compiled programs in a folder, where the next process finds them.

    By default an accelerator's programs are kept in the user's cache. Those of a CPU are not, since
    they may not run on another CPU, nor are those of a job of several processes: if only some find
    a program, the others wait for them while they compile. A folder that
    JAX_COMPILATION_CACHE_DIR names is used as it is.
    """
    if folder is None:
        alone = jax.process_count() == 1 and jax.default_backend() != "cpu"
        if jax.config.jax_compilation_cache_dir is not None or not alone:
            return
        folder = cache_folder() / "compiled"
        if not folder.exists():
            _log.warning(
                "compiled programs are kept in %s, so that the next start is faster; "
                "JAX_COMPILATION_CACHE_DIR names another folder",
                folder,
            )
    jax.config.update("jax_compilation_cache_dir", str(folder))
