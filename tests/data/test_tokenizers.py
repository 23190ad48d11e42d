import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models, pre_tokenizers

from jaxformer.data import Bytes, StandardLibrary, TokenizerFile, TrainTokenizer, load_tokenizer
from jaxformer.data.tokenizers import training as tokenizer_training
from jaxformer.errors import ConfigError, DataError

LIBRARY = [document.text for document in StandardLibrary(max_bytes=100_000).documents()]
TEXTS = [*LIBRARY[:3], "naïve façade", "日本語 🙂"]
KINDS = ["bpe", "wordpiece", "unigram"]


@pytest.fixture(scope="module")
def trained():
    return {kind: TrainTokenizer(kind, 400).fit(LIBRARY) for kind in KINDS}


@pytest.fixture(scope="module")
def lossless(trained):
    return [Bytes().fit([]), trained["bpe"], trained["unigram"]]


@given(text=st.text())
def test_decode_gives_back_any_text(lossless, text):
    for tokenizer in lossless:
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int32
        assert ids.ndim == 1
        assert tokenizer.decode(ids) == text
        assert not len(ids) or (ids.min() >= 0 and ids.max() < tokenizer.vocab_size)
        assert not {tokenizer.end_of_text_id, tokenizer.pad_id} & set(ids.tolist())


@pytest.mark.parametrize("text", ["<|endoftext|>", "a<|pad|>b</s>", "<unk>", "[SEP] ", "\r\n\0"])
def test_names_of_special_tokens_are_ordinary_text(lossless, text):
    for tokenizer in lossless:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.end_of_text_id not in tokenizer.encode(text)


def test_a_batch_is_each_text_by_itself(trained):
    for tokenizer in [Bytes().fit([]), *trained.values()]:
        batch = tokenizer.encode_batch([*TEXTS, ""])
        assert len(batch) == len(TEXTS) + 1
        for ids, text in zip(batch, [*TEXTS, ""], strict=True):
            np.testing.assert_array_equal(ids, tokenizer.encode(text))


def test_long_texts_are_encoded_in_parts_that_decode_to_the_whole(lossless, monkeypatch):
    text = "".join(TEXTS) + "x" * 1000
    whole = [tokenizer.encode(text) for tokenizer in lossless]
    monkeypatch.setattr(tokenizer_training, "_PART_CHARACTERS", 300)
    assert len(tokenizer_training.cut(text)) > 10
    for tokenizer, ids in zip(lossless, whole, strict=True):
        parts = tokenizer.encode(text)
        assert tokenizer.decode(parts) == text
        assert len(parts) <= 1.05 * len(ids)


def test_decode_leaves_out_special_and_unknown_ids(lossless):
    for tokenizer in lossless:
        ids = tokenizer.encode("one two").tolist()
        ids += [tokenizer.end_of_text_id, tokenizer.pad_id, tokenizer.vocab_size + 5, -1]
        assert tokenizer.decode(ids) == "one two"
        assert tokenizer.decode([]) == ""


def test_bytes_are_bytes():
    tokenizer = Bytes().fit([])
    assert tokenizer.encode("aé").tolist() == [97, 195, 169]
    assert tokenizer.decode([195]) == "\ufffd"
    assert tokenizer.vocab_size == 258


def test_training_compresses_and_keeps_to_the_size(trained):
    text = "".join(LIBRARY)
    for kind, tokenizer in trained.items():
        assert tokenizer.vocab_size <= 400, kind
        assert len(tokenizer.encode(text)) < 0.6 * len(text), kind
    assert trained["bpe"].vocab_size == 400


def test_wordpiece_is_of_the_form_of_bert(trained):
    tokenizer = trained["wordpiece"]
    assert tokenizer.decode(tokenizer.encode("the function")) == "the function"
    assert (tokenizer.pad_id, tokenizer.end_of_text_id) == (0, 3)


