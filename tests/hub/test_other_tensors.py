"""Tensors under old names, or beside those of the model: the same parameters are read."""

import numpy as np
import pytest
from saved_folders import assert_same_parameters, change_tensors, rename_tensors, save_tiny

from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save

OLD_NORMS = {r"LayerNorm\.weight": "LayerNorm.gamma", r"LayerNorm\.bias": "LayerNorm.beta"}
OLD_WEIGHT_NORMS = {
    r"\.parametrizations\.weight\.original0": ".weight_g",
    r"\.parametrizations\.weight\.original1": ".weight_v",
}
RENAMED = {
    "norms": ("bert", {}, OLD_NORMS),
    "norms of a part": ("encoder-decoder", {}, OLD_NORMS),
    "no prefix": ("bert", {}, {r"^bert\.": ""}),
    "weight norms of wav2vec 2.0": ("wav2vec2", {}, OLD_WEIGHT_NORMS),
    "weight norms of HuBERT": ("hubert", {}, OLD_WEIGHT_NORMS),
    "the prefix of a tower": (
        "vision-text-dual-encoder",
        {
            f"{side}_config": TINY[kind] | {"model_type": kind}
            for side, kind in (("text", "bert"), ("vision", "clip_vision_model"))
        },
        {r"^vision_model\.": "vision_model.vision_model."},
    ),
    "the prefix of CLIP's texts": ("clip_text_model", {"head": "Model"}, {"^": "text_model."}),
    "the prefix of CLIP's images": (
        "clip_vision_model",
        {"head": "Model"},
        {"^": "vision_model."},
    ),
}
PLACES = np.arange(24)[None]
MASK = np.tril(np.ones((1, 1, 20, 20), np.float32))
EXTRA = np.ones((48, 96), np.float32)
ADDED = {
    "masks of GPT-2": (
        "gpt2",
        {},
        {f"transformer.h.{layer}.attn.bias": MASK for layer in range(3)}
        | {f"transformer.h.{layer}.attn.masked_bias": np.array(-1e4, "f4") for layer in range(3)},
    ),
    "frequencies of Llama": (
        "llama",
        {},
        {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(6, np.float32)},
    ),
    "positions of ESM": (
        "esm",
        {},
        {"esm.embeddings.position_embeddings.weight": EXTRA}
        | {"esm.embeddings.position_ids": PLACES},
    ),
    "positions of DeBERTa": (
        "deberta",
        {"position_biased_input": False},
        {"deberta.embeddings.position_embeddings.weight": EXTRA},
    ),
    "the layer of DeepSeek that predicts a second token": (
        "deepseek_v3",
        {},
        {"model.layers.61.eh_proj.weight": EXTRA},
    ),
    "places of CLIP": ("clip_text_model", {}, {"text_model.embeddings.position_ids": PLACES}),
    "places of a part": ("encoder-decoder", {}, {"encoder.embeddings.position_ids": PLACES}),
    "places of a tower": (
        "vision-text-dual-encoder",
        {},
        {"text_model.embeddings.position_ids": PLACES},
    ),
}


def each_of(cases):
    """Those with another class or field need PyTorch."""
    params = [
        pytest.param(*case, id=name, marks=[pytest.mark.torch] * bool(case[1]))
        for name, case in cases.items()
    ]
    return pytest.mark.parametrize(("kind", "options", "change"), params)


def assert_same(found, expected):
    assert found.config == expected.config
    assert_same_parameters(found, expected)


@each_of(RENAMED)
def test_old_names_are_read_and_written_again(kind, options, change, tmp_path):
    folder = save_tiny(kind, tmp_path / "old", **options)
    expected = load(folder)
    rename_tensors(folder, change)
    assert_same(load(folder), expected)
    save(load(folder, dtype=None), tmp_path / "again")
    before, after = (tmp_path / name / "model.safetensors" for name in ("old", "again"))
    assert before.read_bytes() == after.read_bytes()


@each_of(ADDED)
def test_what_nothing_reads_may_be_there(kind, options, change, tmp_path):
    folder = save_tiny(kind, tmp_path, **options)
    expected = load(folder)
    change_tensors(folder, lambda tensors: tensors.update(change))
    assert_same(load(folder), expected)


@pytest.mark.parametrize(
    ("kind", "table", "copies"),
    [
        ("t5", "shared.weight", ["lm_head.weight", "encoder.embed_tokens.weight"]),
        ("gpt2", "transformer.wte.weight", ["lm_head.weight"]),
    ],
)
def test_copies_of_the_table_are_no_tables(kind, table, copies, tmp_path):
    folder = save_tiny(kind, tmp_path)
    expected = load(folder)
    change_tensors(folder, lambda tensors: tensors.update(dict.fromkeys(copies, tensors[table])))
    assert_same(load(folder), expected)
