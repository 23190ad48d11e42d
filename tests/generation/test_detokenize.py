import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_tokenizers import BYTE_TOKENS, EMOJI, KINDS, SPECIAL, byte_level, gemma, llama

from jaxformer.generation.text_stream import detokenizer

each_kind = pytest.mark.parametrize("kind", KINDS)
TOKENIZERS = {name: make() for name, make in KINDS.items()}


def size(tokenizer):
    return tokenizer.get_vocab_size(with_added_tokens=True)


def pieces(tokenizer, ids, sizes=()):
    """What comes out when ids are pushed in parts of the given sizes, the rest one by one."""
    decoder, found, start = detokenizer(tokenizer), [], 0
    for length in [*sizes, *[1] * len(ids)]:
        found.append(decoder.push(ids[start : start + length]))
        start += length
    return [*found, decoder.flush()]


def written(tokenizer, text):
    """A text as single bytes: characters beyond ASCII take several tokens."""
    names = BYTE_TOKENS if tokenizer.token_to_id(BYTE_TOKENS[0]) is not None else None
    return [tokenizer.token_to_id(names[byte]) if names else byte for byte in text.encode()]


@pytest.mark.more
@each_kind
@settings(max_examples=50)
@given(data=st.data())
def test_the_pieces_are_what_all_tokens_at_once_are(kind, data):
    tokenizer = TOKENIZERS[kind]
    # Often the last ones, which are no single bytes, and ids beyond the vocabulary: models have a
    # few more rows than tokens.
    number = size(tokenizer)
    any_id = st.integers(0, number + 2) | st.integers(max(number - 15, 0), number + 2)
    ids = data.draw(st.lists(any_id, max_size=25))
    sizes = data.draw(st.lists(st.integers(0, 6), max_size=6))
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(pieces(tokenizer, ids, sizes)) == whole


@pytest.mark.parametrize("kind", ["byte-level", "byte-level in a sequence", "llama", "gemma"])
@given(
    text=st.text(st.sampled_from("a é日本語" + EMOJI), min_size=1),
    place=st.integers(0),
    data=st.data(),
)
def test_no_piece_has_half_a_character(kind, text, place, data):
    tokenizer = TOKENIZERS[kind]
    ids = written(tokenizer, text)
    # A special token between two bytes of a character is nothing.
    ids.insert(place % (len(ids) + 1), tokenizer.token_to_id(SPECIAL))
    found = pieces(tokenizer, ids, data.draw(st.lists(st.integers(1, 3))))
    assert "\ufffd" not in "".join(found)
    assert "".join(found) == tokenizer.decode(ids)


def test_a_character_comes_with_its_last_byte():
    tokenizer = byte_level()
    assert pieces(tokenizer, written(tokenizer, "aé日🙂")) == [
        "a", "", "é", "", "", "日", "", "", "", "🙂", "",
    ]  # fmt: skip


def test_bytes_that_are_no_text_hold_nothing_back():
    assert pieces(byte_level(), [0x80] * 3 + [0xF0, 0x9F]) == ["\ufffd"] * 3 + ["", "", "\ufffd"]


def test_single_bytes_are_shown_when_their_run_ends():
    tokenizer = gemma()
    good, bad = written(tokenizer, "é"), [*written(tokenizer, "é"), 0xFF]
    word = tokenizer.token_to_id("▁the")
    assert pieces(tokenizer, [*good, word, *bad, word]) == [
        "", "", "é the", "", "", "", "\ufffd" * 3 + " the", "",
    ]  # fmt: skip
    assert pieces(tokenizer, good) == ["", "", "é"]


def test_words_are_shown_at_once_and_keep_their_spaces():
    tokenizer = llama()
    ids = [tokenizer.token_to_id(name) for name in ["▁the", "▁the", SPECIAL, "s", ".", "▁", "日"]]
    assert pieces(tokenizer, ids) == ["the", " the", "", "s", ".", " ", "日", ""]


class Counting:
    """A tokenizer that counts the tokens it decodes."""

    def __init__(self, tokenizer):
        self.tokenizer, self.decoded = tokenizer, 0

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def decode(self, ids):
        self.decoded += len(ids)
        return self.tokenizer.decode(ids)


@each_kind
def test_a_long_text_costs_as_much_per_token_as_a_short_one(kind):
    words = TOKENIZERS[kind]
    ids = np.random.default_rng(0).integers(0, size(words), 2000).tolist()
    counting = Counting(words)
    assert "".join(pieces(counting, ids)) == words.decode(ids)
    assert counting.decoded <= 4 * len(ids)


@pytest.mark.parametrize("kind", ["byte-level", "llama"])
def test_a_long_run_of_bytes_costs_as_much_per_token_as_a_short_one(kind):
    counting = Counting(TOKENIZERS[kind])
    text = "日本語" * 200
    assert "".join(pieces(counting, written(counting, text))) == text
    assert counting.decoded <= 4 * len(text.encode())
