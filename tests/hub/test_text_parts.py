"""The text models of multimodal files: in every layout of the hub, equal to the whole on texts."""

import json
import logging
from functools import cache

import numpy as np
import pytest
from saved_folders import change_tensors

import jaxformer
from jaxformer.errors import ConfigError
from jaxformer.hub.checkpoint import warn_once
from jaxformer.parity.compare import beyond_rounding, errors, gradient_errors
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference
from jaxformer.parity.tiny import TINY
from jaxformer.parity.tiny_images import TEXT as TINY_TEXT
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward, gradients
from jaxformer.pretrained.writing import save
from jaxformer.zoo.folders import read_folder
from jaxformer.zoo.text_parts import TEXT_PARTS

pytestmark = pytest.mark.torch

TEXT = TINY_TEXT | {"num_key_value_heads": 2, "max_position_embeddings": 40}
TEXT |= {"bos_token_id": 3, "eos_token_id": 4, "pad_token_id": 5}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 2}
VISION |= {"out_hidden_size": 48}
WHOLE = {
    "gemma3": {
        # The whole does not cap its logits.
        "text_config": TINY["gemma3_text"] | {"final_logit_softcapping": None},
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 8,
            "patch_size": 4,
        },
        "mm_tokens_per_image": 4,
    },
    "qwen2_vl": {
        "text_config": TEXT
        | {
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
            "rope_parameters": {"rope_type": "mrope", "mrope_section": [2, 1, 1]},
        },
        "vision_config": {
            "depth": 1,
            "embed_dim": 16,
            "hidden_size": 48,
            "num_heads": 2,
            "patch_size": 2,
        },
        "image_token_id": 120,
        "video_token_id": 121,
    },
    "qwen2_5_vl": {
        "text_config": TEXT
        | {"rope_parameters": {"rope_type": "mrope", "mrope_section": [1, 1, 2]}},
        "vision_config": VISION | {"fullatt_block_indexes": [0]},
        "image_token_id": 120,
        "video_token_id": 121,
    },
    "qwen3_vl": {
        "text_config": TEXT
        | {
            "head_dim": 12,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 8,
                "mrope_section": [2, 2, 2],
                "mrope_interleaved": True,
            },
        },
        "vision_config": VISION | {"deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        "tie_word_embeddings": True,
        "image_token_id": 120,
        "video_token_id": 121,
    },
}
CLASSES = {kind: next(iter(TEXT_PARTS[kind].classes)) for kind in WHOLE}
# How the body of the text model and its head begin in files of the hub.
LAYOUTS = [
    ("model.language_model.", "lm_head."),
    ("language_model.model.", "language_model.lm_head."),
    ("model.", "lm_head."),
]


def save_whole(kind, folder, architecture=None, **changes):
    """A small random model of texts and images, as transformers saves it."""
    return save_random(kind, architecture or CLASSES[kind], WHOLE[kind] | changes, folder)


