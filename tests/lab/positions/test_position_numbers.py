"""The numbers of the report on positions, against the formulas, and what its pictures show."""

import math
from functools import lru_cache

import numpy as np
import pytest

from jaxformer.errors import ConfigError
from jaxformer.lab.positions.report import SECTIONS as SECTIONS_OF_SCHEMES
from jaxformer.lab.positions.rope import scaling_section
from jaxformer.lab.positions.scores import scores_section
from jaxformer.lab.positions.section import SCHEMES, PositionsConfig

CONFIG = PositionsConfig(
    length=9,
    model_dim=12,
    num_heads=3,
    head_dim=8,
    num_bits=3,
    num_buckets=8,
    max_distance=20,
    trained_length=64,
    factor=4.0,
    limit=2000,
)
SECTIONS = {name: sections[0] for name, sections in SECTIONS_OF_SCHEMES.items()}
SECTIONS |= {"scaling": scaling_section, "scores": scores_section}


@lru_cache
def section(name):
    return SECTIONS[name](CONFIG)


def numbers(name):
    return {(number.quantity, number.setting): number.value for number in section(name).numbers}


@pytest.mark.more
@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.quick("rope", "scores")
def test_every_picture_can_be_read_alone(name):
    found = section(name)
    assert found.pictures
    assert all(found.text)
    for picture in found.pictures:
        figure = picture.figure
        assert len(figure.get_suptitle()) > 10
        assert picture.caption.endswith(".")
        for axes in figure.axes:
            if axes.axison and axes.get_label() != "<colorbar>":
                assert axes.get_xlabel() or axes.get_title(loc="left"), picture.name
            lines = {
                line.get_color() for line in axes.lines if not line.get_label().startswith("_")
            }
            if len(lines) > 1 and not axes.get_legend():
                others = [other for other in figure.axes if other.get_legend()]
                assert others, f"{picture.name}: no legend"


def test_integers_share_codes_where_the_type_ends():
    assert numbers("integer") == {
        ("step", "max_length = 9"): 1 / 9,
        ("first equal codes", "bfloat16"): "257 equals 256",
        ("first equal codes", "float16"): "2,049 equals 2,048",
    }


def test_digits_of_the_binary_code():
    found = numbers("binary")
    assert found["distinct codes", "3 digits"] == 8
    assert found["first equal codes", "3 digits"] == "8 equals 0"
    assert found["digits that change, most", "3 digits"] == 3
    assert found["digits that change, mean", "3 digits"] == pytest.approx((4 + 2 * 2 + 3) / 7)


def test_sinusoidal_numbers():
    found, setting = numbers("sinusoidal"), "D = 12, base 10,000"
    assert found["shortest wavelength", setting] == pytest.approx(2 * math.pi)
    assert found["longest wavelength", setting] == pytest.approx(2 * math.pi * 10_000 ** (10 / 12))
    limit = found["limit of the wavelengths, 2 pi x base", "base 10,000"]
    assert limit == pytest.approx(20_000 * math.pi)
    ended = found["longest wavelength, with 1 / base as a frequency", setting]
    assert ended == pytest.approx(limit)
    frequencies = 10_000.0 ** (-np.arange(6) / 6)
    product = found["inner product at distance 10", setting]
    assert product == pytest.approx(np.cos(10 * frequencies).sum(), abs=1e-5)
    assert found["largest error of PE(p + 7) = R_7 PE(p)", "p < 9,993"] < 2e-6
    assert found["first distance at which codes are equal", "D = 4, within 0.1"] == 622
    none = found["first distance at which codes are equal", "D = 16, within 0.1"]
    assert none == "none up to 2,000"


def test_rope_numbers():
    found = numbers("rope")
    assert found["largest error of R_m^T R_n = R_(n - m)", "m, n up to 1,000,000"] < 2e-6
    assert found["pairs that do not turn once", "64 positions"] == 2
    frequencies = 10_000.0 ** (-np.arange(4) / 4)
    partial = np.abs(np.cumsum(np.exp(100j * frequencies))).mean() / 2.5
    bound = found["bound at distance 100 / at 0", "base 10,000"]
    assert bound == pytest.approx(partial, abs=1e-5)


def test_stretched_frequencies():
    found = numbers("scaling")
    assert found["pairs divided by the factor", "linear"] == 4
    assert found["multiplier of cos and sin", "YaRN"] == pytest.approx(0.1 * math.log(4) + 1)
    for name in ("linear", "NTK", "YaRN", "Llama 3", "LongRoPE (example)"):
        longest = found["longest wavelength", name]
        assert longest == pytest.approx(4 * 2 * math.pi * 1000, rel=1e-5)


def test_biases():
    found = numbers("alibi")
    assert found["slope", "head 0 of 3"] == 2**-4
    assert found["distance at which weights fall by e", "head 0"] == 16
    found = numbers("t5")
    assert found["distances with a separate bucket", "encoder"] == 2
    assert found["distances with a separate bucket", "decoder"] == 4
    assert found["buckets used for earlier keys", "decoder"] == 8


def test_scores_of_relative_schemes_depend_on_the_distance_alone():
    found = {number.scheme: number.value for number in section("scores").numbers}
    assert set(SECTIONS_OF_SCHEMES) < set(found) == set(SCHEMES)
    for name in ("none", "rope", "alibi", "t5"):
        assert found[name] == pytest.approx(1, abs=1e-5)
    for name in ("integer", "binary", "sinusoidal", "learned"):
        assert found[name] < 0.99
    terms = numbers("scores")
    assert terms["relative share of the term", "position - position, W = 1"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schemes": ("rop",)}, "schemes: 'rop' is not a positional scheme; did you mean 'rope'"),
        ({"schemes": ("xyz",)}, "'xyz' is not a positional scheme; choose from none, integer"),
        ({"schemes": ()}, "schemes = .*: must be some of none"),
        ({"model_dim": 7}, "model_dim = 7: must be a multiple of 2"),
        ({"num_heads": 5}, "model_dim = 128: must be a multiple of num_heads = 5"),
        ({"head_dim": 6}, "head_dim = 6: must be a multiple of 4"),
        ({"length": 1}, "length = 1: must be an integer from 2 to 1000"),
        ({"theta": 1.0}, "theta = 1.0: must be a finite number above 1"),
        ({"bases": (0.5,)}, "bases = .*: must be finite numbers above 1"),
        ({"max_distance": 16}, "max_distance = 16: must be an integer above 16"),
        ({"tolerance": 0.0}, "tolerance = 0.0: must be a positive"),
    ],
)
def test_sizes_that_cannot_work_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        PositionsConfig(**changes)
