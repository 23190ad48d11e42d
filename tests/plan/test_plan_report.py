"""A plan: what the closed form and the compiler say, in one place."""

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from plan_cases import shrunk, tiny

from jaxformer.cli import plan as plan_command
from jaxformer.config import load_config
from jaxformer.data import Stage
from jaxformer.distributed import MeshConfig
from jaxformer.distributed.slices import parse_chips
from jaxformer.errors import ConfigError
from jaxformer.plan import compiler, report, search
from jaxformer.plan.compiler import CompiledStep
from jaxformer.plan.memory import GAPS, MemoryEstimate
from jaxformer.plan.trace import stages_of

ROOT = Path(__file__).parents[2]
CONFIG = load_config(str(ROOT / "configs" / "tiny_decoder.py"))
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


@pytest.mark.more
def test_the_compiler_has_the_last_word(monkeypatch):
    made, said = planned(monkeypatch, compiled_peak=20 * GIB)
    assert made.memory.peak < SLICE.chip.memory.value
    assert made.peak_bytes == 20 * GIB
    assert not made.fits
    assert not made.unconfirmed
    assert "compiling for v5e:2x2" in said[-1]
    assert made.as_json()["compiled"]["peak_bytes"] == 20 * GIB


@pytest.mark.more
def test_what_gaps_need_decides(monkeypatch, capsys):
    """Arrays of 14 GiB and gaps of 2 do not fit in 15: the headline names both."""
    made, _ = planned(monkeypatch, compiled_peak=14 * GIB)
    made = replace(made, compiled=replace(made.compiled, temporary_bytes=16 * GIB))
    assert (made.fits, made.verdict) == (False, "does not fit")
    assert made.needed_bytes == made.compiled.assigned_bytes == 16 * GIB + 1
    assert made.as_json()["needed_bytes"] == made.needed_bytes
    plan_command._print("tiny", made)
    (headline,) = [line for line in capsys.readouterr().out.splitlines() if "memory: " in line]
    assert "does not fit: 16.00 GiB of 15.75 GiB" in headline
    assert "14.00 GiB without" in headline


def test_a_closed_form_says_how_sure_it_is():
    memory = MemoryEstimate({"parameters": 100}, (), ())
    verdicts = [memory.verdict(usable) for usable in (99, 100, 119, 121)]
    assert verdicts == ["does not fit", "may not fit", "may not fit", "fits"]
    assert (memory.cannot_fit(86), memory.cannot_fit(88)) == (True, False)


def test_gaps_are_those_of_the_receipts():
    receipts = json.loads((ROOT / "benchmarks/results/plan_receipts.json").read_text())["receipts"]
    kept = [each for each in receipts if "temporary_bytes" in each]
    gaps = [(e["argument_bytes"] + e["temporary_bytes"]) / e["peak_bytes"] - 1 for e in kept]
    assert len(gaps) >= 70
    assert np.median(gaps) == pytest.approx(GAPS[0], abs=0.01)
    assert np.quantile(gaps, 0.9) <= GAPS[1]


@pytest.mark.more
def test_dollars_are_those_of_all_chips(monkeypatch, capsys):
    made, _ = planned(monkeypatch)
    assert (made.dollars, made.dollars_per_million_tokens) == (None, None)
    made = replace(made, price=2.5)
    hours = made.step.seconds * CONFIG.train.steps / 3600
    assert made.dollars == pytest.approx(4 * 2.5 * hours)
    tokens = CONFIG.train.steps * CONFIG.data.batch_size * CONFIG.row_lengths["inputs"]
    assert made.dollars_per_million_tokens == pytest.approx(1e6 * made.dollars / tokens)
    written = made.as_json()
    assert (written["price_per_chip_hour"], written["dollars"]) == (2.5, made.dollars)
    plan_command._print("tiny", made)
    assert "10.00 for all" in capsys.readouterr().out


@pytest.mark.more
def test_without_it_the_plan_is_that_of_the_closed_form(monkeypatch):
    made, _ = planned(monkeypatch)
    assert made.fits
    assert made.peak_bytes == made.memory.peak
    assert made.unconfirmed == compiler.INSTALL
    assert made.days == made.step.days(CONFIG.train.steps)
    assert made.best_options == "--mesh.data 2 --mesh.fsdp 2 --mesh.tensor 1"
    written = json.loads(json.dumps(made.as_json()))
    assert written["compiled"] is None
    assert written["mesh"] == {"data": 2, "fsdp": 2, "tensor": 1, "sequence": 1, "expert": 1}


def closed_form(config, slice_=SLICE):
    return report.plan(config, slice_, compiling=False, progress=lambda _: None)


@pytest.fixture
def short_search(monkeypatch):
    """A trace takes a second: what is found matters here, not how good it is."""
    monkeypatch.setattr(search, "MOST_TRACES", 2)
    monkeypatch.setattr(search, "largest_batch", lambda *_: 128)


