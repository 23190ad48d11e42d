"""Tensors under old names, or beside those of the model: the same parameters are read."""

import re

import numpy as np
import pytest
from saved_folders import assert_same_parameters, change_tensors, save_tiny

from jaxformer.pretrained.auto import load


def renamed(names):
    """Replaces parts of the names of tensors, which are regular expressions."""

    def change(tensors):
        for name in list(tensors):
            new = name
            for old, other in names.items():
                new = re.sub(old, other, new)
            tensors[new] = tensors.pop(name)

    return change


def added(arrays):
    return lambda tensors: tensors.update(arrays)


def copied(names):
    """Adds copies: the name of each, and that of its original."""
    return lambda tensors: tensors.update({new: tensors[old] for new, old in names.items()})


OLD_NORMS = renamed({r"LayerNorm\.weight": "LayerNorm.gamma", r"LayerNorm\.bias": "LayerNorm.beta"})
PLACES = np.arange(24)[None]
MASK = np.tril(np.ones((1, 1, 20, 20), np.float32))
EXTRA = np.ones((48, 96), np.float32)
CASES = {
    "old names of norms": ("bert", {}, [OLD_NORMS]),
    "no prefix": ("bert", {}, [renamed({r"^bert\.": ""})]),
    "of a part": (
        "encoder-decoder",
        {},
        [OLD_NORMS, added({"encoder.embeddings.position_ids": PLACES})],
    ),
    "masks of GPT-2, no prefix and a copy of the table": (
        "gpt2",
        {},
        [
            renamed({r"^transformer\.": ""}),
            added({f"h.{layer}.attn.bias": MASK for layer in range(3)}),
            added({f"h.{layer}.attn.masked_bias": np.array(-1e4, "f4") for layer in range(3)}),
            copied({"lm_head.weight": "wte.weight"}),
        ],
    ),
    "frequencies of Llama": (
        "llama",
        {},
        [added({"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(6, np.float32)})],
    ),
    "copies of the table of T5": (
        "t5",
        {},
        [copied(dict.fromkeys(("lm_head.weight", "encoder.embed_tokens.weight"), "shared.weight"))],
    ),
    "positions of ESM that nothing reads": (
        "esm",
        {},
        [
            added({"esm.embeddings.position_embeddings.weight": EXTRA}),
            added({"esm.embeddings.position_ids": PLACES}),
        ],
    ),
    "positions of DeBERTa that nothing reads": (
        "deberta",
        {"position_biased_input": False},
        [added({"deberta.embeddings.position_embeddings.weight": EXTRA})],
    ),
    "the layer of DeepSeek that predicts a second token": (
        "deepseek_v3",
        {},
        [added({"model.layers.61.eh_proj.weight": EXTRA})],
    ),
    "the prefix of CLIP's texts, and places": (
        "clip_text_model",
        {"head": "Model"},
        [renamed({"^": "text_model."}), added({"text_model.embeddings.position_ids": PLACES})],
    ),
    "the prefix of CLIP's images, and places": (
        "clip_vision_model",
        {"head": "Model"},
        [renamed({"^": "vision_model."}), added({"vision_model.embeddings.position_ids": PLACES})],
    ),
}


@pytest.mark.parametrize(
    ("kind", "options", "spoil"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.torch] * bool(case[1]))
        for name, case in CASES.items()
    ],
)
def test_the_same_model_is_read(kind, options, spoil, tmp_path):
    folder = save_tiny(kind, tmp_path, **options)
    expected = load(folder)
    for change in spoil:
        change_tensors(folder, change)
    found = load(folder)
    assert found.config == expected.config
    assert_same_parameters(found, expected)
