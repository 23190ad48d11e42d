"""Vectors of texts and scores of pairs, beside sentence-transformers and PyTorch."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from sentence_models import (
    LONGEST,
    TEXTS,
    WIDTH,
    add_modules,
    add_tensors,
    save_tokenizer,
    save_transformer,
    save_whole,
)

import jaxformer
from jaxformer.distributed.sharding import MeshConfig, make_mesh
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.hub.remote.selection import settings_files
from jaxformer.io.model_files import side_files
from jaxformer.pretrained.embedding.api import (
    embed,
    open_model,
    reads_pairs,
    score_pairs,
    text_embedder,
)
from jaxformer.pretrained.embedding.modules import (
    activation_of,
    pooled,
    read_dense,
    read_layer_norm,
    unit,
)
from jaxformer.pretrained.embedding.recipe import read_recipe
from jaxformer.pretrained.import_run import import_folder

pytestmark = pytest.mark.torch

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
PAIRS = [("a cat", "the dog sat"), ("The Cat runs", "a blue sky , fast on a mat : cat"), ("", "a")]
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_transformer(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return save_whole(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorer")
    return save_transformer(folder, "BertForSequenceClassification", num_labels=1)


def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def change(file, **values):
    """Changes fields of a JSON file, which need not exist."""
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | values))


def their_states(folder, texts, most=LONGEST):
    """The states of each text by itself, as transformers computes them: no padding."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    found = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=most)
        with torch.no_grad():
            found.append(model(**inputs).last_hidden_state[0].numpy())
    return found


def one(states, mode):
    """The vector of the states [T, D] of one text, as the formula says."""
    count = len(states)
    weights = np.arange(1, count + 1)[:, None]
    return {
        "cls": states[0],
        "max": states.max(0),
        "mean": states.mean(0),
        "mean_sqrt_len_tokens": states.sum(0) / np.sqrt(count),
        "weightedmean": (weights * states).sum(0) / weights.sum(),
        "lasttoken": states[-1],
    }[mode]


# Pooling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("left", [False, True])
def test_padding_on_either_side_changes_no_vector(mode, left):
    rng = np.random.default_rng(0)
    states = [rng.normal(size=(count, 5)).astype(np.float32) for count in (7, 1, 4)]
    hidden, valid = np.full((3, 7, 5), 9.0, np.float32), np.zeros((3, 7), bool)
    for row, own in enumerate(states):
        place = slice(7 - len(own), 7) if left else slice(len(own))
        hidden[row, place], valid[row, place] = own, True
    found = pooled(jnp.asarray(hidden), jnp.asarray(valid), jnp.asarray(valid), mode)
    np.testing.assert_allclose(found, [one(own, mode) for own in states], rtol=2e-6, atol=2e-6)


def test_a_token_keeps_its_weight_where_a_prompt_does_not_count():
    hidden = jnp.arange(8, dtype=jnp.float32).reshape(1, 4, 2)
    valid, counted = jnp.array([[True] * 4]), jnp.array([[False, False, True, True]])
    found = pooled(hidden, valid, counted, "weightedmean")
    np.testing.assert_allclose(found, (3 * hidden[:, 2] + 4 * hidden[:, 3]) / 7, rtol=1e-6)
    np.testing.assert_array_equal(pooled(hidden, valid, counted, "cls"), hidden[:, 2])


# Vectors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prompt_name": "query"},
        {"prompt": "a dog : "},
        {"prompt_name": "document"},
        {"truncate_dim": 4},
        {"truncate_dim": 4, "normalize": True},
        {"batch_size": 2},
    ],
    ids=str,
)
def test_vectors_are_those_of_sentence_transformers(options, whole):
    library = pytest.importorskip("sentence_transformers")
    theirs = {
        {"normalize": "normalize_embeddings"}.get(name, name): x for name, x in options.items()
    }
    expected = library.SentenceTransformer(str(whole), device="cpu").encode(list(TEXTS), **theirs)
    found = embed(whole, TEXTS, **options)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, **TOLERANCE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("counts", [True, False], ids=["with prompt", "without prompt"])
