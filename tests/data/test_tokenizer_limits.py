"""Tests of what a tokenizer.json may ask for."""

import contextlib
import json
import time

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from jaxformer.data.tokenizers.files import check_growth, read_tokenizer
from jaxformer.data.tokenizers.pool import TokenizerPool
from jaxformer.data.tokenizers.prompts import PromptEncoder
from jaxformer.data.tokenizers.tokenizer import HuggingFaceTokenizer
from jaxformer.errors import DataError


def words(normalizer=None, decoder=None, pattern=None) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "[END]": 1, "a": 2}, unk_token="[UNK]"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if decoder is not None:
        tokenizer.decoder = decoder
    if pattern is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    return tokenizer


def chain(kind, *steps):
    return kind.Sequence(list(steps))


EXPLODING = {
    "ten for one": lambda kind: [kind.Replace("a", "a" * 10)] * 12,
    "two for one": lambda kind: [kind.Replace("a", "bb"), kind.Replace("b", "aa")] * 30,
    "a regular expression": lambda kind: [kind.Replace(Regex("[a-c]"), "bbbbb")] * 9,
    "at once": lambda kind: [kind.Replace("a", "x" * 5000)],
}


@pytest.mark.parametrize("kind", [normalizers, decoders], ids=["normalizer", "decoder"])
@pytest.mark.parametrize("name", EXPLODING)
def test_replacements_that_explode_are_refused(tmp_path, kind, name):
    whole = chain(kind, *EXPLODING[name](kind))
    file = tmp_path / "tokenizer.json"
    words(**{"normalizer" if kind is normalizers else "decoder": whole}).save(str(file))
    start = time.process_time()
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        read_tokenizer(file)
    assert time.process_time() - start < 5


def test_a_chain_through_lower_case_is_followed():
    step = [normalizers.Replace("a", "AAAAA"), normalizers.Lowercase()]
    with pytest.raises(DataError):
        check_growth(words(normalizers.Sequence(step * 6)), "here")


def test_the_steps_of_nested_sequences_are_followed():
    inner = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    for times, refused in ((2, False), (12, True)):
        nested = {"type": "Sequence", "normalizers": [inner] * times}
        described = json.loads(words().to_str())
        described["normalizer"] = {
            "type": "Sequence",
            "normalizers": [nested, {"type": "Lowercase"}],
        }
        tokenizer = Tokenizer.from_str(json.dumps(described))
        with pytest.raises(DataError) if refused else contextlib.nullcontext():
            check_growth(tokenizer, "here")


def test_usual_replacements_are_taken():
    usual = [
        *(normalizers.Replace(old, new) for old, new in (("…", "..."), ("``", '"'), ("½", "1/2"))),
        normalizers.Prepend("▁"),
        normalizers.NFKC(),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Replace(" ", "▁"),
    ]
    spaces = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    check_growth(words(normalizers.Sequence(usual), spaces), "here")
    # Many replacements that do not feed each other, each three for one.
    check_growth(
        words(normalizers.Sequence([normalizers.Replace(c, "...") for c in "abcdefghij"])), ""
    )


def in_a_process(tokenizer):
    def encode(text):
        with TokenizerPool(HuggingFaceTokenizer(tokenizer, "[END]", "[END]"), 1) as pool:
            ((_, (ids,)),) = pool.map([[text]], lambda batch: batch)
            return ids

    return encode


@pytest.mark.more
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a{1,1000}){1,1000}b"])
@pytest.mark.parametrize("way", ["corpus", "prompt", "processes"])
@pytest.mark.quick("*(a+)+$")
def test_an_expression_that_explodes_ends_with_a_sentence(pattern, way):
    tokenizer = words(pattern=pattern)
    encode = {
        "corpus": HuggingFaceTokenizer(tokenizer, "[END]", "[END]").encode,
        "prompt": PromptEncoder(tokenizer, None).plain,
        "processes": in_a_process(tokenizer),
    }[way]
    with pytest.raises(DataError, match="regular expression"):
        encode("a" * 60 + "!")
    assert len(encode("aaa")) >= 1