@pytest.mark.parametrize(
    ("mesh", "chips", "words"),
    [
        (MeshConfig(fsdp=8), "v5e:2x2*2", "set --mesh.data 2"),
        (MeshConfig(fsdp=3, data=-1), "v5e:2x2", "3 does not divide the 4 devices"),
        (MeshConfig(data=16), "v5e:2x2", "needs 16 devices, v5e:2x2 has 4"),
        (MeshConfig(data=4), "v5e:4x4", "uses 4 of the 16 devices of v5e:4x4"),
    ],
)
@pytest.mark.first("mesh0-v5e:2x2*2-set --mesh.data 2")
@pytest.mark.quick("mesh0-*")
def test_an_impossible_mesh_gives_way_to_the_best_one(mesh, chips, words, short_search):
    slice_ = parse_chips(chips)
    made = closed_form(replace(tiny(), mesh=mesh), slice_)
    assert words in made.impossible
    assert prod(vars(made.config.mesh).values()) == slice_.num_devices
    assert made.config.mesh.data % slice_.num_slices == 0
    assert made.config.mesh == made.best.config.mesh
    assert made.as_json()["own_mesh_impossible"] == made.impossible


@pytest.mark.slow
def test_a_mesh_may_leave_a_vocabulary_whole(short_search):
    config = replace(tiny(), mesh=MeshConfig(fsdp=-1))
    model = replace(config.model, vocab_size=2050, remat="full")
    made = closed_form(replace(config, model=model))
    assert made.impossible == ""
    assert made.config.mesh.fsdp == 4
    changed = made.best.config.model.remat != "full"
    assert ("--model.remat" in made.best_options) == changed


def test_where_no_mesh_works_the_plan_says_what_would_have_to_change(short_search):
    odd = replace(tiny(batch_size=7, sequence_length=63), mesh=MeshConfig(data=-1))
    with pytest.raises(ConfigError, match=r"data\.batch_size = 7: must be a multiple of 2"):
        closed_form(odd)
    config = replace(tiny(), mesh=MeshConfig(fsdp=8))
    small = shrunk(SLICE, 1e6)
    for vocab_size, ending in (
        (2048, "a smaller batch|more memory"),
        (2050, "or pad the vocabulary of 2050, .* --model.vocab_size 2052"),
    ):
        model = replace(config.model, vocab_size=vocab_size)
        with pytest.raises(ConfigError, match=f"does not fit on any mesh .*({ending})$"):
            closed_form(replace(config, model=model), small)


def test_what_no_mesh_changes_is_refused_as_it_is(short_search):
    config = tiny(batch_size=8)
    config = replace(config, train=replace(config.train, gradient_accumulation=3))
    with pytest.raises(ConfigError, match="gradient_accumulation"):
        closed_form(config)


@pytest.mark.slow
def test_a_ramp_has_the_memory_of_one_stage_and_the_days_of_all(short_search, monkeypatch):
    monkeypatch.setattr(search, "best", lambda *_: [])
    stages = (
        Stage(8, until_step=100, sequence_length=64),
        Stage(64, until_step=150, sequence_length=128),
    )
    config = tiny((1, 4, 1), batch_size=16, ramp=stages)
    made = closed_form(config)
    assert [(each.rows, each.lengths["inputs"]) for each in made.stages] == [
        (8, 64),
        (64, 128),
        (16, 256),
    ]
    assert [each.steps for each in made.stages] == [100, 50, config.train.steps - 150]
    alone = [
        search.evaluate(tiny((1, 4, 1), batch_size=rows, sequence_length=length), SLICE)
        for rows, length in ((8, 64), (64, 128), (16, 256))
    ]
    assert made.memory.peak == max(each.memory.peak for each in alone) == alone[1].memory.peak
    seconds = sum(
        stage.steps * each.step.seconds for stage, each in zip(made.stages, alone, strict=True)
    )
    assert made.days == pytest.approx(seconds / 86_400)
    tokens = [stage.rows * stage.lengths["inputs"] for stage in made.stages]
    assert seconds == pytest.approx(
        sum(
            stage.steps * count / stage.step.tokens_per_second
            for stage, count in zip(made.stages, tokens, strict=True)
        )
    )
    (note,) = made.notes
    assert note.startswith("a ramp of 3 stages: memory is that of 64 rows of 128")
    assert len(made.as_json()["stages"]) == 3


def test_a_run_that_ends_within_its_ramp_has_no_later_stages():
    config = tiny(ramp=(Stage(4, until_step=100),))
    (stage,) = stages_of(replace(config, train=replace(config.train, steps=70)))
    assert (stage.config.data.batch_size, stage.steps) == (4, 70)
    assert not stage.config.data.ramp


@pytest.mark.slow
def test_a_run_of_epochs_has_no_days(short_search):
    config = tiny((1, 4, 1))
    made = closed_form(replace(config, train=replace(config.train, steps=None, epochs=2.0)))
    assert made.days is None
    assert "days are not known: train.epochs = 2" in made.notes[0]
