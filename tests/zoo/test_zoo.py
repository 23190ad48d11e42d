"""The published systems: every one is there, and has the parameters that its authors give."""

import re
from dataclasses import replace
from functools import cache
from math import prod

import pytest

from jaxformer.cli import main as cli
from jaxformer.functional import Learned
from jaxformer.hub.describe import describe
from jaxformer.models import AbstractModel
from jaxformer.zoo import FORMATS, SYSTEMS

pytestmark = pytest.mark.more

each_system = pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS.keys())
# The last size of each, by the first word of its name.
ONE_OF_EACH = {name.partition("-")[0]: name for name in SYSTEMS}

# The published counts ---------------------------------------------------------------------------

# What authors counted, where it is not the model as it is trained here.
COUNTED = {
    # Two layers (36M) or half the width (28M) leave 41,000 rows for the table of base.
    "transformer-base": {"vocab_size": 41_000},
    "transformer-big": {"vocab_size": 36_000},
    # One of the two tables over the vocabulary.
    "phi-1.5": {"tie_embeddings": True},
    # The padded vocabulary of table 1.
    "gemma-2b": {"vocab_size": 256_128},
    # With a separate output table.
    "t5-large": {"tie_embeddings": False},
    # Without the embedding table.
    "command-r7b": {"vocab_size": 1},
    # Without the output table.
    "eurobert-210m": {"tie_embeddings": True},
    "eurobert-610m": {"tie_embeddings": True},
    "eurobert-2.1b": {"tie_embeddings": True},
    # The encoder alone.
    "vit-mae-base": {"heads": ()},
    # Patches of 32 x 32.
    "vit-large-16": {"patch_size": (32, 32), "position": Learned(max_length=1 + 7 * 7)},
}


def shapes_of(config):
    return {n: x.shape for n, x in AbstractModel(config.build).shapes.items()}


@cache
def parameters_of(name):
    return SYSTEMS[name].count_parameters()


def counted(system):
    """The parameters that the authors counted."""
    if system.name == "gpt-j-6b":
        # Eight shards, each with the norms and output biases of all blocks, the final norm, and a
        # bias of the embedding.
        width, layers = system.config.model_dim, system.config.num_layers
        return parameters_of(system.name) + 7 * (3 * layers + 2) * width + 8 * width
    if system.name == "vit-22b":
        # The matrices of the blocks.
        shapes = shapes_of(system.config)
        return sum(prod(shapes[n]) for n in shapes if "sublayers" in n and n.endswith("kernel"))
    if system.note.startswith("without the table of tokens"):
        own = {"embedding.table", "heads.masked_language_model.bias"}
        shapes = shapes_of(system.config)
        return sum(prod(shape) for name, shape in shapes.items() if name not in own)
    if system.note.startswith("blocks and embeddings of the images"):
        image = system.config.parts.get("image", system.config)
        return sum(map(prod, shapes_of(replace(image, pooler=None)).values()))
    if system.note.startswith("with the head that predicts units"):
        # Codes of 500 clusters and four special symbols, and a projection to their width; the
        # transcript's head is not counted.
        width = {"hubert-large": 768, "hubert-xlarge": 1024}[system.name]
        body = sum(map(prod, shapes_of(replace(system.config, heads=())).values()))
        return body + (system.config.model_dim + 1) * width + 504 * width
    if system.name in COUNTED:
        return sum(map(prod, shapes_of(replace(system.config, **COUNTED[system.name])).values()))
    return parameters_of(system.name)


def read_count(text):
    """A published number, and one unit of its last significant digit: "340M" is 34 x 10M."""
    digits, scale = re.fullmatch(r"([\d.,]+)([MB]?)", text).groups()
    scale = {"M": 10**6, "B": 10**9, "": 1}[scale]
    whole, _, decimals = digits.replace(",", "").partition(".")
    zeros = 0 if decimals or scale == 1 else len(whole) - len(whole.rstrip("0"))
    return float(digits.replace(",", "")) * scale, scale * 10 ** (zeros - len(decimals))


def test_a_published_count_is_as_precise_as_it_is_written():
    assert read_count("340M") == (340e6, 10**7)
    assert read_count("1.23B") == (1.23e9, 10**7)
    assert read_count("13.0B") == (13e9, 10**8)
    assert read_count("2,775,208,960") == (2_775_208_960, 1)


