"""The table of chips: every number has a source, and agrees with what JAX itself says."""

import re

import pytest
from jax.experimental.pallas import tpu as pltpu

from jaxformer.distributed.chips import CHIPS, find_chip
from jaxformer.errors import ArgumentError


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_every_figure_says_where_it_comes_from(chip):
    assert set(chip.figures) >= {"peak_flops", "memory", "memory_bandwidth", "link_bandwidth"}
    for name, figure in chip.figures.items():
        assert figure.value > 0, name
        assert re.search(r"https://|libtpu", figure.source), name
        assert re.fullmatch(r"20\d\d-\d\d", figure.date), name


@pytest.mark.parametrize("name", [name for name, chip in CHIPS.items() if chip.kind == "tpu"])
def test_a_tpu_is_what_jax_says(name):
    chip = CHIPS[name]
    cores = {"v4": 2, "v5p": 2}.get(name, 1)
    info = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion(name.removeprefix("tpu")), cores)
    assert chip.peak_flops.value == pytest.approx(cores * info.bf16_ops_per_second, rel=0.01)
    # What the compiler leaves to programs is less than what the chip has.
    assert 0.9 < chip.memory.value / (cores * info.hbm_capacity_bytes) < 1.07
    assert chip.memory_bandwidth.value == pytest.approx(
        cores * info.mem_bw_bytes_per_second, rel=0.15
    )


def test_an_unknown_chip_is_refused_with_the_nearest():
    with pytest.raises(ArgumentError, match="did you mean 'h100'"):
        find_chip("H10")
