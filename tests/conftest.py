"""Eight virtual CPU devices and strict promotion, before JAX starts."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_rank_promotion", "raise")
# Compilation dominates the first example of every property, so wall-clock deadlines say nothing.
settings.register_profile("jaxformer", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("jaxformer")


def pytest_collection_modifyitems(items):
    """Files with slow tests come first: one that begins late keeps a single worker busy."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(request):
    """Most of the time here goes into compiling code that runs for a millisecond.

    Every compiled program maps memory, and Linux grants a process only 65,530 mappings, so a
    module's are dropped after it.
    """
    quick = request.node.get_closest_marker("optimized") is None
    jax.config.update("jax_disable_most_optimizations", quick)
    yield
    jax.clear_caches()
