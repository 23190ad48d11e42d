"""Configurations as JSON: exact both ways, strict when reading, differences by name."""

import json
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, JsonLines, TrainTokenizer
from jaxformer.errors import ConfigError
from jaxformer.functional import ALiBi, LinearScaling, RoPE
from jaxformer.io.serialization import diff, from_json, json_round_trip, summary, to_json
from jaxformer.models import DecoderConfig
from jaxformer.optim import AdamW

MODEL = DecoderConfig(
    vocab_size=64,
    num_layers=4,
    model_dim=32,
    num_heads=4,
    mlp_dim=64,
    windows=(8, None),
    position=RoPE(theta=5e5, scaling=LinearScaling(factor=2.0)),
)
CONFIG = Config(
    model=MODEL,
    data=DataConfig(source=JsonLines("a.jsonl"), tokenizer=TrainTokenizer(vocab_size=300)),
    train=TrainConfig(profile_steps=(2, 3), ema_decay=0.999),
)


def test_what_is_written_reads_back_equal():
    text = json.dumps(to_json(CONFIG))
    assert from_json(json.loads(text), Config) == CONFIG
    assert json.loads(text)["model"]["position"]["type"] == "RoPE"


@dataclass(frozen=True)
class Outside:
    """A user's own component: its module is imported when its configuration is read."""

    @dataclass(frozen=True)
    class Nested:
        x: tuple = (1, None, "a")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=8)


@given(TREES)
def test_any_tree_of_scalars_reads_back_equal(tree):
    value = Outside.Nested(x=(tree,))
    assert from_json(json.loads(json.dumps(to_json(value))), Outside.Nested) == value
    assert diff(value, value) == {}


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({"num_layer": 3}, ["config.model.num_layer", "did you mean 'num_layers'"]),
        ({"type": "jaxformer.models.config.DecoderConfi"}, ["did you mean 'DecoderConfig'"]),
        ({"type": "os.system"}, ["not a known type"]),
        ({"type": "subprocess.Popen", "args": "ls"}, ["not a known type"]),
        ({"type": "jaxformer.models.decoder.Decoder"}, ["not a known type"]),
        ({"type": 3}, ["not a known type"]),
        ({"type": "jaxformer.__main__.main"}, ["not a known type", "DecoderConfig"]),
        ({"type": "jaxformer.__main__.X"}, ["not a known type", "DecoderConfig"]),
        ({"type": "jaxformer.nn.config.TextConfig"}, ["not a known type", "DecoderConfig"]),
        ({"type": "jaxformer.functional.norms.RMSNorm"}, ["not a known type", "DecoderConfig"]),
        ({"num_layers": 0}, ["num_layers = 0"]),
        ({"num_layers": "2"}, ["config.model.num_layers = '2': must be an integer"]),
        ({"num_layers": 2.0}, ["config.model.num_layers = 2.0: must be an integer"]),
        ({"num_layers": True}, ["config.model.num_layers = True: must be an integer"]),
        ({"num_layers": None}, ["config.model.num_layers = None: must be an integer"]),
        ({"num_kv_heads": "2"}, ["config.model.num_kv_heads = '2': must be an integer or null"]),
        ({"gated": 1}, ["config.model.gated = 1: must be true or false"]),
        ({"dropout": "0.1"}, ["config.model.dropout = '0.1': must be a number"]),
        ({"dropout": False}, ["config.model.dropout = False: must be a number"]),
        ({"activation": "rel"}, ["must be 'relu' or 'gelu' or", "did you mean 'relu'"]),
        ({"windows": ["x"]}, ["config.model.windows[0] = 'x': must be an integer or null"]),
        ({"windows": 8}, ["config.model.windows = 8: must be a list of an integer or null"]),
        ({"windows": {"0": 8}}, ["config.model.windows = {'0': 8}: must be a list of"]),
        ({"position": "RoPE"}, ["config.model.position = 'RoPE': must be a component"]),
        ({"position": {"theta": 1e4}}, ["config.model.position.type = None", "one of", "RoPE"]),
        ({"position": to_json(AdamW())}, ["'AdamW' is not a known type", "one of", "RoPE"]),
        ({"heads": [3]}, ["config.model.heads[0] = 3: must be a component"]),
        ({"heads": [to_json(AdamW())]}, ["config.model.heads[0].type", "LanguageModel"]),
    ],
)
def test_reading_is_strict(change, texts):
    data = to_json(CONFIG)
    data["model"] |= change
    with pytest.raises(ConfigError) as error:
        from_json(data, Config)
    for text in texts:
        assert text in str(error.value)


