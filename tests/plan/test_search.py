"""The search over meshes, rematerialisation and parts of a batch."""

from dataclasses import replace

import pytest
from plan_cases import shrunk, tiny

from jaxformer.config import validate
from jaxformer.distributed.chips import CHIPS
from jaxformer.distributed.slices import parse_chips
from jaxformer.errors import ConfigError
from jaxformer.plan import search
from jaxformer.plan.search import best, evaluate, largest_batch, smallest

SLICE = parse_chips("v5e:2x2")


def test_the_best_fits_and_says_why_it_is():
    found = best(tiny(), SLICE)
    assert 1 <= len(found) <= search.WANTED
    winner = found[0]
    assert winner.fits
    validate(winner.config, SLICE.num_devices)
    assert winner.why
    assert winner.step.seconds == min(each.step.seconds for each in found)
    assert best(tiny(), shrunk(SLICE, 1e4)) == []


def test_a_step_as_it_stands_is_judged():
    candidate = evaluate(tiny((1, 4, 1)), SLICE)
    assert candidate.fits
    assert candidate.name == "fsdp 4, remat none"
    assert not replace(candidate, slice=shrunk(SLICE, candidate.memory.peak - 1)).fits


@pytest.mark.slow
def test_the_largest_batch_fits_and_a_quarter_more_does_not():
    config, small = tiny((1, 4, 1)), shrunk(SLICE, 200e6)
    rows = largest_batch(config, small)
    assert rows % 4 == 0
    assert evaluate(tiny((1, 4, 1), batch_size=rows), small).fits
    more = -(-rows * 5 // 16) * 4
    assert not evaluate(tiny((1, 4, 1), batch_size=more), small).fits
    assert largest_batch(config, shrunk(SLICE, 1e4)) == 0


@pytest.mark.more
def test_the_smallest_slice_that_holds_a_recipe():
    assert smallest(tiny(), CHIPS["v5e"]).slice.num_devices == 1
    with pytest.raises(ConfigError, match=r"chips = 'v5e': no slice is large enough"):
        smallest(tiny(), shrunk(SLICE, 1e3).chip)
