"""SentencePiece models: the ids are those of the sentencepiece library."""

import io
import itertools

import pytest
from hard_texts import HARD_TEXTS
from hf_checkpoints import SENTENCES
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data import TokenizerFile
from jaxformer.data.tokenizers.sentencepiece import read_sentencepiece, sentencepiece_tokenizer
from jaxformer.errors import DataError

pytestmark = pytest.mark.more

sentencepiece = pytest.importorskip("sentencepiece")

CORPUS = [*SENTENCES, *(text for text in HARD_TEXTS[:12] if "\n" not in text), "`` '' <s> </s>"] * 4
NAMES = "<s> </s> <unk> <pad> [CLS] <0x0A>"


def train(path, **options):
    """Writes a trained model and returns the library's own processor."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"vocab_size": 600, "character_coverage": 1.0} | options,
    )
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("rules", ["nmt_nfkc", "identity", "nmt_nfkc_cf"])
def test_ids_and_texts_are_those_of_the_library(tmp_path, kind, rules):
    spaces, prefixes, fallbacks = (True, False), (True, False), (True, False)
    for number, options in enumerate(itertools.product(spaces, prefixes, fallbacks)):
        theirs = train(
            tmp_path / f"{number}.model",
            model_type=kind,
            normalization_rule_name=rules,
            remove_extra_whitespaces=options[0],
            add_dummy_prefix=options[1],
            byte_fallback=options[2],
            character_coverage=0.99 if options[2] else 1.0,
            split_digits=options[1],
        )
        ours = TokenizerFile(str(tmp_path / f"{number}.model")).fit([])
        assert ours.vocab_size == theirs.get_piece_size()
        for text in (*HARD_TEXTS, NAMES):
            ids = theirs.encode(text)
            assert ours.encode(text).tolist() == ids, (options, text)
            if theirs.unk_id() not in ids:
                assert ours.decode(ids) == theirs.decode(ids), (options, text)


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def pair(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tokenizer.model"
    theirs = train(path, model_type=request.param, normalization_rule_name="identity")
    return theirs, TokenizerFile(str(path)).fit([])


letters = st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")


@given(st.text(letters | st.sampled_from("aeiou  <>/s")))
def test_ids_of_any_text_are_those_of_the_library(pair, text):
    theirs, ours = pair
    ids, expected = ours.encode(text).tolist(), theirs.encode(text)
    if ids != expected:  # the same pieces in another order are as likely
        assert sorted(ids) == sorted(expected)
        assert theirs.decode(ids) == theirs.decode(expected)


def test_symbols_of_the_user_are_one_token(tmp_path):
    theirs = train(tmp_path / "a.model", model_type="bpe", user_defined_symbols=["<sep>", "\n\n"])
    ours = sentencepiece_tokenizer(read_sentencepiece(tmp_path / "a.model"))
    for text in ("the red<sep>", "a\n\n"):
        assert ours.encode(text).ids == theirs.encode(text)


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b"PK\x03\x04 some archive", b"\xff" * 200])
def test_a_file_that_is_not_a_model_is_named(tmp_path, content):
    (tmp_path / "a.model").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.model: not a SentencePiece model"):
        TokenizerFile(str(tmp_path / "a.model")).fit([])


def test_models_that_break_off_or_have_another_kind_are_named(tmp_path):
    path = tmp_path / "a.model"
    train(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.model: not a SentencePiece model: it breaks off"):
        TokenizerFile(str(path)).fit([])
    path.write_bytes(whole + b"\x1a\6\x12\4\xff\xff\xff\xff")  # the last field counts
    with pytest.raises(DataError, match=r"a\.model: its rules of normalisation are damaged"):
        TokenizerFile(str(path)).fit([])
    train(path, model_type="char", vocab_size=300)
    with pytest.raises(DataError, match=r"a\.model: must be a unigram or BPE model"):
        TokenizerFile(str(path)).fit([])
    train(path, eos_id=-1, bos_id=-1)
    with pytest.raises(DataError, match=r"a\.model: cannot tell which token ends a text"):
        TokenizerFile(str(path)).fit([])


@given(st.binary(max_size=100))
def test_any_bytes_are_one_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "a.model"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.model"):
        TokenizerFile(str(path)).fit([])