@pytest.mark.quick("with prompt-mean", "with prompt-cls", "with prompt-lasttoken")
def test_every_pooling_is_that_of_sentence_transformers(mode, counts, bert, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    pooling = {"embedding_dimension": WIDTH, "pooling_mode": mode, "include_prompt": counts}
    folder = add_modules(copied(bert, tmp_path), {"Pooling": pooling})
    model = library.SentenceTransformer(str(folder), device="cpu")
    expected = model.encode(list(TEXTS), prompt="query : ")
    np.testing.assert_allclose(embed(folder, TEXTS, prompt="query : "), expected, **TOLERANCE)


_PADDED = {"pad_token_id": 1, "intermediate_size": 40}
SYSTEMS = {
    "mpnet": ("MPNetConfig", "MPNetModel", _PADDED),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaModel", _PADDED),
    "t5": ("T5Config", "T5EncoderModel", {"d_model": WIDTH, "d_kv": 6, "d_ff": 40, "num_heads": 4}),
    "qwen3": ("Qwen3Config", "Qwen3Model", {"num_key_value_heads": 2, "head_dim": 6}),
}


@pytest.mark.parametrize("kind", SYSTEMS)
@pytest.mark.parametrize("mode", ["mean", "lasttoken"])
@pytest.mark.more
@pytest.mark.quick("lasttoken-t5")
def test_other_systems_are_those_of_sentence_transformers(kind, mode, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    import torch
    import transformers

    config, model, fields = SYSTEMS[kind]
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes = {"num_layers": 2} if kind == "t5" else sizes | {"max_position_embeddings": 40}
    torch.manual_seed(1)
    built = getattr(transformers, config)(vocab_size=32, **sizes | fields)
    getattr(transformers, model)(built).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    pooling = {"embedding_dimension": WIDTH, "pooling_mode": mode}
    add_modules(tmp_path, {"Pooling": pooling, "Normalize": {}})
    expected = library.SentenceTransformer(str(tmp_path), device="cpu").encode(list(TEXTS))
    np.testing.assert_allclose(embed(tmp_path, TEXTS), expected, **TOLERANCE)


def test_a_text_has_its_vector_whatever_is_beside_it(whole):
    model = jaxformer.load(whole)
    together = embed(model, TEXTS)
    alone = [embed(model, text) for text in TEXTS]
    assert alone[0].shape == (10,)
    np.testing.assert_allclose(together, alone, rtol=1e-6, atol=1e-6)
    assert text_embedder(model) is text_embedder(model)


@pytest.mark.more
def test_vectors_on_a_mesh_and_in_bfloat16_are_the_same_within_rounding(whole):
    expected = embed(whole, TEXTS)
    cut = jaxformer.load(whole, mesh=make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)))
    np.testing.assert_allclose(embed(cut, TEXTS), expected, rtol=1e-5, atol=1e-6)
    rounded = embed(jaxformer.load(whole, dtype="bfloat16"), TEXTS)
    assert rounded.dtype == np.float32
    np.testing.assert_allclose(rounded, expected, atol=0.1)


def test_an_old_folder_has_its_model_within(bert, whole, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(bert, old / "0_Transformer")
    modules = {"Pooling": {"pooling_mode_max_tokens": True}, "Normalize": {}}
    add_modules(old, modules, "0_Transformer")
    change(old / "0_Transformer" / "sentence_roberta_config.json", max_seq_length=5)
    expected = np.array([one(states, "max") for states in their_states(bert, TEXTS, 5)])
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    np.testing.assert_allclose(embed(old, TEXTS), expected, **TOLERANCE)
    found = embed(jaxformer.load(old / "0_Transformer"), TEXTS)
    np.testing.assert_allclose(found, expected, **TOLERANCE)


def test_a_model_without_modules_has_the_usual_pooling(bert, caplog):
    expected = [states.mean(0) for states in their_states(bert, TEXTS)]
    np.testing.assert_allclose(embed(bert, TEXTS), expected, **TOLERANCE)
    assert "modules.json" in caplog.text


@pytest.mark.more
def test_exports_and_runs_keep_what_makes_vectors(whole, tmp_path):
    expected = embed(whole, TEXTS)
    jaxformer.save(jaxformer.load(whole), tmp_path / "export")
    import_folder(whole, tmp_path / "run")
    for folder in (tmp_path / "export", tmp_path / "run"):
        np.testing.assert_array_equal(embed(folder, TEXTS), expected)
    names = [file.relative_to(whole).as_posix() for file in side_files(whole)]
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"} <= set(names)
    assert set(settings_files([*names, "config.json", "2_Dense/pytorch_model.bin"])) == {
        *names,
        "config.json",
    }


# Modules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("square", [True, False])
def test_a_dense_layer_is_that_of_pytorch(square, tmp_path):
    import torch

    width = 6 if square else 4
    shapes = {"linear_weight": (width, 6)} | ({} if square else {"residual_weight": (width, 6)})
    tensors = add_tensors(tmp_path, **shapes)
    sizes = {"in_features": 6, "out_features": width, "bias": False, "use_residual": True}
    change(tmp_path / "config.json", activation_function="torch.nn.GELU", **sizes)
    x = np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)
    out = torch.nn.functional.gelu(torch.tensor(x @ tensors["linear.weight"].T)).numpy()
    residual = x if square else x @ tensors["residual.weight"].T
    np.testing.assert_allclose(read_dense(tmp_path)(x), out + residual, rtol=1e-5, atol=1e-6)


def test_a_layer_norm_is_that_of_pytorch(tmp_path):
    import torch

    tensors = add_tensors(tmp_path, norm_weight=(6,), norm_bias=(6,))
    change(tmp_path / "config.json", dimension=6)
    x = np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)
    theirs = torch.nn.functional.layer_norm(
        *(torch.tensor(x), (6,)), *map(torch.tensor, tensors.values())
    )
    np.testing.assert_allclose(read_layer_norm(tmp_path)(x), theirs, rtol=1e-5, atol=1e-6)
    assert np.all(np.isfinite(unit(np.zeros((2, 6), np.float32), True)))


