"""Fixtures for whole runs: programs are compiled once and shared."""

import jax
import pytest
from tiny_run import Runs


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def runs(shared_folder) -> Runs:
    return Runs(shared_folder)


@pytest.fixture(scope="module")
def compiled_once(shared_folder):
    """Keeps compiled programs on disk for this module: most tests train the same tiny model."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (str(shared_folder / "compiled"), 0), strict=True):
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
