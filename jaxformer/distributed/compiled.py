"""Keeps programs compiled by XLA on disk for the next process."""

import logging
from pathlib import Path

import jax

from jaxformer.io.staging import cache_folder

_log = logging.getLogger(__name__)


def keep_compiled(folder: Path | None = None) -> None:
    """Keeps compiled programs in a folder, from which the next process loads them.

    By default an accelerator's programs are kept in the user's cache. Those of a CPU are not, since
    they may not run on another CPU, nor are those of a job of several processes: if some find a
    program and others compile it, the former wait. The folder in JAX_COMPILATION_CACHE_DIR, if set,
    is used instead.
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
