"""What must hold for every decoder: who sees whom, and what may not change an answer."""

from itertools import count

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_schemes import KeysLeftAlone, KeysTurnedBack, float32_angles
from tiny_models import (
    SCHEMES,
    close,
    each_scheme,
    influence,
    logits_of,
    packed,
    padded,
    random_parameters,
    structure_of,
    tiny,
    tokens,
)

from jaxformer.functional import ALiBi, KeyPadding, NoPosition, RoPE, assert_shift_invariant
from jaxformer.functional.positions import rope
from jaxformer.nn import Attention

with_scheme = each_scheme(pytest.mark.parametrize)


def assert_reach(config, reach, length=7):
    """Each output depends on exactly the last `reach` inputs."""
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    seen = np.array(influence(config, length, random_parameters(config)))
    np.testing.assert_array_equal(seen[(distance < 0) | (distance >= reach)], 0.0)
    assert (seen[(distance >= 0) & (distance < reach)] > 0).all()


@pytest.mark.first("rope_half", "t5")
@with_scheme
@pytest.mark.quick("sinusoidal", "learned", "rope_half", "alibi", "t5", "binary")
def test_no_output_depends_on_a_later_input(position):
    assert_reach(tiny(position=position), reach=7)


@pytest.mark.parametrize(
    ("changes", "reach"),
    [
        ({"attention": "blockwise", "scan_layers": True}, 7),
        ({"windows": (2,), "attention": "blockwise"}, 3),  # each layer looks back by one
        ({"windows": (1, 3), "scan_layers": True}, 3),
        ({"windows": (None, 2), "position": ALiBi()}, 7),
    ],
)
@pytest.mark.quick("changes1-3", "changes2-3")
def test_windows_limit_how_far_back_an_output_depends(changes, reach):
    assert_reach(tiny(**changes), reach)


@with_scheme
@pytest.mark.first("rope_half", "learned")
@pytest.mark.quick("sinusoidal", "learned", "rope_half", "alibi", "t5")
def test_padding_on_either_side_changes_nothing(position):
    config, inputs = tiny(position=position), tokens(2, 5)
    parameters = random_parameters(config)
    alone = logits_of(config, parameters, inputs)
    batch, places = padded(inputs, 8, starts=(3, 0))
    batch["mask"] = KeyPadding(batch.pop("segments") > 0)
    logits = logits_of(config, parameters, **batch)
    close(logits[places], alone)
    assert jnp.isfinite(logits).all()


@with_scheme
@pytest.mark.quick("learned", "rope_half", "alibi", "t5")
def test_packed_documents_are_as_separate_ones(position):
    config, documents = tiny(position=position), tokens(2, 5)
    parameters = random_parameters(config)
    logits = logits_of(config, parameters, **packed(documents))[0]
    separate = logits_of(config, parameters, documents)
    close(logits[:10].reshape(separate.shape), separate)
    assert jnp.isfinite(logits).all()


ABSOLUTE = ("integer", "binary", "sinusoidal", "learned")
RELATIVE = {name: scheme for name, scheme in SCHEMES.items() if name not in ABSOLUTE}


def of_positions(position, **changes):
    """The logits of a decoder as a function of positions, compiled anew, and their rounding."""
    config, inputs = tiny(position=position, **changes), tokens(2, 7)
    parameters = random_parameters(config)

    @jax.jit
    def logits(positions):
        return structure_of(config).module(parameters)(inputs, positions=positions)

    # As everywhere here: some units in the last place of the largest.
    return logits, 2e-5 * float(jnp.abs(logits(jnp.arange(7)[None])).max())


@pytest.mark.parametrize("position", RELATIVE.values(), ids=RELATIVE)
@pytest.mark.quick("rope_partial", "t5", "alibi")
def test_a_decoder_sees_distances_alone(position):
    logits, rounding = of_positions(position)
    assert_shift_invariant(logits, jnp.arange(7)[None], atol=rounding)
    apart = logits(2 * jnp.arange(7)[None]) - logits(jnp.arange(7)[None])
    assert jnp.abs(apart).max() > 100 * rounding


@pytest.mark.parametrize("name", ABSOLUTE)
@pytest.mark.quick("learned")
def test_a_decoder_with_absolute_positions_does_not(name):
    logits, rounding = of_positions(SCHEMES[name])
    with pytest.raises(AssertionError, match="shifted by 1"):
        assert_shift_invariant(logits, jnp.arange(7)[None], shifts=[1], atol=rounding)


def check_one_place(position):
    """Asserts that tokens that stand at one place are as without positions.

    Shifted positions do not show a layer whose queries stand beside their tokens: there, too,
    distances alone count, but they are other ones.
    """
    logits, rounding = of_positions(position)
    expected = of_positions(NoPosition())[0](jnp.zeros((1, 7), jnp.int32))
    actual = logits(jnp.full((1, 7), 5))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=rounding)


@pytest.mark.parametrize("position", [RoPE(theta=100.0), ALiBi()])
def test_at_one_place_there_are_no_positions(position):
    check_one_place(position)


def in_second_layer(monkeypatch, places):
    """Lets the second of two layers attend by other positions of queries and keys."""
    plain, calls = Attention.__call__, count()

    def attend(self, x, *, positions, **options):
        if next(calls) % 2:
            positions, options["kv_positions"] = places(positions)
        return plain(self, x, positions=positions, **options)

    monkeypatch.setattr(Attention, "__call__", attend)


@pytest.mark.parametrize("scheme", [KeysLeftAlone(), KeysTurnedBack()], ids=str)
def test_a_scheme_that_is_not_relative_is_seen_in_a_decoder(scheme):
    logits, rounding = of_positions(scheme)
    with pytest.raises(AssertionError, match="shifted by 1"):
        assert_shift_invariant(logits, jnp.arange(7)[None], atol=rounding)


def test_float32_angles_are_seen_in_a_decoder(monkeypatch):
    monkeypatch.setattr(rope, "rotary_angles", float32_angles)
    logits, rounding = of_positions(RoPE())
    with pytest.raises(AssertionError, match="shifted by 1000003"):
        assert_shift_invariant(logits, jnp.arange(7)[None], atol=rounding)


def test_a_layer_whose_keys_are_not_shifted_is_seen(monkeypatch):
    in_second_layer(monkeypatch, lambda positions: (positions, jnp.arange(7)[None]))
    logits, rounding = of_positions(RoPE())
    with pytest.raises(AssertionError, match="shifted by 1"):
        assert_shift_invariant(logits, jnp.arange(7)[None], atol=rounding)


@pytest.mark.more
@pytest.mark.parametrize(
    "places",
    [
        lambda positions: (positions + 1, positions),
        lambda positions: (positions, positions + 1),
        lambda positions: 2 * (jnp.arange(7)[None],),
    ],
    ids=["queries shifted", "keys shifted", "counted anew"],
)
@pytest.mark.quick("queries shifted")
def test_a_layer_with_positions_of_its_own_is_seen(places, monkeypatch):
    check_one_place(RoPE())
    in_second_layer(monkeypatch, places)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_one_place(RoPE())
