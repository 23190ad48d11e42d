"""The types of fields of configurations: what is ordinary is not refused."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refusal
from tiny_models import tiny, tiny_vision

from jaxformer.checks import check_types
from jaxformer.data import Mixture, TextFiles
from jaxformer.data.text.files import Files
from jaxformer.errors import ConfigError
from jaxformer.functional import NoPosition, Position, RoPE
from jaxformer.models import LanguageModel, NormPooler
from jaxformer.nn import MLP


def test_the_nearest_name_is_offered():
    with pytest.raises(ConfigError, match=r"activation = 'gelu-tanh': .* 'gelu_tanh'"):
        MLP(activation="gelu-tanh")


def test_scalars_of_numpy_and_lists_are_ordinary():
    plain = tiny(windows=(3, None), dropout=0.5)
    config = tiny(
        num_layers=np.int64(2),
        model_dim=jnp.int32(20),
        windows=[np.int32(3), None],
        dropout=np.float64(0.5),
        scan_layers=np.bool_(False),
        heads=[LanguageModel()],
    )
    assert config == plain
    assert hash(config) == hash(plain)
    json.dumps(dataclasses.asdict(replaced := dataclasses.replace(config, init_std=1)), default=str)
    assert type(replaced.num_layers) is int
    assert type(config.scan_layers) is bool
    assert tiny(init_std=np.float32(0.5)).init_std == 0.5
    assert tiny_vision(pooler=NormPooler()).pooler == NormPooler()
    assert Files(Path("a") / "b").path == str(Path("a") / "b")
    assert Mixture([TextFiles("a"), TextFiles("b")]) == Mixture((TextFiles("a"), TextFiles("b")))


def test_classes_of_a_users_own():
    """Annotations that are not understood, or names known elsewhere alone, are left as they are."""

    class Elsewhere:
        pass

    @dataclass(frozen=True)
    class Mine(RoPE):
        anything: Any = None
        table: dict[str, int] | None = None
        local: "Elsewhere | None" = None

    assert Mine(anything=object(), table={"a": 1}, local=Elsewhere()).theta == 10_000.0
    assert tiny(position=Mine()).position == Mine()

    @dataclass(frozen=True)
    class Other(Position):
        sizes: tuple[int, float] = (1, 2.0)

        def __post_init__(self):
            check_types(self)

    assert Other([np.int64(3), 4]).sizes == (3, 4)
    refusal(lambda: Other((1,)), "Other.sizes = (1,)")
    assert NoPosition() == NoPosition()


def test_what_none_stands_for():
    config = tiny(num_kv_heads=None, head_dim=None, model_dim=24)
    assert (config.kv_heads, config.head_width) == (6, 4)
    assert tiny(num_kv_heads=2, head_dim=8).kv_heads == 2
    assert tiny(num_kv_heads=2, head_dim=8).head_width == 8
