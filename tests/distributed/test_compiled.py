"""Where compiled programs are kept."""

import jax
import pytest

from jaxformer.distributed.compiled import keep_compiled
from jaxformer.io.staging import CACHE


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A user without a cache, whose devices are GPUs."""
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def kept():
    return jax.config.jax_compilation_cache_dir


def test_an_accelerators_programs_are_kept_in_the_users_cache_which_is_said_once(user, caplog):
    keep_compiled()
    assert kept() == str(user / "compiled")
    assert str(user / "compiled") in caplog.text
    jax.config.update("jax_compilation_cache_dir", None)
    (user / "compiled").mkdir()
    caplog.clear()
    keep_compiled()
    assert kept() == str(user / "compiled")
    assert not caplog.records


def test_those_of_a_cpu_and_of_several_processes_are_not_kept(user, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    keep_compiled()
    assert kept() is None
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    keep_compiled()
    assert kept() is None


def test_a_named_folder_counts(user):
    jax.config.update("jax_compilation_cache_dir", "of the user")
    keep_compiled()
    assert kept() == "of the user"
    keep_compiled(user / "other")
    assert kept() == str(user / "other")
