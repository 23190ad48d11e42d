"""Parameters to and from tensors: names, stacked layers, old spellings, mixed dtypes."""

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from saved_folders import assert_same_parameters, change_tensors, copy_of, rename_tensors, save_tiny

import jaxformer
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.weights.tensors import SINGLE
from jaxformer.hub.weights.weight_file import described, tensors_of
from jaxformer.hub.weights.weight_map import Fused, WeightMap, attention, block
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.reader import open_folder
from jaxformer.pretrained.writing import save

OLD_NORMS = {r"LayerNorm\.weight": "LayerNorm.gamma", r"LayerNorm\.bias": "LayerNorm.beta"}
IDS = np.arange(1, 7).reshape(2, 3)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny("bert", tmp_path_factory.mktemp("models") / "bert")


@pytest.mark.torch
@pytest.mark.parametrize("head", ["ForMaskedLM", "ForSequenceClassification", "Model"])
@pytest.mark.quick("Model")
def test_the_heads_of_pre_training_are_left_out(head, tmp_path, caplog):
    """As in the files of bert-base-uncased: LayerNorm.gamma, position_ids, and all heads."""
    theirs = save_tiny("bert", tmp_path / "own", head)
    before = jaxformer.forward(load(theirs), {"input_ids": IDS})
    whole = save_tiny("bert", tmp_path / "whole", "ForPreTraining")
    folder = copy_of(theirs, tmp_path / "published")
    own = {name.removeprefix("bert.") for name in load_file(folder / SINGLE)}
    others = {
        name: array
        for name, array in load_file(whole / SINGLE).items()
        if name.removeprefix("bert.") not in own
    }
    change_tensors(folder, lambda tensors: tensors.update(others))
    rename_tensors(folder, OLD_NORMS)
    after = jaxformer.forward(load(folder), {"input_ids": IDS})
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)
    (record,) = caplog.records
    assert "left out, because the model has no such part" in record.message
    assert "cls.seq_relationship.bias, cls.seq_relationship.weight" in record.message
    assert ("bert.pooler.dense.bias" in record.message) == (head == "ForMaskedLM")


def test_many_problems_are_counted(bert, tmp_path):
    folder = copy_of(bert, tmp_path / "empty")
    change_tensors(folder, lambda tensors: [tensors.pop(name) for name in list(tensors)[1:]])
    with pytest.raises(DataError, match=r"is missing; .* \.\.\. \(\d\d in all\)"):
        load(folder)


def test_each_parameter_keeps_its_dtype(bert, tmp_path):
    folder = copy_of(bert, tmp_path / "mixed")

    def change(tensors):
        for name in tensors:
            kept = "LayerNorm" in name
            tensors[name] = tensors[name].astype(np.float32 if kept else jnp.bfloat16)

    change_tensors(folder, change)
    model = load(folder, dtype=None)
    assert {str(array.dtype) for array in model.parameters.values()} == {"bfloat16", "float32"}
    save(model, tmp_path / "out")
    before, after = (load_file(x / "model.safetensors") for x in (folder, tmp_path / "out"))
    assert {name: x.tobytes() for name, x in after.items()} == {
        name: x.tobytes() for name, x in before.items()
    }
    assert np.isfinite(jaxformer.forward(model, {"input_ids": [[1, 2]]})["last_hidden_state"]).all()


def test_one_parameter_is_read_alone(bert):
    opened, model = open_folder(bert), load(bert)
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(opened.read(name), array)
        np.testing.assert_array_equal(opened.file.read(name, array.shape), array)


def test_what_is_described_is_what_comes(bert):
    model = load(bert)
    kinds = described(model.parameters, model.placements, "float16")
    tensors = dict(tensors_of(model.parameters, model.placements))
    assert list(kinds) == list(tensors)
    for name, (shape, dtype) in kinds.items():
        assert (shape, dtype) == (tensors[name].shape, np.float16)


def test_tables(bert):
    abstract_model = load(bert).abstract_model
    with pytest.raises(ConfigError, match="the parameter "):
        WeightMap({}).placements(abstract_model)
    assert block("encoder", "h.{}", {"norms.0": "ln"}) == {
        "encoder.stack.group.*.norms.0": "h.{}.ln"
    }
    assert attention(1, "q", "k", "v", "o")["sublayers.1.attention.output"] == "o"
    fused = Fused(("a", "b"), "ab", None)
    names, tensor, _ = WeightMap({}, (fused,))._find("b.bias")
    assert (names, tensor) == (["a.bias", "b.bias"], "ab.bias")


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
