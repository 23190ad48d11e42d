"""Tokens, neighbours and filled masks, beside transformers."""

import numpy as np
import pytest
from hf_checkpoints import save_checkpoint

import jaxformer
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.pretrained.inspection.fill_mask import fill_mask
from jaxformer.pretrained.inspection.neighbours import nearest_rows, neighbours
from jaxformer.pretrained.inspection.tokens import open_tokenizer, tokenize

pytestmark = pytest.mark.torch
KINDS = ("bert", "gpt2", "t5", "roberta", "llama")
TEXTS = ("The captain's boat, at 10:45!", "Nobody  paints\nZürich", "", "日本 🙂")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    return {kind: save_checkpoint(kind, home / kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_transformers(kind, folders):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folders[kind])
    mask = theirs.mask_token or ""
    for text in (*TEXTS, f"a {mask} boat"):
        found = tokenize(folders[kind], text)
        assert [token.id for token in found] == theirs(text)["input_ids"]
        pieces = theirs.convert_ids_to_tokens([token.id for token in found])
        assert [token.piece for token in found] == pieces
        offsets = theirs(text, return_offsets_mapping=True)["offset_mapping"]
        for token, offset in zip(found, offsets, strict=True):
            assert offset in ((0, 0), (token.start, token.end))
            assert (token.start is None) <= token.special
        special = set(theirs.all_special_ids)
        assert [token.special for token in found] == [token.id in special for token in found]


def test_a_mask_token_by_each_name(folders):
    assert open_tokenizer(folders["bert"]).mask_token == "[MASK]"
    assert open_tokenizer(folders["roberta"]).mask_token == "<mask>"
    assert open_tokenizer(folders["gpt2"]).mask_token is None


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.quick("bert")
def test_fill_mask_equals_the_pipeline(kind, folders):
    from transformers import pipeline

    theirs = pipeline("fill-mask", str(folders[kind]), device="cpu")
    mask = theirs.tokenizer.mask_token
    model = jaxformer.load(folders[kind])
    for text in (f"The {mask} captain sells the boat.", f"{mask} paints the red {mask} at 10:45"):
        wanted = theirs(text, top_k=4)
        wanted = [wanted] if isinstance(wanted[0], dict) else wanted
        found = fill_mask(model, text, k=4)
        assert len(found) == len(wanted) == text.count(mask)
        for ours, their in zip(found, wanted, strict=True):
            for row, expected in zip(ours, their, strict=True):
                np.testing.assert_allclose(row.score, expected["score"], rtol=2e-5)
                assert row.token == expected["token"]
                assert row.token_str == expected["token_str"]
                assert row.sequence == expected["sequence"]


def test_fill_mask_says_what_is_wrong(folders):
    bert = jaxformer.load(folders["bert"])
    with pytest.raises(ArgumentError, match=r"mask token, \[MASK\], .* write \[MASK\] for <mask>"):
        fill_mask(bert, "The <mask> boat")
    with pytest.raises(ArgumentError, match=r"must hold this model's mask token, \[MASK\]"):
        fill_mask(bert, "The boat")
    with pytest.raises(ArgumentError, match="k = 0: must be an integer from 1 to"):
        fill_mask(bert, "The [MASK]", k=0)
    with pytest.raises(DataError, match="text: 102 tokens, special ones included"):
        fill_mask(bert, "[MASK]" * 100)
    for kind, name in (("gpt2", "GPT2LMHeadModel"), ("t5", "T5ForConditionalGeneration")):
        with pytest.raises(
            ConfigError, match=rf"{kind} is a {name}: .* jaxformer generate .*{kind}"
        ):
            fill_mask(jaxformer.load(folders[kind]), "The [MASK]")


@pytest.mark.parametrize("kind", ["bert", "gpt2", "t5"])
def test_neighbours_are_those_by_cosine(kind, folders):
    import torch

    model = jaxformer.load(folders[kind])
    token, found = neighbours(model, "boat", k=7)
    table = torch.tensor(np.asarray(model.parameters["embedding.table"]))
    cosines = torch.nn.functional.cosine_similarity(table, table[token.id][None], dim=1)
    cosines[token.id] = -2
    best = torch.topk(cosines, 7)
    assert [neighbour.id for neighbour in found] == best.indices.tolist()
    np.testing.assert_allclose([row.cosine for row in found], best.values, atol=1e-6)
    assert neighbours(folders[kind], "boat", k=7) == (token, found)
    assert token.piece.strip("Ġ▁") == "boat"
    assert neighbours(folders[kind], token.piece).token.id == token.id


def test_neighbours_of_a_row_of_zeros():
    table = np.array([[0, 0], [1, 0], [1, 1], [-1, 0]], np.float32)
    rows, cosines = nearest_rows(table, 1, 9)
    assert rows.tolist() == [2, 0, 3]
    np.testing.assert_allclose(cosines, [0.5**0.5, 0, -1], atol=1e-6)


def test_a_word_of_several_tokens_names_its_pieces(folders):
    with pytest.raises(
        ArgumentError, match=r"must be one token, and is 6: Ġf ro z e bo at; .* 'Ġf'"
    ):
        neighbours(folders["gpt2"], "frozeboat")
    with pytest.raises(ArgumentError, match=r"in the vocabulary; the tokenizer reads it as \[UNK"):
        neighbours(folders["bert"], "日")
    with pytest.raises(ArgumentError, match="k = 0: must be an integer of at least 1"):
        neighbours(folders["bert"], "boat", k=0)


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json does not exist"):
        tokenize(tmp_path, "a")
    with pytest.raises(ArgumentError, match="must be the folder of a run or of a Hugging Face"):
        tokenize(tmp_path / "missing", "a")