@pytest.mark.parametrize("data", [5, "x", None, [], {}, {"model": 3}, {"type": 5}])
def test_what_is_no_configuration_at_all(data):
    with pytest.raises(ConfigError, match="config"):
        from_json(data, Config)


def test_reading_a_type_does_not_run_its_module(monkeypatch):
    monkeypatch.delitem(sys.modules, "jaxformer.__main__", raising=False)
    data = to_json(CONFIG) | {"optimizer": {"type": "jaxformer.__main__.main"}}
    with pytest.raises(ConfigError, match="not a known type"):
        from_json(data, Config)
    assert "jaxformer.__main__" not in sys.modules


def test_numbers_of_a_tuple_are_counted():
    data = to_json(CONFIG)
    data["train"]["profile_steps"] = [1, 2, 3]
    with pytest.raises(ConfigError, match=r"profile_steps = \[1, 2, 3\]"):
        from_json(data, Config)


@dataclass(frozen=True)
class Loose:
    """A component whose author annotated little."""

    names: list[str] = field(default_factory=list)
    table: dict[str, float] = field(default_factory=dict)
    anything: Any = None

    def __post_init__(self):
        len(self.names[0])


def test_containers_that_json_has():
    loose = Loose(["a", "b"], {"x": 1.5}, (1, ("b", None)))
    assert json_round_trip(loose) == loose
    with pytest.raises(ConfigError, match=r"config.names\[0\] = 3"):
        from_json({"type": f"{__name__}.Loose", "names": [3]}, Loose)
    with pytest.raises(ConfigError, match="config: Loose rejected its fields: list index"):
        from_json({"type": f"{__name__}.Loose"}, Loose)
    with pytest.raises(ConfigError, match=r"config\.anything = .*annotate the field"):
        json_round_trip(Loose(["a"], anything=ALiBi()))


def test_a_missing_field_is_named():
    data = to_json(CONFIG)
    del data["model"]["mlp_dim"]
    with pytest.raises(ConfigError, match=r"config\.model: DecoderConfig needs mlp_dim"):
        from_json(data, Config)


def test_what_json_cannot_hold_is_named():
    with pytest.raises(ConfigError, match=r"config\.x\[1\]: a complex"):
        to_json(Outside.Nested(x=(1, 1j)))


def test_differences_by_name():
    other = replace(CONFIG, model=replace(MODEL, num_layers=2, position=RoPE(theta=1e4)))
    assert diff(CONFIG, other) == {
        "model.num_layers": (4, 2),
        "model.position.theta": (5e5, 1e4),
        "model.position.scaling.type": ("LinearScaling", "NoScaling"),
    }
    other = replace(CONFIG, model=replace(MODEL, position=ALiBi(), windows=(8, 16)))
    assert diff(CONFIG, other) == {
        "model.position.type": ("RoPE", "ALiBi"),
        "model.windows": ([8, None], [8, 16]),
    }
    assert diff(CONFIG, from_json(to_json(CONFIG), Config)) == {}


def test_summaries_leave_defaults_out():
    assert summary(RoPE(theta=5e5)) == "RoPE(theta=500000.0)"
    assert summary((ALiBi(), None, 3)) == "(ALiBi(), None, 3,)"
    assert "windows=(8, None,)" in summary(MODEL)
    assert "dropout" not in summary(MODEL)
