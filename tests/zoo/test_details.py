"""The sizes, parameters by part and FLOPs of published systems."""

import pytest
from tiny_models import tiny, tiny_encoder, tiny_encoder_decoder, tiny_vision

from jaxformer.cli import main as cli
from jaxformer.cli.hub.zoo import _short
from jaxformer.models import AbstractModel
from jaxformer.zoo import SYSTEMS
from jaxformer.zoo.details import OTHER, model_details, parameters_by_part

# One of each family, and those whose parameters have unusual names.
NAMES = (
    "llama3-8b",
    "t5-base",
    "bart-base",
    "albert-base",
    "bert-base",
    "vit-22b",
    "gpt2-small",
    "siglip-base-patch16-224-vision",
    "clip-vit-base-patch32-vision",
    "ernie-3.0-base-zh",
)


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_are_the_whole(name):
    parts = parameters_by_part(SYSTEMS[name].config)
    assert sum(parts.values()) == SYSTEMS[name].count_parameters()
    assert OTHER not in parts


@pytest.mark.parametrize("make", [tiny, tiny_encoder, tiny_encoder_decoder, tiny_vision])
def test_the_parts_of_every_family_are_named(make):
    config = make()
    found = model_details(config, {"inputs": 7, "decoder_inputs": 5})
    shapes = AbstractModel(config.build).shapes.values()
    assert found.num_parameters == sum(shape.size for shape in shapes)
    assert OTHER not in found.parameters
    assert (found.vocab_size is None) == (make is tiny_vision)


def test_attention_follows_from_the_sizes():
    """D = n, heads, d_k: the counts of a textbook, with N/K = 4."""
    layers, width, heads, kv_heads, head, inner, vocabulary = 32, 4096, 32, 8, 128, 14336, 128256
    found = model_details(SYSTEMS["llama3-8b"].config, {"inputs": 8192})
    assert found.parameters == {
        "embedding": vocabulary * width,
        "W^Q": layers * width * heads * head,
        "W^K": layers * width * kv_heads * head,
        "W^V": layers * width * kv_heads * head,
        "W^O": layers * heads * head * width,
        "mlp": layers * 3 * width * inner,
        "norms": (2 * layers + 1) * width,
        "head": vocabulary * width,
    }
    products = found.num_parameters - found.parameters["embedding"] - found.parameters["norms"]
    assert found.flops.products == 2 * products
    assert found.forward_flops == 2 * products + 4 * layers * heads * head * (8192 + 1) / 2


def test_a_layer_that_repeats_is_counted_once():
    parts = parameters_by_part(SYSTEMS["albert-base"].config)
    assert parts["W^Q"] == 768 * 768 + 768


def printed(capsys, *arguments):
    status = cli.main(["zoo", *arguments])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_one_system_in_full(capsys):
    status, text = printed(capsys, "llama3-8b", "--details")
    assert status == 0
    for words in ("536,870,912", "8,030,261,248", "1.716e+10", "peak learning rate", "128,256"):
        assert words in text
    rows = [line.split()[-1] for line in text.splitlines()]
    assert "SwiGLU" in rows  # its paper: section 3 and table 3
    assert "500,000" in rows


def test_several_systems_in_a_table(capsys):
    status, text = printed(capsys, "vit", "--details")
    assert status == 0
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("vit-")}
    assert rows["vit-base-16"][1:9] == ["12", "768", "12", "12", "64", "3,072", "197", "86.6M"]
    assert len(rows) == 5
    assert rows["vit-base-16"][-1] == "gelu"
    status, text = printed(capsys, "llama3.2")
    assert [line.split()[0] for line in text.splitlines()[1:3]] == ["llama3.2-1b", "llama3.2-3b"]


def test_a_name_that_is_not_there(capsys):
    status, text = printed(capsys, "lama-7b", "--details")
    assert status == 2
    assert "'lama-7b' is not a published system" in text
    assert "'llama-7b'" in text


def test_short_counts():
    counts = (7, 999, 999_499, 999_500, 8_030_261_248, 405_853_388_800)
    assert [_short(count) for count in counts] == ["7", "999", "999k", "1M", "8.03B", "406B"]


def test_a_decoder_without_a_recipe_has_rows_of_its_positions(capsys):
    status, text = printed(capsys, "whisper-large-v3-turbo", "--details")
    assert status == 0
    assert "1500+448" in text
    assert "808,878,080" in text