@pytest.mark.parametrize(
    "name",
    ["ELU", "GELU", "Identity", "LeakyReLU", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid"],
)
def test_activations_are_those_of_pytorch(name):
    import torch

    x = np.linspace(-8, 8, 41, dtype=np.float32)
    theirs = getattr(torch.nn, name)()
    path = f"{type(theirs).__module__}.{name}"
    found = activation_of(path, "activation_fn")(jnp.asarray(x))
    np.testing.assert_allclose(found, theirs(torch.tensor(x)), rtol=1e-5, atol=1e-6)


# Pairs ------------------------------------------------------------------------------------------


def their_logits(folder, pairs=PAIRS):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    found = []
    for pair in pairs:
        inputs = tokenizer(*pair, return_tensors="pt", truncation="longest_first", max_length=16)
        with torch.no_grad():
            found.append(model(**inputs).logits[0].numpy())
    return np.array(found)


IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("config.json", {"sentence_transformers": {"activation_fn": IDENTITY, "version": "5.0"}}),
        ("config.json", {"sbert_ce_default_activation_function": IDENTITY}),
        ("config_sentence_transformers.json", {"activation_fn": IDENTITY}),
    ],
)
def test_the_files_name_the_activation(file, values, scorer, tmp_path):
    folder = copied(scorer, tmp_path)
    change(folder / file, **values)
    found = score_pairs(jaxformer.load(folder), PAIRS)
    np.testing.assert_allclose(found, their_logits(scorer)[:, 0], **TOLERANCE)


def test_several_labels_have_a_score_each(tmp_path):
    folder = save_transformer(tmp_path, "BertForSequenceClassification", num_labels=3)
    np.testing.assert_allclose(score_pairs(folder, PAIRS), their_logits(folder), **TOLERANCE)
    assert not reads_pairs(open_model(folder))
    change(folder / "config_sentence_transformers.json", model_type="CrossEncoder")
    assert reads_pairs(open_model(folder))


def test_scores_are_those_of_sentence_transformers(scorer, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    theirs = library.CrossEncoder(str(scorer), device="cpu")
    expected = theirs.predict(PAIRS)
    assert np.ptp(expected) > 1e-3
    np.testing.assert_allclose(score_pairs(scorer, PAIRS), expected, **TOLERANCE)
    assert reads_pairs(open_model(scorer))
    theirs.save(str(tmp_path / "saved"))
    np.testing.assert_allclose(score_pairs(tmp_path / "saved", PAIRS), expected, **TOLERANCE)


# What cannot be read ----------------------------------------------------------------------------


def test_what_changes_the_numbers_and_is_not_known_is_refused(bert, tmp_path):
    def refused(modules, error=ConfigError):
        folder = shutil.copytree(bert, tmp_path / str(len(list(tmp_path.iterdir()))))
        add_modules(folder, modules)
        with pytest.raises(error) as refusal:
            embed(folder, "a")
        assert str(folder) in str(refusal.value)
        assert "\n" not in str(refusal.value)

    refused({"CNN": {}})
    refused({"Pooling": {"pooling_mode": "attention"}})
    refused({"Pooling": {}, "WordWeights": {}})
    refused({"Pooling": {}, "Normalize": {"module_input_name": "token_embeddings"}})
    dense = {"in_features": WIDTH, "out_features": 4}
    refused({"Pooling": {}, "Dense": dense | {"activation_function": "own.Code"}})
    refused({"Pooling": {}, "Dense": dense}, DataError)


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"path": "../1_Pooling", "type": "sentence_transformers.models.Pooling"}, DataError),
        ({"path": "/etc", "type": "sentence_transformers.models.Pooling"}, DataError),
        ({"path": "1_Pooling", "type": "custom_st.Pooling"}, ConfigError),
        ({"path": 3}, DataError),
        ("Pooling", DataError),
    ],
)
def test_an_entry_that_leads_elsewhere_is_refused(entry, error, whole, tmp_path):
    folder = copied(whole, tmp_path)
    entries = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([entries[0], entry]))
    with pytest.raises(error):
        read_recipe(folder)


def test_a_pickled_layer_is_refused_with_the_remedy(whole, tmp_path):
    folder = copied(whole, tmp_path)
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="pickle"):
        embed(folder, "a")


def test_wrong_arguments_are_refused(whole, scorer):
    model = jaxformer.load(whole)
    for texts in ([], [3], 3):
        with pytest.raises(ArgumentError):
            embed(model, texts)
    for options in ({"batch_size": 0}, {"max_length": 1}, {"truncate_dim": 0}):
        with pytest.raises(ArgumentError):
            embed(model, "a", **options)
    with pytest.raises(ConfigError, match="query, document, passage"):
        embed(model, "a", prompt_name="qery")
    with pytest.raises(ConfigError):
        score_pairs(model, PAIRS)
    for pairs in ([], ["ab"], [("a",)], [("a", 1)]):
        with pytest.raises(ArgumentError):
            score_pairs(scorer, pairs)
    with pytest.raises(ArgumentError):
        embed(3, "a")