@pytest.mark.more
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("bpe")
def test_training_gives_the_same_tokenizer_in_another_process(trained, kind):
    # Another process has other hash seeds, which the Rust trainers let through.
    program = (
        "import sys, json; from jaxformer.data import TrainTokenizer;"
        "kind, texts = json.load(sys.stdin);"
        "print(TrainTokenizer(kind, 400).fit(texts).fingerprint())"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([kind, LIBRARY]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == trained[kind].fingerprint()


def test_save_and_load_give_the_same_tokenizer(trained, tmp_path):
    for name, tokenizer in {"bytes": Bytes().fit([]), **trained}.items():
        tokenizer.save(tmp_path / name)
        loaded = load_tokenizer(tmp_path / name)
        assert type(loaded) is type(tokenizer)
        assert loaded.fingerprint() == tokenizer.fingerprint()
        for attribute in ("vocab_size", "end_of_text_id", "pad_id"):
            assert getattr(loaded, attribute) == getattr(tokenizer, attribute)
        np.testing.assert_array_equal(loaded.encode(TEXTS[0]), tokenizer.encode(TEXTS[0]))
        from_file = TokenizerFile(str(tmp_path / name)).fit([])
        np.testing.assert_array_equal(from_file.encode(TEXTS[0]), tokenizer.encode(TEXTS[0]))
        assert from_file.end_of_text_id == tokenizer.end_of_text_id
        assert from_file.pad_id == tokenizer.pad_id


def word_level(folder, tokens, settings=None):
    rust = RustTokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, "<unk>"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.enable_truncation(2)
    rust.save(str(folder / "tokenizer.json"))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder / "tokenizer.json")


def test_special_tokens_of_a_file_are_found_by_their_usual_names(tmp_path):
    tokenizer = TokenizerFile(word_level(tmp_path, ["<unk>", "a", "<pad>", "</s>"])).fit([])
    assert (tokenizer.end_of_text_id, tokenizer.pad_id) == (3, 2)
    assert tokenizer.encode("a a a").tolist() == [1, 1, 1], "the file's truncation is off"


def test_without_a_padding_token_end_of_text_takes_its_place(tmp_path):
    tokenizer = TokenizerFile(word_level(tmp_path, ["<unk>", "</s>"])).fit([])
    assert tokenizer.pad_id == tokenizer.end_of_text_id == 1


@pytest.mark.slow
def test_settings_beside_a_file_name_its_special_tokens(tmp_path):
    settings = {"eos_token": {"content": "END"}, "pad_token": None}
    path = word_level(tmp_path, ["<unk>", "</s>", "END", "a"], settings)
    assert TokenizerFile(path).fit([]).end_of_text_id == 2
    assert TokenizerFile(path, end_of_text="a").fit([]).end_of_text_id == 3
    assert TokenizerFile(path, pad="a").fit([]).pad_id == 3


def test_vocab_size_covers_ids_with_gaps(tmp_path):
    rust = RustTokenizer(models.WordLevel({"</s>": 0, "b": 7}, "</s>"))
    rust.save(str(tmp_path / "tokenizer.json"))
    assert TokenizerFile(str(tmp_path)).fit([]).vocab_size == 8


def test_a_file_that_cannot_be_used_says_why(tmp_path):
    with pytest.raises(DataError, match=r"does not exist: give a tokenizer\.json"):
        TokenizerFile(str(tmp_path)).fit([])
    with pytest.raises(DataError, match="does not exist"):
        load_tokenizer(tmp_path)
    path = word_level(tmp_path, ["<unk>", "a"])
    with pytest.raises(DataError, match=r"cannot tell which token ends a text .*`end_of_text`"):
        TokenizerFile(path).fit([])
    with pytest.raises(DataError, match="end_of_text='zzz' is not in the vocabulary"):
        TokenizerFile(path, end_of_text="zzz").fit([])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"not a tokenizer\.json that can be loaded"):
        TokenizerFile(path).fit([])


@pytest.mark.parametrize(("kind", "least"), [("bpe", 258), ("unigram", 259), ("wordpiece", 6)])
def test_too_small_a_vocabulary_is_refused(kind, least):
    TrainTokenizer(kind, least)
    with pytest.raises(ConfigError, match=f"at least {least} tokens .*, got {least - 1}"):
        TrainTokenizer(kind, least - 1)


def test_training_says_what_is_wrong_with_the_texts():
    for kind in KINDS:
        with pytest.raises(DataError, match=f"no text to train a {kind} tokenizer on"):
            TrainTokenizer(kind, 400).fit([])
    with pytest.raises(DataError, match=r"alphabet alone takes \d+ WordPiece tokens, more than 9"):
        TrainTokenizer("wordpiece", 9).fit(["abcdefgh"])


def test_the_byte_alphabet_is_that_of_the_library():
    alphabet = tokenizer_training.byte_alphabet()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert sorted(alphabet) == sorted(pre_tokenizers.ByteLevel.alphabet())
    for character in map(chr, range(0x400)):
        written = "".join(alphabet[byte] for byte in character.encode())
        assert byte_level.pre_tokenize_str(character)[0][0] == written


def test_the_choice_of_threads_is_the_users(monkeypatch, trained):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    trained["bpe"].encode("text")
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    trained["bpe"].encode("text")
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


ROLES = ("cls", "sep", "mask", "sentinels")


@pytest.fixture(scope="module")
def with_special_tokens():
    trained = {kind: TrainTokenizer(kind, 500).fit(LIBRARY, ROLES) for kind in KINDS}
    return {"bytes": Bytes().fit([], ROLES), **trained}


def test_special_tokens_get_their_own_ids(with_special_tokens, trained, tmp_path):
    for name, tokenizer in with_special_tokens.items():
        ids = [int(i) for role in ROLES for i in tokenizer.special_ids(role)]
        assert len(set(ids)) == 103
        assert max(ids) == tokenizer.vocab_size - 1
        assert tokenizer.vocab_size <= 500, name
        sentinels = tokenizer.special_ids("sentinels")
        np.testing.assert_array_equal(sentinels, tokenizer.vocab_size - 1 - np.arange(100))
        text = "".join(LIBRARY[:1]) + "[MASK]<extra_id_0>"
        assert not set(ids) & set(tokenizer.encode(text).tolist())
        assert tokenizer.decode([*ids, *tokenizer.encode("one")]) == "one"
        tokenizer.save(tmp_path / name)
        loaded = load_tokenizer(tmp_path / name)
        assert type(loaded) is type(tokenizer)
        assert loaded.fingerprint() == tokenizer.fingerprint()
        assert [int(i) for role in ROLES for i in loaded.special_ids(role)] == ids
        assert tokenizer.fingerprint() != trained.get(name, Bytes().fit([])).fingerprint()