def save_random(kind, architecture, values, folder):
    """A small random model of a class, as transformers saves it."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(kind, **json.loads(json.dumps(values)))
    model = getattr(transformers, architecture)._from_config(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, x in model.named_parameters():
            scale = x.ndim == 1 and name.endswith("weight")
            spread = x[0].numel() ** -0.5 if x.ndim > 1 else 0.3
            x.copy_(spread * torch.randn(x.shape, generator=generator) + (x if scale else 0))
    model.save_pretrained(folder)
    return folder


def compared(folder, architecture, padding="left"):
    """Our text model, whose outputs and gradients are those of the whole in transformers."""
    ours, theirs = load(folder), Reference(folder, architecture)
    inputs = example_inputs(ours.checkpoint, padding, length=13)
    inputs["input_ids"] = np.minimum(inputs["input_ids"], 110)  # no image's token
    expected, exact = theirs.outputs(inputs), theirs.exact.outputs(inputs)
    assert {"hidden_states"} <= set(expected)
    actual = forward(ours, inputs, output_hidden_states=True)
    assert not beyond_rounding(errors(actual, expected, exact, inputs))
    if "loss" in expected:
        wanted, exact = (
            {bare(name): x for name, x in each.gradients(inputs).items()}
            for each in (theirs, theirs.exact)
        )
        assert not beyond_rounding(gradient_errors(gradients(ours, inputs), wanted, exact))
    return ours


def bare(name):
    """The name of a tensor of the text model in a file of the text alone."""
    for body, head in LAYOUTS[:2]:
        if name.startswith((body, head)):
            return name.replace(head, "lm_head.").replace(body, "model.")
    return name


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.quick("qwen2_5_vl-left")
def test_texts_are_read_as_by_the_whole(kind, padding, tmp_path):
    compared(save_whole(kind, tmp_path), CLASSES[kind], padding)


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.more
@pytest.mark.quick("qwen2_5_vl")
def test_the_other_way_of_tying(kind, tmp_path):
    tied = not load(save_whole(kind, tmp_path / "one")).config.tie_embeddings
    folder = save_whole(kind, tmp_path / "other", tie_word_embeddings=tied)
    assert compared(folder, CLASSES[kind]).config.tie_embeddings == tied


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.quick("gemma3")
def test_the_class_without_a_head(kind, tmp_path):
    name = list(TEXT_PARTS[kind].classes)[-1]
    ours = compared(save_whole(kind, tmp_path, name), name)
    assert ours.config.heads == ()


@pytest.mark.parametrize(("body", "head"), LAYOUTS, ids=[body for body, _ in LAYOUTS])
@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.quick("gemma3-*")
def test_every_layout_of_the_hub(kind, body, head, tmp_path):
    expected = load(save_whole(kind, tmp_path / "whole")).parameters
    folder = save_whole(kind, tmp_path / "other")

    def rename(tensors):
        for name in list(tensors):
            plain = bare(name)
            if plain.startswith(("model.layers", "model.embed", "model.norm", "lm_head")):
                renamed = plain.replace("lm_head.", head)
                if not plain.startswith("lm_head"):
                    renamed = body + plain.removeprefix("model.")
                tensors[renamed] = tensors.pop(name)

    change_tensors(folder, rename)
    found = load(folder).parameters
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.quick("gemma3")
def test_what_is_written_is_the_text_model_and_transformers_computes_the_same(kind, tmp_path):
    folder = save_whole(kind, tmp_path / "whole")
    ours = load(folder, dtype=None)
    save(ours, tmp_path / "text")
    values = json.loads((tmp_path / "text" / "config.json").read_text())
    assert values["model_type"] == TEXT_PARTS[kind].model_type
    assert "vision_config" not in values
    text = Reference(tmp_path / "text", values["architectures"][0])
    inputs = example_inputs(ours.checkpoint, "left")
    inputs["input_ids"] = np.minimum(inputs["input_ids"], 110)
    whole = Reference(folder, CLASSES[kind]).outputs(inputs)["logits"]
    real = inputs["attention_mask"] > 0
    np.testing.assert_allclose(
        text.outputs(inputs)["logits"][real], whole[real], rtol=2e-5, atol=2e-5
    )
    again = load(tmp_path / "text")
    assert again.config == load(folder).config


@pytest.mark.parametrize("kind", [kind for kind, part in TEXT_PARTS.items() if part.alone])
@pytest.mark.quick("qwen3_vl")
def test_a_file_of_the_text_model_alone(kind, tmp_path):
    (name,) = TEXT_PARTS[kind].alone
    section = WHOLE[kind]["text_config"]
    folder = save_random(TEXT_PARTS[kind].section_type, name, section, tmp_path)
    assert json.loads((folder / "config.json").read_text())["model_type"].endswith("_text")
    ours = compared(folder, name)
    assert ours.checkpoint.model_format.model_type == TEXT_PARTS[kind].model_type
    assert ours.config.heads == ()


def test_one_line_says_that_images_are_not_read(tmp_path, caplog):
    folder = save_whole("gemma3", tmp_path)
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        load(folder)
    (message,) = [record.message for record in caplog.records]
    assert "images are not read" in message
    assert "\n" not in message


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.quick("qwen2_5_vl")
def test_fields_beside_those_of_the_whole_in_old_files(kind, tmp_path):
    folder = save_whole(kind, tmp_path)
    expected = read_folder(folder).config
    path = folder / "config.json"
    values = json.loads(path.read_text())
    flat = values | values.pop("text_config") | {"model_type": kind}
    rope = flat.pop("rope_parameters")
    flat |= {"rope_theta": rope["rope_theta"]}
    flat |= {"rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]}}
    path.write_text(json.dumps(flat))
    assert read_folder(folder).config == expected
    compared(folder, CLASSES[kind])


@cache
def published(kind):
    """What the class in transformers makes of a file that says nothing but sizes."""
    import transformers

    return transformers.AutoConfig.for_model(kind).to_dict()


@pytest.mark.parametrize("kind", WHOLE)
def test_what_a_file_leaves_out_has_the_value_of_transformers(kind, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(published(kind)))
    every = read_folder(tmp_path).config
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "text_config": {}}))
    assert read_folder(tmp_path).config == every


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["Gemma3ForImages"]},
            "architectures = .*Gemma3ForConditionalGeneration",
        ),
        ({"text_config": {"model_type": "llama"}}, "model_type = 'llama': must be 'gemma3_text'"),
        ({"text_config": 3}, "text_config = 3: must be an object"),
    ],
)
def test_what_cannot_be_read_is_said(changes, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3"} | changes))
    with pytest.raises(ConfigError, match=message):
        read_folder(tmp_path)


@pytest.mark.more
def test_generation_is_that_of_the_whole(tmp_path):
    import torch
    import transformers

    folder = save_whole("qwen3_vl", tmp_path)
    ids = np.random.default_rng(0).integers(6, 110, (2, 9))
    mask = np.ones_like(ids)
    mask[0, :4] = 0
    whole = getattr(transformers, CLASSES["qwen3_vl"]).from_pretrained(folder).eval()
    theirs = whole.generate(
        input_ids=torch.tensor(ids),
        attention_mask=torch.tensor(mask),
        max_new_tokens=8,
        do_sample=False,
    ).numpy()
    inputs = {"input_ids": ids, "attention_mask": mask}
    ours = jaxformer.generate(load(folder), inputs, max_new_tokens=8, do_sample=False)
    np.testing.assert_array_equal(ours["sequences"], theirs)
