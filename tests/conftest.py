"""Eight virtual CPU devices, strict promotion and a compilation cache, before JAX starts."""

import atexit
import gc
import importlib.util
import os
import shutil
import tempfile
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a name that is no folder is not looked for
# On tensors as small as these, PyTorch's threads would only wait for each other, at full speed.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if importlib.util.find_spec("libtpu") is None:  # which exits at a flag that is not its own
    # Compiling is most of the work here, and one module of machine code takes less than several
    # that link each other. So does XLA's older code generator, half the time; jaxlib 0.11 exits at
    # the flag that chooses it.
    flags = "--xla_cpu_parallel_codegen_split_count=1"
    if version("jaxlib").startswith("0.10."):
        flags += " --xla_cpu_use_fusion_emitters=false"
    os.environ.setdefault("XLA_FLAGS", flags)
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # Workers and the processes that tests start inherit the folder with the environment.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="jaxformer-compiled-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
# What transformers makes of a folder with a tokenizer is asked once, too.
os.environ.setdefault("JAXFORMER_CACHE", f"{os.environ['JAX_COMPILATION_CACHE_DIR']}/jaxformer")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest
from hypothesis import settings

from jaxformer.io.notices import warn_once

gc.disable()  # until all is collected, see pytest_collection_finish
# These assert on behalf of tests; as in tests, the values of an assertion that fails are shown.
pytest.register_assert_rewrite(
    "attention_cases",
    "family_cases",
    "hf_mapping",
    "object_store",
    "position_cases",
    "soak",
    "tiny_run",
    "typed_commands",
    "variants",
)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compilation dominates the first example of every property, so wall-clock deadlines say nothing.
settings.register_profile("jaxformer", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("jaxformer")


# Fixtures that start a server from requirements-more.txt: tests/object_store.py
SERVERS = {"s3_server", "gcs_server"}
MAPPINGS = Path("/proc/self/maps")  # Linux's list of this process's, one on a line


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
    """Says which tests `make test` leaves to `make test-more` and `make test-all`.

    Files with slow tests come first: one that starts late runs alone.
    """
    for item in items:
        for representatives, others in (("first", "more"), ("quick", "slow")):
            marker = item.get_closest_marker(representatives)
            if marker is not None and not _matches(item.callspec.id, marker.args):
                item.add_marker(others)
        if item.get_closest_marker("torch") is not None or SERVERS & set(item.fixturenames):
            item.add_marker("more")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def _matches(name, patterns):
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def pytest_collection_finish():
    """What is imported stays, so that looking through it for garbage finds none, and takes long."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(request):
    """Most of the time here goes into compiling code that runs for a millisecond.

    Every compiled program maps memory, and Linux grants a process only 65,530 mappings, so programs
    are dropped once there are many.
    """
    _compile_as_marked(request.node)
    yield
    if not MAPPINGS.exists() or MAPPINGS.read_bytes().count(b"\n") > 15_000:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def compiled_as_marked(request):
    """One test may be marked `optimized`, in a module that is not."""
    _compile_as_marked(request.node)


@pytest.fixture(autouse=True)
def nothing_was_said():
    """What a process says once is said in each test."""
    warn_once.cache_clear()


@pytest.fixture
def compiled_here():
    """Keeps no program on disk: one that was read from there may wait for itself for ever.

    What jaxlib 0.10 reads back no longer orders the collective operations of a CPU device, and two
    devices that begin with different ones stop the process after 40 seconds.
    """
    name = "jax_persistent_cache_min_compile_time_secs"
    seconds = getattr(jax.config, name)
    jax.config.update(name, 1e9)
    yield
    jax.config.update(name, seconds)


def _compile_as_marked(node):
    quick = node.get_closest_marker("optimized") is None
    if jax.config.read("jax_disable_most_optimizations") != quick:
        jax.config.update("jax_disable_most_optimizations", quick)
        jax.clear_caches()


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Starts whole runs in processes of their own."""
    from tiny_run import Runs

    return Runs(tmp_path_factory.mktemp("runs"))
