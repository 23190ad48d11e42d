"""Which kernels multiply in float8."""

from dataclasses import replace

import pytest
from tiny_models import tiny

from jaxformer.config import TrainConfig
from jaxformer.errors import ConfigError
from jaxformer.models import AbstractModel
from jaxformer.models.float8 import Float8
from jaxformer.models.lora import LoRA
from jaxformer.nn import Experts

BLOCK = "transformer.stack.group.0.sublayers"


def kernels(config, *targets):
    chosen = Float8(targets) if targets else Float8()
    return chosen.kernels(AbstractModel(config.build))


def test_the_linear_maps_of_blocks_and_nothing_else():
    named = kernels(tiny())
    assert all(name.startswith("transformer.stack.") for name in named)
    assert {name.split(".")[-2] for name in named} >= {"query", "key", "value", "output", "down"}


def test_patterns_choose_and_one_that_matches_nothing_is_an_error():
    found = kernels(tiny(), "*.attention.*")
    assert {name.split(".")[-3] for name in found} == {"attention"}
    for wrong in ("*.atention.*", "embedding.*"):
        with pytest.raises(ConfigError, match="float8"):
            kernels(tiny(), wrong)


def test_experts_and_their_routers_stay_as_they_are():
    config = replace(tiny(), feed_forward=Experts(num=4, per_token=2))
    assert {name.split(".")[-3] for name in kernels(config)} == {"attention"}


def test_not_with_low_rank_factors():
    with pytest.raises(ConfigError, match="float8"):
        TrainConfig(float8=Float8(), lora=LoRA())
