"""Texts of tokens that come one after another, and where they end."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from jaxformer.data.tokenizers.auto_process import CLEANED
from jaxformer.data.tokenizers.training import byte_alphabet
from jaxformer.generation.text_stream import StopStrings, TextStream, detokenizer

EMOJI = "👩‍🚀🙂"
SPECIAL, PLAIN = "<|end|>", "naïve 日本"
WORDS = ["▁", "▁▁", "▁the", "the", "▁n't", "s", ".", " ", "日", "本", "🙂", "\ufffd", "a\ufffd"]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def made(names, decoder, *added):
    tokenizer = Tokenizer(models.BPE({name: id_ for id_, name in enumerate(names)}, []))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in added])
    tokenizer.add_special_tokens([AddedToken(SPECIAL)])
    return tokenizer


def of_bytes(decoder):
    """Every byte, and tokens of several bytes that cut characters."""
    alphabet = byte_alphabet()
    emoji, pieces = EMOJI.encode(), [b" the", b"\xe6", b"\x97\xa5a", b"\xff\xf0", b"\xed\xa0\x80"]
    pieces += [emoji[:2], emoji[2:7], emoji[7:]]
    names = alphabet + ["".join(alphabet[byte] for byte in piece) for piece in pieces if piece[1:]]
    return made(names, decoder, "é", "Ġx", PLAIN)


def with_bytes(first, *last):
    """Words, and bytes for what they lack."""
    chain = [first, decoders.ByteFallback(), decoders.Fuse(), *last]
    return made([*BYTE_TOKENS, *WORDS], decoders.Sequence(chain))


def cleaned(first):
    """What transformers does with `clean_up_tokenization_spaces`."""
    names = ["▁", "▁n", "n", "'", "t", "▁'", "▁.", ".", "▁x", "s", "▁?", "ve", "▁n't", "日"]
    replaced = [decoders.Replace(*pair) for pair in CLEANED]
    return made(names, decoders.Sequence([first, decoders.Fuse(), *replaced]))


BLANKS = decoders.Replace("▁", " ")
TOKENIZERS = {
    "byte-level": of_bytes(decoders.ByteLevel()),
    "byte-level in a sequence": of_bytes(decoders.Sequence([decoders.ByteLevel()])),
    # The first space belongs to nobody.
    "llama": with_bytes(BLANKS, decoders.Strip(content=" ", left=1, right=0)),
    "gemma": with_bytes(BLANKS),
    "metaspace": made([*WORDS, *BYTE_TOKENS[-3:]], decoders.Metaspace()),
    "metaspace and bytes": with_bytes(decoders.Metaspace()),
    "wordpiece": made(
        ["the", "##se", "##s", ".", ",", "n't", "'", "s", "##n't", "do", "日", "##本", "##"],
        decoders.WordPiece(),
    ),
    "ends of words": made(
        ["the</w>", "the", "se</w>", ".</w>", "</w>", "日</w>", "本"],
        decoders.BPEDecoder(suffix="</w>"),
    ),
    "without a decoder": made(WORDS, None),
    "cleaned": cleaned(decoders.Metaspace()),
    "cleaned words": cleaned(decoders.WordPiece(prefix="▁", cleanup=False)),
}
each_kind = pytest.mark.parametrize("kind", TOKENIZERS)
BYTES, LLAMA, GEMMA = (TOKENIZERS[name] for name in ("byte-level", "llama", "gemma"))


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
    assert pieces(BYTES, written(BYTES, "aé日🙂")) == [
        "a", "", "é", "", "", "日", "", "", "", "🙂", "",
    ]  # fmt: skip


def test_bytes_that_are_no_text_hold_nothing_back():
    assert pieces(BYTES, [0x80] * 3 + [0xF0, 0x9F]) == ["\ufffd"] * 3 + ["", "", "\ufffd"]


def test_single_bytes_are_shown_when_their_run_ends():
    good, bad = written(GEMMA, "é"), [*written(GEMMA, "é"), 0xFF]
    word = GEMMA.token_to_id("▁the")
    assert pieces(GEMMA, [*good, word, *bad, word]) == [
        "", "", "é the", "", "", "", "\ufffd" * 3 + " the", "",
    ]  # fmt: skip
    assert pieces(GEMMA, good) == ["", "", "é"]


def test_words_are_shown_at_once_and_keep_their_spaces():
    ids = [LLAMA.token_to_id(name) for name in ["▁the", "▁the", SPECIAL, "s", ".", "▁", "日"]]
    assert pieces(LLAMA, ids) == ["the", " the", "", "s", ".", " ", "日", ""]


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


# Stop strings -------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    tokenizer=st.sampled_from([BYTES, LLAMA]),
    ids=st.lists(st.integers(0, 271), max_size=20),
    sizes=st.lists(st.integers(0, 5), max_size=10),
    stop=st.lists(st.sampled_from(["the", " the", "s.", "日", "\ufffd\ufffd", "a"]), max_size=3),
)
def test_the_text_is_what_decoding_all_and_cutting_it_gives(tokenizer, ids, sizes, stop):
    stream, start, shown = TextStream(tokenizer, stop), 0, ""
    for size in [*sizes, len(ids)]:
        shown += stream.push(ids[start : start + size])
        start += size
        assert stream.text == shown
    shown += stream.flush()
    whole = StopStrings(stop)
    text = whole.push(tokenizer.decode(ids)) + whole.flush()
    assert stream.text == shown == text
    assert stream.stopped_by == whole.found
    assert stream.finished
    assert stream.push(ids) == stream.flush() == ""


def test_a_stop_string_may_span_tokens_and_end_inside_one():
    stream = TextStream(LLAMA, ["the th"])
    ids = [LLAMA.token_to_id(name) for name in ["s", ".", "▁the", "▁the", "s"]]
    assert [stream.push([id_]) for id_ in ids] == ["s", ".", " ", "", ""]
    assert (stream.text, stream.stopped_by, stream.finished) == ("s. ", "the th", True)
    assert stream.push(ids) == stream.flush() == ""
    assert stream.text == "s. "


def test_the_end_of_the_text_can_complete_a_stop_string():
    stream = TextStream(LLAMA, ["é"])
    assert stream.push("é".encode()) == ""
    assert (stream.flush(), stream.stopped_by, stream.text) == ("", "é", "")


letters = st.text("ab", max_size=20)
stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def expected(text, stop):
    """Reads to the first place where a stop string ends, and takes the longest that does."""
    for end in range(1, len(text) + 1):
        found = [one for one in stop if text[:end].endswith(one)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=300)
@given(parts=st.lists(letters, max_size=8), stop=stops)
def test_a_text_ends_before_the_first_stop_string_however_it_is_cut(parts, stop):
    watch = StopStrings(stop)
    shown = [watch.push(part) for part in parts] + [watch.flush()]
    assert ("".join(shown), watch.found) == expected("".join(parts), stop)


@settings(max_examples=300)
@given(text=letters, stop=stops)
def test_only_what_may_begin_a_stop_string_is_held_back(text, stop):
    watch = StopStrings(stop)
    shown = "".join(watch.push(character) for character in text)
    if watch.found is None:
        held = text[len(shown) :]
        assert text.startswith(shown)
        assert not held or any(one.startswith(held) for one in stop)
        for start in range(len(shown)):
            assert not any(one.startswith(text[start:]) for one in stop)
