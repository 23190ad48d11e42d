"""Slices: what a text names, and what is said about one that does not exist."""

import pytest

from jaxformer.distributed.chips import CHIPS
from jaxformer.distributed.slices import Slice, parse_chips, slices_of
from jaxformer.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "chips", "devices", "hosts"),
    [
        ("v5p:4x4x4", 64, 64, 16),
        ("v6e:16x16", 256, 256, 64),
        ("v5p:4x4x4*2", 128, 128, 32),
        ("tpu7x:2x2x1", 4, 8, 1),
        ("v5e:1x1", 1, 1, 1),
        ("h100:64", 64, 64, 8),
        ("GB200:72", 72, 72, 18),
        ("h200:1", 1, 1, 1),
    ],
)
def test_a_text_names_a_slice_which_writes_itself_so(text, chips, devices, hosts):
    found = parse_chips(text)
    assert (found.chips, found.num_devices, found.hosts) == (chips, devices, hosts)
    assert parse_chips(found.name) == found
    assert found.name == text.lower()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v5q:4x4x4", "did you mean 'v5p'"),
        ("v5p:4x4x5", "the nearest are 4x4x4, 4x4x8, 4x4x12"),
        ("v5p:1x2x2", "the nearest are 2x2x1"),
        ("v6e:3x3", "the nearest are 2x2, 2x4, 4x4"),
        ("v5p:64", "topology of v5p; the nearest are 2x4x4, 4x4x4, 4x4x8"),
        ("v5p", "must have a topology"),
        ("v5p:0x4x4", 'as "v5p:4x4x4"'),
        ("v5p:4x4x4*0", 'as "v5p:4x4x4"'),
        ("v5p:a", 'as "v5p:4x4x4"'),
        ("h100:12", "the nearest are h100:8, h100:16"),
        ("h100:8*2", "whole machines of 8"),
        ("v4:16x16x32", "must be a topology of v4"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_nearest(text, words):
    with pytest.raises(ArgumentError, match="= ") as error:
        parse_chips(text)
    assert words in str(error.value)


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_the_slices_of_a_chip_grow_and_can_be_named(chip):
    found = list(slices_of(chip))
    sizes = [each.chips for each in found]
    assert sizes == sorted(set(sizes))
    small = [each for each in found if each.chips <= 1024]
    assert [parse_chips(each.name) for each in small] == small


def test_the_most_compact_of_equal_slices_is_taken():
    names = [each.name for each in slices_of(CHIPS["v5p"]) if each.chips in (256, 512, 1024)]
    assert names == ["v5p:4x8x8", "v5p:8x8x8", "v5p:8x8x16"]


def test_a_torus_closes_where_it_has_whole_cubes_or_sixteen_chips():
    assert parse_chips("v5p:4x4x8").wraps == (True,) * 3
    assert parse_chips("v5p:2x4x4").wraps == (False,) * 3
    assert parse_chips("v5e:8x16").wraps == (False, True)
    assert Slice(CHIPS["v6e"], (16, 16)).wraps == (True, True)
