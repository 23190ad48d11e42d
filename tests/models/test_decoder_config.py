"""Configurations that cannot work are refused at once, by an error that names the field."""

import math

import pytest
from tiny_models import tiny

from jaxformer.errors import ConfigError
from jaxformer.functional import RoPE, Sinusoidal
from jaxformer.nn import DotProductAttention

POSITIVE = ["vocab_size", "num_layers", "model_dim", "num_heads", "mlp_dim", "num_kv_heads"]
POSITIVE += ["head_dim", "init_std", "embedding_scale", "logit_softcap", "residual_scale"]


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("value", [0, -1])
def test_must_be_positive(name, value):
    with pytest.raises(ConfigError, match=rf"model\.{name} = {value}: must be an? (int|pos)"):
        tiny(**{name: value})


@pytest.mark.parametrize("name", ["logit_softcap", "init_std", "embedding_scale"])
def test_must_be_a_number(name):
    with pytest.raises(ConfigError, match=rf"model\.{name} = nan"):
        tiny(**{name: math.nan})


@pytest.mark.parametrize("name", ["softcap", "scale", "clip"])
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_settings_of_attention_must_be_positive(name, value):
    with pytest.raises(ConfigError, match=rf"DotProductAttention\.{name} = {value}: must be a pos"):
        DotProductAttention(**{name: value})


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_the_rate_of_attention(value):
    with pytest.raises(ConfigError, match=rf"dropout = {value}: must be a number from 0"):
        DotProductAttention(dropout=value)


@pytest.mark.parametrize("name", ["dropout", "embedding_dropout"])
@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5, math.nan])
def test_rates(name, value):
    with pytest.raises(ConfigError, match=rf"model\.{name} = {value}: must be a number from 0"):
        tiny(**{name: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3, "num_kv_heads": 1, "head_dim": None}, r"model_dim = 20 .*num_heads = 3"),
        ({"num_kv_heads": 4}, "num_kv_heads = 4 does not divide model.num_heads = 6"),
        ({"num_kv_heads": 12}, "num_kv_heads = 12 does not divide"),
        ({"windows": ()}, "windows"),
        ({"window_position": RoPE()}, "window_position = RoPE.* no layer has a window"),
        ({"windows": (2,), "window_position": RoPE(fraction=0.3)}, "fraction = 0.3"),
        ({"rope_layers": (True, False)}, r"rope_layers = \(True, False\): must be .* the 1 in"),
        (
            {"position": Sinusoidal(), "rope_layers": (False,)},
            "rope_layers = .* position is no RoPE",
        ),
        ({"windows": (0,)}, r"windows = \(0,\): must be"),
        ({"windows": (None, -3)}, r"windows = \(None, -3\): must be"),
        (
            {"windows": (None, 2, 3)},
            r"num_layers = 2 is not divisible by the 3 entries of model\.windows",
        ),
        ({"head_dim": 5, "position": RoPE()}, "fraction"),
        ({"model_dim": 21, "position": Sinusoidal()}, "Sinusoidal"),
    ],
)
def test_sizes_and_components_that_do_not_fit(changes, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**changes)


@pytest.mark.parametrize(
    "name", ["compute_dtype", "attention", "remat", "self_attention.query_key_norm_over"]
)
def test_choices_among_names(name):
    """A configuration file is Python: nothing else checks what it spells."""
    with pytest.raises(ConfigError, match=rf"{name.split('.')[-1]}.*nonsense"):
        tiny(**{name: "nonsense"})


def test_what_none_stands_for():
    config = tiny(num_kv_heads=None, head_dim=None, model_dim=24)
    assert (config.kv_heads, config.head_width) == (6, 4)
    assert tiny(num_kv_heads=2, head_dim=8).kv_heads == 2
    assert tiny(num_kv_heads=2, head_dim=8).head_width == 8
