"""RoPE in config.json: both spellings of every scaling give the angles of transformers."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import ConfigError
from jaxformer.functional import (
    DynamicNTK,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    NoScaling,
    RoPE,
    Scaling,
    YaRN,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.rope import (
    read_layer_ropes,
    read_rope,
    write_layer_ropes,
    write_rope,
    write_scaling,
)

HEAD_DIM, TRAINED, LONGEST, THETA = 12, 8, 20, 100.0
SHORT, LONG = [1.0, 1.1, 1.3, 1.2, 1.7, 1.5], [1.2, 2.0, 3.5, 3.0, 4.5, 6.0]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": SHORT,
    "long_factor": LONG,
    "original_max_position_embeddings": TRAINED,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": TRAINED,
}
SCALINGS = {
    "linear": ({"rope_type": "linear", "factor": 2.5}, LinearScaling(2.5)),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.5}, DynamicNTK(2.5, LONGEST)),
    "llama3": (LLAMA3, Llama3Scaling(8.0, 1.0, 4.0, TRAINED)),
    "yarn": (YARN, YaRN(4.0, TRAINED)),
    "yarn, ramp": (
        YARN | {"beta_fast": 2, "beta_slow": 0.25, "truncate": False},
        YaRN(4.0, TRAINED, beta_fast=2, beta_slow=0.25, truncate=False),
    ),
    "yarn, two scales": (
        YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
        YaRN(4.0, TRAINED, mscale=0.7, mscale_all_dim=1.3),
    ),
    "yarn, one scale": (YARN | {"mscale": 0.7}, YaRN(4.0, TRAINED, mscale=0.7)),
    "yarn, multiplier": (
        YARN | {"attention_factor": 0.8},
        YaRN(4.0, TRAINED, attention_factor=0.8),
    ),
    "yarn, lengths": (YARN | {"factor": None}, YaRN(LONGEST / TRAINED, TRAINED)),
    "longrope, lengths": (
        LONGROPE,
        LongRoPE(tuple(SHORT), tuple(LONG), TRAINED, factor=LONGEST / TRAINED),
    ),
    "longrope, factor": (
        LONGROPE | {"factor": 3.0},
        LongRoPE(tuple(SHORT), tuple(LONG), TRAINED, factor=3.0),
    ),
    "longrope, multiplier": (
        LONGROPE | {"factor": 3.0, "attention_factor": 1.4},
        LongRoPE(tuple(SHORT), tuple(LONG), TRAINED, factor=3.0, attention_factor=1.4),
    ),
}
each_scaling = pytest.mark.parametrize(
    ("parameters", "scaling"), SCALINGS.values(), ids=SCALINGS.keys()
)
SPELLINGS = {
    "v5": lambda parameters: {"rope_parameters": {"rope_theta": THETA, **parameters}},
    "v4": lambda parameters: {"rope_theta": THETA, "rope_scaling": dict(parameters)},
    "v4, old": lambda parameters: {
        "rope_theta": THETA,
        "rope_scaling": {
            ("type" if name == "rope_type" else name): value for name, value in parameters.items()
        },
    },
}
each_spelling = pytest.mark.parametrize("spelt", SPELLINGS.values(), ids=SPELLINGS.keys())


def hf_config(**values):
    return HFConfig({"max_position_embeddings": LONGEST, **values})


@each_spelling
@each_scaling
def test_all_spellings_mean_the_same(spelt, parameters, scaling):
    found = hf_config(**spelt(parameters))
    assert read_rope(found) == RoPE(theta=THETA, scaling=scaling)
    found.finish()


@each_scaling
def test_what_is_written_is_read_back_from_either_spelling(parameters, scaling):
    rope = RoPE(theta=THETA, scaling=scaling)
    written = write_rope(rope)
    old = {name: value for name, value in written.items() if name != "rope_parameters"}
    new = {name: value for name, value in written.items() if name not in ("rope_scaling",)}
    for values in (written, old, new):
        assert read_rope(HFConfig(values)) == rope


@pytest.mark.torch
@pytest.mark.parametrize("length", [TRAINED - 1, TRAINED + 1, LONGEST + 13])
@each_spelling
@each_scaling
def test_angles_are_those_of_transformers(spelt, parameters, scaling, length):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=48,
        num_attention_heads=6,
        head_dim=HEAD_DIM,
        max_position_embeddings=LONGEST,
        **spelt(parameters),
    )
    module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    positions = np.arange(length)[None]
    expected = [x.numpy() for x in module(torch.zeros(1), torch.tensor(positions))]
    # A unit vector along the first channel of each pair turns into its cosine and sine.
    ones = jnp.tile(jnp.repeat(jnp.array([1.0, 0.0]), HEAD_DIM // 2), (1, length, 1, 1))
    rope = read_rope(hf_config(**spelt(parameters)))
    turned, _ = rope.rotate(ones, ones, jnp.asarray(positions), jnp.asarray(positions))
    actual = np.split(np.asarray(turned)[:, :, 0], 2, axis=-1)
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs[..., : HEAD_DIM // 2], rtol=0, atol=4e-6)


def test_nothing_said_is_plain_rope_with_the_usual_base():
    for values in ({}, {"rope_scaling": None}, {"rope_parameters": {"rope_type": "default"}}):
        assert read_rope(HFConfig(values), theta=500.0) == RoPE(theta=500.0)
    assert write_scaling(NoScaling()) is None
    assert write_rope(RoPE(theta=3.0))["rope_parameters"]["rope_type"] == "default"


def test_as_in_transformers_the_old_spelling_comes_first():
    both = {
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0},
        "rope_scaling": {"rope_type": "linear", "factor": 3.0},
        "rope_theta": 9.0,
    }
    assert read_rope(hf_config(**both)) == RoPE(theta=9.0, scaling=LinearScaling(3.0))


def test_as_in_transformers_the_original_length_outside_comes_first():
    found = hf_config(**SPELLINGS["v5"](YARN), original_max_position_embeddings=5)
    assert read_rope(found).scaling == YaRN(4.0, 5)
    without = {name: x for name, x in YARN.items() if not name.startswith("original")}
    assert read_rope(hf_config(rope_scaling=without)).scaling == YaRN(4.0, LONGEST)


def test_fractions_and_other_names():
    options = {"theta_field": "rotary_emb_base", "fraction_field": "rotary_pct"}
    rope = RoPE(theta=50.0, fraction=0.5, scaling=LinearScaling(2.0))
    written = write_rope(rope, **options)
    assert (written["rotary_emb_base"], written["rotary_pct"]) == (50.0, 0.5)
    assert read_rope(HFConfig(written), fraction=0.25, **options) == rope
    del written["rope_parameters"]
    assert read_rope(HFConfig(written), fraction=0.25, **options) == rope
    assert read_rope(HFConfig({}), fraction=0.25, **options).fraction == 0.25


BASES = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}
THETA_FIELDS = {kind: field for kind, (field, _) in BASES.items()}


def layer_ropes(**values):
    return read_layer_ropes(hf_config(**values), BASES, scaled=("full_attention",))


@each_scaling
def test_kinds_of_layers_have_their_own(parameters, scaling):
    if getattr(scaling, "truncate", True) is False:
        # Transformers looks for it beside the kinds and not within them.
        with pytest.raises(ConfigError, match=r"full_attention\.truncate = False"):
            layer_ropes(rope_parameters={"full_attention": parameters})
        return
    ropes = {
        "full_attention": RoPE(theta=300.0, scaling=scaling),
        "sliding_attention": RoPE(theta=20.0),
    }
    own = {"rope_theta": 300.0, **parameters}
    local = {"rope_type": "default", "rope_theta": 20.0}
    assert ropes == layer_ropes(rope_parameters={"full_attention": own, "sliding_attention": local})
    old = {"rope_theta": 300.0, "rope_local_base_freq": 20.0, "rope_scaling": parameters}
    assert ropes == layer_ropes(**old)
    written = write_layer_ropes(ropes, THETA_FIELDS, scaled="full_attention")
    assert ropes == layer_ropes(**written)
    del written["rope_parameters"]
    assert ropes == layer_ropes(**written)


def test_kinds_of_layers_have_usual_bases():
    thetas = {kind: rope.theta for kind, rope in layer_ropes().items()}
    assert thetas == {"full_attention": 1e6, "sliding_attention": 1e4}


def test_what_transformers_ignores_is_ignored_with_a_warning():
    with pytest.warns(UserWarning, match="reads rope_type"):
        ropes = layer_ropes(rope_scaling={"type": "linear", "factor": 8.0})
    assert ropes["full_attention"].scaling == NoScaling()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_scaling": {"type": "liner", "factor": 2.0}}, r"'liner' .*did you mean 'linear'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: the field 'factor' is missing"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor = '2'"),
        ({"rope_scaling": {"type": "linear", "factor": -2.0}}, "factor = -2.0"),
        ({"rope_scaling": "linear"}, "rope_scaling = 'linear'"),
        ({"rope_parameters": YARN | {"truncate": 3}}, "truncate = 3 is not supported"),
        ({"rope_parameters": LONGROPE | {"long_factor": 3.0}}, "long_factor .* list of numbers"),
        ({"rope_parameters": LONGROPE | {"long_factor": ["a"]}}, "long_factor .* list of numbers"),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": None}}, "'low_freq_factor' is missing"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not supported"),
        ({"rope_theta": "big"}, "rope_theta = 'big'"),
    ],
)
def test_what_is_not_supported_is_named(values, message):
    with pytest.raises(ConfigError, match=message):
        read_rope(hf_config(**values))


def test_a_length_that_is_needed():
    with pytest.raises(ConfigError, match="'max_position_embeddings' is missing"):
        read_rope(HFConfig({"rope_scaling": {"type": "dynamic", "factor": 2.0}}))


def test_parameters_of_layers_of_another_kind_are_named():
    with pytest.raises(ConfigError, match=r"rope_parameters has rope_type; .*full_attention"):
        layer_ropes(rope_parameters={"rope_type": "default"})


def test_a_scaling_that_transformers_does_not_have():
    class Own(Scaling):
        pass

    with pytest.raises(ConfigError, match=r"Own.*default, linear"):
        write_scaling(Own())
