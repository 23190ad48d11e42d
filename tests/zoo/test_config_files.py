"""Config.json of published systems: what ours are written as."""

import pytest

from jaxformer.hub.describe import describe
from jaxformer.zoo import FORMATS, SYSTEMS

# The system that a size is written as, where each of all could be chosen.
WRITTEN = {
    "llama2-70b": "llama",
    "llama3.2-1b": "llama",
    "mistral-7b": "mistral",
    "gemma-2b": "gemma",
    "olmo3-7b": "olmo3",
    "smollm3-3b": "smollm3",
    "granite-3.0-8b": "granite",
    "command-r-plus-104b": "cohere",
    "command-r7b": "cohere2",
    "starcoder2-3b": "starcoder2",
    "glm-4-9b": "glm",
    "glm-4-32b-0414": "glm4",
    "ernie-4.5-0.3b": "ernie4_5",
    "t5-small": "t5",
    "t5-v1.1-small": "t5",
    "byt5-small": "t5",
    "bart-base": "bart",
    "blenderbot-3b": "blenderbot",
    "blenderbot-small-90m": "blenderbot-small",
    "xglm-564m": "xglm",
    "bert-base": "bert",
    "roberta-base": "roberta",
    "xlm-roberta-xl": "xlm-roberta-xl",
    "eurobert-610m": "eurobert",
    "esm2-650m": "esm",
    "nomic-embed-text-v1.5": "nomic_bert",
    "albert-base": "albert",
    "ernie-3.0-base-zh": "ernie",
    "vit-base-16": "vit",
    "vit-mae-base": "vit_mae",
    "dinov3-vit7b16": "dinov3_vit",
}
# Those that another system comes before, which can say the same.
ALSO_WRITTEN = {
    "mt5-small": "mt5",
    "camembert-base": "camembert",
    "distilbert-base": "distilbert",
}


@pytest.mark.parametrize(
    ("name", "model_type"), (WRITTEN | ALSO_WRITTEN).items(), ids=[*WRITTEN, *ALSO_WRITTEN]
)
def test_sizes_of_the_zoo_can_be_said(name, model_type):
    formats = FORMATS.values() if name in WRITTEN else [FORMATS[model_type]]
    assert describe(SYSTEMS[name].config, formats).model_format.model_type == model_type
