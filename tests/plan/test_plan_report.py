"""A plan: what the closed form and the compiler say, in one place."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from jaxformer.config import load_config
from jaxformer.distributed import MeshConfig
from jaxformer.errors import ConfigError
from jaxformer.plan import compiler, report, search
from jaxformer.plan.compiler import CompiledStep
from jaxformer.plan.slices import parse_chips

CONFIG = load_config(str(Path(__file__).parents[2] / "configs" / "tiny_decoder.py"))
CONFIG = replace(CONFIG, mesh=MeshConfig(data=2, fsdp=2))
SLICE = parse_chips("v5e:2x2")
GIB = 2**30


def planned(monkeypatch, compiled_peak=None):
    step = CompiledStep(15 * GIB, compiled_peak or 0, 1, compiled_peak or 0, 0.0, [], [])
    monkeypatch.setattr(compiler, "is_installed", lambda: compiled_peak is not None)
    monkeypatch.setattr(compiler, "compile_step", lambda *_: step)
    monkeypatch.setattr(search, "largest_batch", lambda *_: 128)
    found = search.evaluate(CONFIG, SLICE)
    said = []
    made = report.plan(CONFIG, SLICE, found, compiling=True, progress=said.append)
    return made, said


def test_the_compiler_has_the_last_word(monkeypatch):
    made, said = planned(monkeypatch, compiled_peak=20 * GIB)
    assert made.memory.peak < SLICE.chip.memory.value
    assert made.peak_bytes == 20 * GIB
    assert not made.fits
    assert not made.unconfirmed
    assert "compiling for v5e:2x2" in said[-1]
    assert made.as_json()["compiled"]["peak_bytes"] == 20 * GIB


def test_without_it_the_plan_is_that_of_the_closed_form(monkeypatch):
    made, _ = planned(monkeypatch)
    assert made.fits
    assert made.peak_bytes == made.memory.peak
    assert made.unconfirmed == compiler.INSTALL
    assert made.days == made.step.days(CONFIG.train.steps)
    assert made.best_options == "--mesh.data 2 --mesh.fsdp 2 --mesh.tensor 1"
    written = json.loads(json.dumps(made.as_json()))
    assert written["compiled"] is None
    assert written["mesh"] == {"data": 2, "fsdp": 2, "tensor": 1}


def test_a_mesh_that_crosses_slices_is_refused_before_any_work():
    config = replace(CONFIG, mesh=MeshConfig(fsdp=8))
    with pytest.raises(ConfigError, match=r"--mesh\.data 2"):
        report.plan(config, parse_chips("v5e:2x2*2"), compiling=True, progress=pytest.fail)
