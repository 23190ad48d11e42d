"""The flag that keeps XLA from fusions that compute wrong sums on a CPU."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxformer.xla_flags import NO_YNN_REDUCTIONS, YNN_FUSIONS, avoid_wrong_sums

ROOT = Path(__file__).parents[1]


@pytest.fixture
def not_started(monkeypatch):
    monkeypatch.setattr("jaxformer.xla_flags._computes_on_a_cpu", lambda: False)


@pytest.mark.parametrize(
    ("release", "flags", "expected"),
    [
        ("0.10.2", None, NO_YNN_REDUCTIONS),
        ("0.11.0", "", NO_YNN_REDUCTIONS),
        ("0.10.2", "--xla_a=1 --xla_b", f"--xla_a=1 --xla_b {NO_YNN_REDUCTIONS}"),
        ("0.10.2", f"--xla_a=1 {YNN_FUSIONS}=+reduce", f"--xla_a=1 {YNN_FUSIONS}=+reduce"),
        ("0.10.1", None, None),
        ("0.12.0", "--xla_a=1", "--xla_a=1"),
    ],
)
def test_the_flag_is_added_where_jaxlib_needs_it(not_started, caplog, release, flags, expected):
    environment = {} if flags is None else {"XLA_FLAGS": flags}
    avoid_wrong_sums(environment, release)
    assert environment.get("XLA_FLAGS") == expected
    assert not caplog.records


@pytest.mark.parametrize("flags", ["", "flags.txt"])
def test_what_cannot_be_prevented_is_said(request, caplog, flags):
    """Where JAX computes already; or where the flags are in a file, to which none can be added."""
    if flags:
        request.getfixturevalue("not_started")
    environment = {"XLA_FLAGS": flags}
    with caplog.at_level(logging.WARNING):
        avoid_wrong_sums(environment, "0.10.2")
    assert environment == {"XLA_FLAGS": flags}
    (record,) = caplog.records
    assert NO_YNN_REDUCTIONS in record.getMessage()


@pytest.mark.parametrize(
    ("first", "fused", "warned"),
    [
        ("jax, jaxformer", False, False),
        ("jaxformer", False, False),
        ("jax; jax.devices()", True, True),
    ],
)
def test_a_program_of_the_user_has_no_wrong_fusion_either(first, fused, warned):
    """`import jaxformer` is enough, unless JAX has computed before."""
    program = f"""
import {first}
import jax, jax.numpy as jnp, jaxlib, jaxformer
x = jnp.ones((512, 512))
compiled = jax.jit(lambda x: jnp.sum(x * x, -1)).lower(x).compile()
print(jaxlib.__version__, "__ynn_fusion" in compiled.as_text())
"""
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=kept | {"PYTHONPATH": str(ROOT), "JAX_COMPILATION_CACHE_DIR": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    release, found = done.stdout.split()
    if release != "0.10.2":
        pytest.skip("of jaxlib 0.10.2")
    assert found == str(fused)
    assert ("import jaxformer before" in done.stderr) == warned
