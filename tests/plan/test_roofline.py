"""Step times: compared with published ones, and how they change with the work and the links."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from plan_cases import traced
from plan_published import ROWS, work_of_row

from jaxformer.distributed.chips import CHIPS
from jaxformer.distributed.slices import parse_chips
from jaxformer.plan.closed_form import work_of
from jaxformer.plan.roofline import links, shares_of, step_time, time_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "plan_trust.json"
names = [f"{row.model}-{row.chips}" for row in ROWS]


@pytest.mark.parametrize("row", ROWS, ids=names)
def test_published_steps_are_met_within_a_quarter(row):
    assert row.predicted().seconds == pytest.approx(row.seconds, rel=0.25)


def test_half_of_the_rows_of_tpus_are_held_out():
    held_out = [row.held_out for row in ROWS if "h" not in row.chips]
    assert sum(held_out) >= len(held_out) / 2
    fitted = {parse_chips(row.chips).chip.name for row in ROWS if not row.held_out}
    assert fitted == {"v6e", "tpu7x", "h200"}


def test_the_recorded_table_is_what_the_roofline_says():
    recorded = json.loads(RESULTS.read_text())["rows"]
    assert [line["chips"] for line in recorded] == [row.chips for row in ROWS]
    for line, row in zip(recorded, ROWS, strict=True):
        assert line["predicted_seconds"] == pytest.approx(row.predicted().seconds, rel=1e-3)
        assert line["held_out"] == row.held_out


def test_the_term_that_needs_most_binds():
    row = ROWS[0]
    slice_, work = parse_chips(row.chips), work_of_row(row)
    step = time_of(work, slice_, row.mesh)
    assert step.binding == "compute"
    idle = replace(work, products=0.0, attention=0.0)
    assert time_of(idle, slice_, row.mesh).binding == "fsdp links"
    assert step.seconds >= max(step.terms.values())
    assert step.mfu < shares_of(slice_.chip).products
    assert step.tokens_per_second == pytest.approx(row.rows * row.length / step.seconds)
    assert step.days(86_400) == pytest.approx(step.seconds)


def test_a_traced_step_has_the_products_of_its_model():
    step = traced((1, 4, 1))
    work = work_of(step.config, step.slice)
    flops = step.config.model.flops(step.config.row_lengths)
    assert work.products == pytest.approx(3 * flops.products * step.tokens / 4, rel=0.05)
    again = work_of(traced((1, 4, 1), "full").config, step.slice)
    assert 1.1 * work.products < again.products < 1.4 * work.products
    assert again.attention > work.attention
    assert step_time(step).seconds < step_time(traced((1, 4, 1), "full")).seconds


def test_an_axis_uses_whole_dimensions_of_a_torus():
    slice_ = parse_chips("v5p:4x4x8")
    one = slice_.chip.link_bandwidth.value
    found = links(slice_, {"data": 1, "fsdp": 32, "tensor": 4})
    assert found["tensor"].bandwidth == 2 * one
    assert found["fsdp"].bandwidth == 4 * one
    assert found["fsdp"].inner == 32
    assert links(parse_chips("v6e:2x4"), {"data": 1, "fsdp": 8, "tensor": 1})["fsdp"].bandwidth == (
        2 * CHIPS["v6e"].link_bandwidth.value
    )


def test_slices_and_machines_are_joined_by_the_network():
    two = links(parse_chips("v6e:16x16*2"), {"data": 2, "fsdp": 256, "tensor": 1})
    assert (two["data"].outer, two["fsdp"].outer) == (2, 1)
    gpus = links(parse_chips("h100:64"), {"data": 1, "fsdp": 32, "tensor": 2})
    assert (gpus["tensor"].inner, gpus["fsdp"].inner, gpus["fsdp"].outer) == (2, 4, 8)