def test_a_kind_that_has_a_special_token_gets_no_second(with_special_tokens):
    wordpiece, unigram = with_special_tokens["wordpiece"], with_special_tokens["unigram"]
    assert [int(wordpiece.special_ids(role)[0]) for role in ROLES[:3]] == [2, 3, 4]
    assert unigram.special_ids("sep") == unigram.end_of_text_id


def test_pieces_put_together_are_the_text(with_special_tokens):
    text = "def f(x):\n    return unforgettable, naive"
    for name, tokenizer in with_special_tokens.items():
        pieces, ids = tokenizer.pieces(), tokenizer.encode(text)
        assert len(pieces) == tokenizer.vocab_size
        joined = "".join(pieces[i] for i in ids)
        expected = "".join(text.split()) if name == "wordpiece" else text
        assert ("".join(joined.split()) if name == "wordpiece" else joined) == expected
        special = [tokenizer.end_of_text_id, tokenizer.pad_id, *tokenizer.special_ids("sentinels")]
        assert all(pieces[i] is None for i in special)


def test_special_tokens_of_a_file_go_by_other_names_too(tmp_path):
    path = word_level(tmp_path, ["<unk>", "<mask>", "<s>", "</s>", "a"])
    tokenizer = TokenizerFile(path).fit([], ["cls", "sep", "mask"])
    assert [int(tokenizer.special_ids(role)[0]) for role in ("cls", "sep", "mask")] == [2, 3, 1]
    with pytest.raises(ConfigError, match=r"no token for 'sentinels', .* add <extra_id_0> to its"):
        TokenizerFile(path).fit([], ["sentinels"])


def test_special_tokens_must_leave_room():
    with pytest.raises(ConfigError, match=r"at least 358 tokens .*, got 300"):
        TrainTokenizer("bpe", 300).fit(LIBRARY, ["sentinels"])


@pytest.mark.torch
def test_transformers_loads_what_is_saved(with_special_tokens, tmp_path):
    from transformers import AutoTokenizer

    for name, tokenizer in with_special_tokens.items():
        tokenizer.save(tmp_path / name)
        theirs = AutoTokenizer.from_pretrained(tmp_path / name)
        assert theirs(TEXTS[0])["input_ids"] == tokenizer.encode(TEXTS[0]).tolist()
        assert theirs.eos_token_id == tokenizer.end_of_text_id
        assert theirs.pad_token_id == tokenizer.pad_id
        ours = [int(tokenizer.special_ids(role)[0]) for role in ("cls", "sep", "mask")]
        assert [theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id] == ours
        assert theirs.convert_tokens_to_ids("<extra_id_0>") == tokenizer.vocab_size - 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (lambda d: d["model"]["vocab"].update(a=2**31), "'a' has the id 2147483648, but there are"),
        (lambda d: d["added_tokens"][0].update(content="other"), "not the 256 bytes"),
        (lambda d: d["added_tokens"].pop(), "not the 256 bytes"),
        (lambda d: d.update(model=5), "not a tokenizer.json that can be loaded"),
    ],
)
def test_a_definition_that_cannot_be_ours_is_refused(tmp_path, changes, message):
    Bytes().fit([]).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    definition = json.loads(file.read_text())
    changes(definition)
    file.write_text(json.dumps(definition))
    with pytest.raises(DataError, match=rf"tokenizer\.json: .*{message}"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["[]", "5", "[" * 9999, '{"a": %s}' % ("9" * 5000), "{"])
def test_settings_that_are_not_an_object_are_refused(tmp_path, text):
    TrainTokenizer("bpe", 300).fit(["text"]).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(DataError, match=r"tokenizer_config\.json"):
        load_tokenizer(tmp_path)


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(DataError, match=r"tokenizer\.json is a pipe"):
        TokenizerFile(str(tmp_path)).fit([])


def test_a_token_that_is_not_there_is_named_with_those_like_it():
    tokenizer = Bytes().fit([], ("mask",))
    assert tokenizer.token_id("[MASK]") == tokenizer.special_ids("mask")[0]
    with pytest.raises(ConfigError, match=r"'<mask>' is not a token .* did you mean '\[MASK\]'"):
        tokenizer.token_id("<mask>")
    with pytest.raises(ConfigError, match=r"'house' is not a token .* there are .*endoftext"):
        tokenizer.token_id("house")
    learned = TrainTokenizer(vocab_size=300).fit(["a house by the house"] * 9, ("cls", "mask"))
    with pytest.raises(ConfigError, match=r"'house' is not a token .* did you mean .*Ġhouse"):
        learned.token_id("house")
    assert learned.token_id("Ġhouse") == learned.find_id("Ġhouse") is not None