@each_system
@pytest.mark.quick(*ONE_OF_EACH.values())
def test_the_parameters_are_as_many_as_published(system):
    published, unit = read_count(system.published)
    # Some authors round the last digit, others cut what follows it.
    assert abs(counted(system) - published) < unit
    assert system.source
    as_it_is = abs(parameters_of(system.name) - published) < unit
    assert as_it_is == (not system.note)


def test_every_named_system_is_there():
    named = (
        "transformer bert roberta distilbert albert ernie gpt gpt2 gpt3 gpt-j pythia llama llama2 "
        "llama3 llama3.2 mistral phi gemma t5 t5-v1.1 mt5 byt5 bart vit clip siglip siglip2 "
        "blenderbot xglm deberta deberta-v2 deberta-v3 mdeberta"
    )
    for start in named.split():
        assert any(name == start or name.startswith(f"{start}-") for name in SYSTEMS), start


# Counts of transformers -------------------------------------------------------------------------

# Neither the 2017 Transformer nor ViT-22B has a class.
WITH_A_CLASS = set(SYSTEMS) - {"transformer-base", "transformer-big", "vit-22b"}
# Systems of which the class has the sizes by default.
USUAL = (
    "bert-base", "xlm-roberta-xl", "eurobert-210m", "nomic-embed-text-v1.5", "distilbert-base",
    "albert-xxlarge", "gpt", "gpt2-small", "gpt-j-6b", "llama-7b", "llama2-7b", "mistral-7b",
    "phi-1.5", "smollm3-3b", "command-r-35b", "starcoder2-3b", "glm-4-9b", "glm-4-9b-0414",
    "ernie-4.5-0.3b", "t5gemma-2b-2b", "t5-small", "bart-large", "bigbird-roberta-base",
    "blenderbot-3b", "xglm-564m", "vit-mae-base", "clip-vit-base-patch32-text",
    "clip-vit-base-patch32-vision", "siglip-base-patch16-224-text",
    "siglip-base-patch16-224-vision", "siglip2-base-patch16-naflex-vision",
)  # fmt: skip


def ours_alone(system):
    """How many parameters our model has more than that of transformers."""
    name, config = system.name, system.config
    if name.startswith(("bart", "blenderbot")):
        # A bias of the logits, which is a buffer there and not a parameter.
        return config.vocab_size
    if name.startswith(("t5-v1.1", "mt5", "byt5", "long-t5")):
        # Their fifth version ties the output table, which is separate in the authors' models.
        return config.model_dim * config.vocab_size
    if name == "deepseek-v3":
        # What biased routers learn by counting is a buffer.
        experts = config.feed_forward
        return (config.num_layers - experts.dense_layers) * experts.num
    if name == "roformer-base-zh":
        # The angles are a table there.
        return -config.position.max_length * config.head_width
    return 0


@pytest.mark.torch
@pytest.mark.parametrize("name", sorted(WITH_A_CLASS))
@pytest.mark.quick(*ONE_OF_EACH.values())
def test_the_parameters_are_as_many_as_in_transformers(name):
    import torch
    import transformers

    system, own = SYSTEMS[name], name.partition("-")[0]
    # Of several that can express it, DistilBERT's and not BERT's.
    formats = sorted(FORMATS.values(), key=lambda each: each.model_type != own)
    checkpoint = describe(system.config, formats)
    model_class = getattr(transformers, checkpoint.architecture.name)
    values = dict(checkpoint.hf_config.values)
    del values["architectures"]
    labels = [head.num_labels for head in system.config.heads if head.named_labels]
    if labels:
        values["num_labels"] = labels[0]
    for given in [values, {}] if name in USUAL else [values]:
        with torch.device("meta"):
            model = model_class(model_class.config_class(**given))
        theirs = sum(parameter.numel() for parameter in model.parameters())
        assert parameters_of(name) - theirs == ours_alone(system)


# The command ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_prints_a_row_for_each_system(capsys):
    assert cli.main(["zoo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in SYSTEMS:
        assert sum(name in line.split() for line in lines) == 1, name
    (row,) = [line for line in lines if "llama3-8b" in line.split()]
    for text in ("decoder", "RoPE", "PreNorm, RMSNorm", "8B", "8,030,261,248"):
        assert text in row
