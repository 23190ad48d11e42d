"""Files of tiktoken: the ids are those of the tiktoken library."""

import base64

import pytest
from hard_texts import HARD_TEXTS
from hf_checkpoints import SENTENCES
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from jaxformer.data import StandardLibrary, TokenizerFile, load_tokenizer
from jaxformer.data.tokenizers.tiktoken import ENCODINGS
from jaxformer.data.tokenizers.training import byte_alphabet
from jaxformer.errors import ArgumentError, DataError

pytestmark = pytest.mark.more

tiktoken = pytest.importorskip("tiktoken")

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {  # as published, in the syntax of tiktoken
    "gpt2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "cl100k_base": (
        r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++"""
        r"""[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
    ),
    "o200k_base": "|".join(
        [
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ]
    ),
    "llama3": _WORDS + r"\p{N}{1,3}" + _REST,
    "qwen": _WORDS + r"\p{N}" + _REST,
}


@pytest.fixture(scope="module")
def ranks():
    """Byte sequences in the order in which a byte-level BPE learned them."""
    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [document.text for document in StandardLibrary(300_000).documents()]
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=byte_alphabet(), show_progress=False
    )
    rust.train_from_iterator([*texts, *SENTENCES, *HARD_TEXTS * 5], trainer)
    byte_of = {character: byte for byte, character in enumerate(byte_alphabet())}
    vocabulary = sorted(rust.get_vocab().items(), key=lambda entry: entry[1])
    return {bytes(byte_of[char] for char in token): rank for token, rank in vocabulary}


@pytest.fixture(scope="module")
def file(ranks, tmp_path_factory):
    return write(tmp_path_factory.mktemp("ranks") / "own.tiktoken", ranks)


def write(path, ranks):
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    path.write_bytes(b"".join(lines))
    return path


@pytest.fixture(scope="module", params=PATTERNS)
def both(request, ranks, file):
    name = request.param
    theirs = tiktoken.Encoding(
        name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens={}
    )
    return theirs, TokenizerFile(str(file), pattern=name).fit([])


def test_ids_of_hard_texts_are_those_of_the_library(both):
    theirs, ours = both
    library = [document.text for document in StandardLibrary(100_000).documents()]
    for text in (*HARD_TEXTS, *library):
        assert ours.encode(text).tolist() == theirs.encode_ordinary(text)
        assert ours.decode(ours.encode(text)) == text


letters = st.characters(exclude_categories=["Cs"]) | st.sampled_from(
    " \n\t\r'aSſKé日09.,!/\u0301🙂\x85"
)


@given(st.text(letters))
def test_ids_of_any_text_are_those_of_the_library(both, text):
    theirs, ours = both
    assert ours.encode(text).tolist() == theirs.encode_ordinary(text)


def test_an_encoding_brings_its_special_tokens(ranks, tmp_path):
    """The published ids, counted from the number of ranks: 100256, 199998, 128000, 151643."""
    size = len(ranks)
    places = {
        "cl100k_base": {"<|endoftext|>": 1, "<|fim_prefix|>": 2, "<|endofprompt|>": 20},
        "o200k_base": {"<|endoftext|>": 1, "<|endofprompt|>": 20},
        "llama3": {"<|begin_of_text|>": 0, "<|end_of_text|>": 1, "<|eot_id|>": 9},
        "qwen": {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2},
        "gpt2": {"<|endoftext|>": 0},
    }
    for name, special in places.items():
        file = write(
            tmp_path / ("tokenizer.model" if name == "llama3" else f"{name}.tiktoken"), ranks
        )
        tokenizer = TokenizerFile(str(file)).fit([])  # the pattern follows from the name
        assert {token: tokenizer.token_id(token) - size for token in special} == special
        assert (
            tokenizer.encode("12345").tolist()
            == TokenizerFile(str(file), pattern=name).fit([]).encode("12345").tolist()
        )
        tokenizer.save(tmp_path / name)
        again = load_tokenizer(tmp_path / name)
        assert again.fingerprint() == tokenizer.fingerprint()
    assert len(ENCODINGS["llama3"].special_tokens) == 256


def test_a_pattern_may_be_given(ranks, file):
    theirs = tiktoken.Encoding("own", pat_str=r"\d|\D+", mergeable_ranks=ranks, special_tokens={})
    ours = TokenizerFile(str(file), pattern=r"\d|\D+").fit([])
    for text in HARD_TEXTS:
        assert ours.encode(text).tolist() == theirs.encode_ordinary(text)
    with pytest.raises(ArgumentError, match=r"pattern = 'qven': .*; did you mean 'qwen'"):
        TokenizerFile(str(file), pattern="qven").fit([])
    with pytest.raises(ArgumentError, match="written without a plus after a count"):
        TokenizerFile(str(file), pattern=PATTERNS["cl100k_base"]).fit([])
    with pytest.raises(DataError, match="not a regular expression"):
        TokenizerFile(str(file), pattern="(a").fit([])


def test_runs_of_older_versions_have_the_same_text_for_their_tokenizer():
    assert repr(TokenizerFile("a")) == "TokenizerFile(path='a', end_of_text=None, pad=None)"
    assert repr(TokenizerFile("a", pattern="qwen")).endswith("pad=None, pattern='qwen')")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("IQ== 0\nIg== 2\n", "the ranks must be 0, 1, ... without a gap"),
        ("IQ== 0\nhello\n", r"a\.tiktoken:2: must be base64 text, a space and a rank"),
        ("IQ== 0\nA 1\n", r"a\.tiktoken:2: not base64"),
    ],
)
def test_broken_ranks_are_named_with_their_line(tmp_path, lines, message):
    (tmp_path / "a.tiktoken").write_text(lines)
    with pytest.raises(DataError, match=message):
        TokenizerFile(str(tmp_path / "a.tiktoken")).fit([])
