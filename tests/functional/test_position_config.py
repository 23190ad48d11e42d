"""Positional schemes in a configuration: round trips through JSON, errors for misfits."""

import dataclasses
import json

import pytest
from position_cases import IDS, LONGROPE, SCHEMES, D, H

from jaxformer.errors import ConfigError
from jaxformer.functional import (
    ALiBi,
    Binary,
    DynamicNTK,
    Integer,
    Learned,
    Learned2D,
    NoPosition,
    PatchBias,
    RoPE,
    Sinusoidal,
    Sinusoidal2D,
    T5Bias,
)


@pytest.mark.parametrize("scheme", SCHEMES, ids=IDS)
def test_schemes_are_config_objects(scheme):
    fields = json.loads(json.dumps(dataclasses.asdict(scheme)))
    assert hash(scheme) == hash(dataclasses.replace(scheme))
    assert scheme == dataclasses.replace(scheme)
    if "scaling" in fields:
        # JSON turns tuples into lists; the object turns them back.
        fields["scaling"] = type(scheme.scaling)(**fields["scaling"])
    assert type(scheme)(**fields) == scheme
    hash(type(scheme)(**fields))
    with pytest.raises(dataclasses.FrozenInstanceError):
        scheme.max_length = 3


def test_lengths_beyond_the_scheme():
    for scheme, remedy in [
        (Learned(max_length=16), "set max_length to at least 17"),
        (Integer(max_length=16), "set max_length to at least 17"),
        (Binary(num_bits=4), "set num_bits to at least 5"),
        (PatchBias((3, 5)), "set grid to the rows and columns"),
        (Sinusoidal2D((3, 5)), "set grid to the rows and columns"),
    ]:
        assert scheme.max_length == 16
        scheme.validate_length(16)
        with pytest.raises(ConfigError, match=f"fewer than the sequence length 17: {remedy}"):
            scheme.validate_length(17)
    for scheme in (RoPE(), ALiBi(), Sinusoidal(), T5Bias(bidirectional=True)):
        assert scheme.max_length is None
        scheme.validate_length(10**6)


def test_grids_that_do_not_fit():
    for scheme in (
        Learned(7),
        Sinusoidal2D((2, 3)),
        Integer(9),
        Binary(3),
        Sinusoidal(),
        NoPosition(),
    ):
        scheme.validate_grid((2, 3), prefix=1)
    for scheme, prefix, message in [
        (Learned(8), 1, "Learned.max_length = 8"),
        (Learned(7), 0, "Learned.max_length = 7"),
        (Sinusoidal2D((3, 2)), 1, r"Sinusoidal2D.grid = \(3, 2\)"),
        (Sinusoidal2D((2, 3)), 0, "Sinusoidal2D.prefix = 1"),
        (Sinusoidal2D((2, 3), prefix=0), 1, "prefix = 0"),
        (Learned2D((3, 2)), 0, r"Learned2D.grid = \(3, 2\)"),
        (Learned2D((2, 3)), 1, "Learned2D.prefix = 0"),
        (PatchBias((3, 2)), 1, r"PatchBias.grid = \(3, 2\)"),
        (Integer(6), 1, "set max_length to at least 7"),
    ]:
        with pytest.raises(ConfigError, match=message):
            scheme.validate_grid((2, 3), prefix)


def test_sizes_of_the_model():
    for scheme in SCHEMES:
        scheme.validate_sizes(model_dim=D, head_dim=H)
    for scheme, message in [
        (Sinusoidal(), "model_dim = 7"),
        (Sinusoidal2D((2, 3)), "model_dim = 7"),
        (Binary(num_bits=7), "Binary.num_bits = 7"),
        (RoPE(), "RoPE.fraction = 1.0"),
        (RoPE(fraction=0.1), "is even and positive, not 0"),
        (RoPE(fraction=0.8, scaling=LONGROPE), "LongRoPE.short_factors"),
        (RoPE(fraction=0.25, scaling=DynamicNTK(2.0, 8)), "more than 2 rotating channels"),
    ]:
        head_dim = 8 if "LongRoPE" in message or "rotating" in message else 9
        with pytest.raises(ConfigError, match=message):
            scheme.validate_sizes(model_dim=7, head_dim=head_dim)
