"""Small models that generate."""

import pytest
from saved_folders import save_tiny

import jaxformer


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return jaxformer.load(save_tiny("gpt2", tmp_path_factory.mktemp("gpt2"), "LMHeadModel"))


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    return jaxformer.load(save_tiny("t5", folder, "ForConditionalGeneration"))
