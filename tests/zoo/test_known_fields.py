"""Every field that transformers' class of a system knows is read, or known to change nothing.

So a field that is left over is one that transformers ignores, and may be ignored here.
"""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.fields import resolved
from jaxformer.hub.hf_config import HFConfig
from jaxformer.zoo import FORMATS
from jaxformer.zoo.folders import RELATIVES

pytestmark = pytest.mark.torch
# One permits a width that the number of heads does not divide; one is a classifier's dropout.
CHANGES_NO_OUTPUT = {"embedding_size", "hidden_dropout"}
# What is None in transformers, where a model cannot compute with it.
NEEDED = {"deepseek_v2": {"num_experts_per_tok": 6}}
UNSAID = "a value that no system has"
# Composites have only the fields of their parts.
KINDS = sorted(kind for kind, each in FORMATS.items() if each.bind is None or each.sections)


def config_class(kind):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[kind]


def known_fields(kind):
    """The fields of a class, its synonyms, and what its modules ask a configuration for."""
    found = config_class(kind)
    source = Path(inspect.getfile(found)).parent
    names = {each.name for each in dataclasses.fields(found)} | set(found.attribute_map)
    names |= set(re.findall(r'kwargs\.(?:pop|get)\(\s*"(\w+)"', inspect.getsource(found)))
    asked = re.compile(r'(?:get|has)attr\(\s*(?:self\.)?config, "(\w+)"')
    for file in source.glob("modeling_*.py"):
        names |= set(asked.findall(file.read_text()))
    return names - CHANGES_NO_OUTPUT


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_that_transformers_knows_is_ignored(kind):
    usual = config_class(kind)(**NEEDED.get(kind, {})).to_dict() | {"model_type": kind}
    usual = {name: value for name, value in usual.items() if value is not None}
    for name in sorted(known_fields(kind) - set(usual)):
        hf_config = HFConfig({**usual, name: UNSAID})
        try:
            read_checkpoint(hf_config, FORMATS)
        except ValueError:
            continue  # refused
        assert name not in hf_config.ignored, name
    hf_config = HFConfig(usual)
    read_checkpoint(hf_config, FORMATS)
    assert not {name for name in hf_config.ignored if "." not in name}


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_is_left_out_has_the_value_of_transformers(kind):
    needed = NEEDED.get(kind, {})
    usual = config_class(kind)(**needed).to_dict() | {"model_type": kind}
    architecture = {"architectures": [FORMATS[kind].architectures[0].name]} | needed
    every = read_checkpoint(HFConfig(usual | architecture), FORMATS).config
    none = read_checkpoint(HFConfig({"model_type": kind} | architecture), FORMATS).config
    assert resolved(every) == resolved(none)


@pytest.mark.slow
def test_relatives_are_of_systems_that_are_not_known_yet():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    unsaid = {
        "RefinedWeb", "RefinedWebModel", "baichuan", "chatglm", "gpt-sw3", "internlm", "internlm2",
        "internlm3", "minicpm", "new", "nezha", "qwen", "xlm-roberta-flash",
    }  # fmt: skip
    for kind, sentence in RELATIVES.items():
        assert kind not in FORMATS
        assert kind in CONFIG_MAPPING_NAMES or kind in unsaid, kind
        named = sentence.partition(": ")[2].partition(";")[0].split(", ")
        assert set(named) <= set(FORMATS), sentence
