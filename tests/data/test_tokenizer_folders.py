"""A folder of a Hugging Face tokenizer gives the ids and texts that AutoTokenizer gives."""

import json
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError

import pytest
import tokenizer_folders
from hard_texts import HARD_TEXTS
from hf_checkpoints import save_checkpoint
from tokenizer_folders import FOLDERS, PYTHON, REFUSED, make
from tokenizers import Tokenizer

import jaxformer
from jaxformer.data import Bytes, TokenizerFile, load_tokenizer
from jaxformer.data.tokenizers import auto
from jaxformer.data.tokenizers.auto_process import definition
from jaxformer.data.tokenizers.files import tokenizer_file, tokenizer_in
from jaxformer.data.tokenizers.prompts import read_prompt_encoder
from jaxformer.data.tokenizers.special_tokens import names_as_text
from jaxformer.errors import DataError
from jaxformer.extras import MissingExtra

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
pytestmark = pytest.mark.torch

TEXTS = (
    *HARD_TEXTS,
    "She paints the red boat.",
    "a</s>b </s> c",
    "<s>x<mask>y [MASK] z [SEP]",
    "<|endoftext|>x<|im_start|>user",
    "it ' s , do n't . He 's <tool> red boat<image>  the<b> x <|im_end|> <|pad|>",
)


def assert_same(theirs, ours):
    """Ids of one text and of two, and texts with and without special tokens."""
    assert ours.get_vocab(with_added_tokens=True) == theirs.get_vocab()
    for text in TEXTS:
        expected, found = theirs(text), ours.encode(text)
        assert found.ids == expected["input_ids"], text
        two, both = theirs(text, "red boat"), ours.encode(text, "red boat")
        assert both.ids == two["input_ids"], text
        if "token_type_ids" in two:
            assert both.type_ids == two["token_type_ids"]
        for skip in (False, True):
            expected = theirs.decode(found.ids, skip_special_tokens=skip)
            assert ours.decode(found.ids, skip_special_tokens=skip) == expected, text


@pytest.mark.parametrize("kind", FOLDERS)
def test_ids_and_texts_are_those_of_transformers(tmp_path, kind):
    theirs = transformers.AutoTokenizer.from_pretrained(make(tmp_path / "model", kind))
    ours = Tokenizer.from_str(definition(theirs))
    ours.encode_special_tokens = theirs.split_special_tokens
    assert_same(theirs, ours)


@pytest.mark.quick("gpt2_prefix")
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_process_without_pytorch_says_the_same(tmp_path, kind):
    folder = make(tmp_path / "model", kind)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert_same(theirs, tokenizer_in(folder))
    texts = {name: text for name, text in theirs.special_tokens_map.items() if type(text) is str}
    assert auto.ask_transformers(folder).special_tokens == texts
    encoder = read_prompt_encoder(folder)
    for text in TEXTS:
        assert encoder.plain(text) == theirs(text)["input_ids"]


@pytest.mark.parametrize("kind", PYTHON)
@pytest.mark.quick("byt5")
def test_classes_of_python_code_have_an_equal_tokenizer(tmp_path, kind, caplog):
    folder = make(tmp_path / "model", kind)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), tokenizer_in(folder)
    assert not [record for record in caplog.records if record.name.startswith("jaxformer")]
    assert {name: ours.token_to_id(name) for name in theirs.all_special_tokens} == dict(
        zip(theirs.all_special_tokens, theirs.all_special_ids, strict=True)
    )
    # SigLIP's puts no blank after the name of a special token, and what ends a text counts once.
    texts = HARD_TEXTS if kind.startswith("siglip") else TEXTS
    for text in (*texts, "MKTAYI<mask>QRL A\tG", "Ein <mask>", "x <unk> y" * (kind == "esm")):
        expected, found = theirs(text)["input_ids"], ours.encode(text)
        assert found.ids == expected, text
        assert ours.encode(text, "red boat").ids == theirs(text, "red boat")["input_ids"]
    # The name of no special token is a word in front of which they write a blank or none.
    for text in ("She paints the red boat", "MKTAYIAK", "Zürich"):
        ids = theirs(text)["input_ids"]
        expected = theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special_tokens=True) == expected, text
    fitted = TokenizerFile(str(folder)).fit([])
    fitted.save(tmp_path / "run")
    again = load_tokenizer(tmp_path / "run")
    for text in HARD_TEXTS:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert fitted.encode(text).tolist() == again.encode(text).tolist() == expected


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.quick("marian")
def test_classes_without_an_equal_tokenizer_are_refused(tmp_path, kind):
    folder = make(tmp_path / "model", kind)
    name = type(transformers.AutoTokenizer.from_pretrained(folder)).__name__
    with pytest.raises(DataError, match=rf"{name}, which is Python code.*give token ids"):
        tokenizer_in(folder)


def test_a_model_whose_class_moves_ids_is_not_read_alone(tmp_path):
    folder = make(tmp_path / "model", "mbart")
    settings_of(folder, tokenizer_class="XGLMTokenizer")
    with pytest.raises(DataError, match="cannot read its tokenizer"):
        tokenizer_in(folder)


@pytest.mark.quick("gpt2_prefix")
@pytest.mark.parametrize("kind", [kind for kind in FOLDERS if kind != "word_level"])
def test_the_tokenizer_of_a_run_gives_the_same_ids(tmp_path, kind):
    """A run saves its own tokenizer.json, in which names of special tokens are text."""
    folder = make(tmp_path / "model", kind)
    fitted = TokenizerFile(str(folder)).fit([])
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    fitted.save(tmp_path / "run")
    again = load_tokenizer(tmp_path / "run")
    assert again.fingerprint() == fitted.fingerprint()
    for text in HARD_TEXTS:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert fitted.encode(text).tolist() == again.encode(text).tolist() == expected
    if kind != "clip":  # whose unknown token it is as well
        names = "a</s>b [SEP] <|endoftext|> <eos> <|im_end|><pad>"
        assert fitted.end_of_text_id not in fitted.encode(names)


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_name_of_a_special_token_may_be_ordinary_text(tmp_path, kind):
    theirs = transformers.AutoTokenizer.from_pretrained(make(tmp_path / "model", kind))
    ours, plain = (Tokenizer.from_str(definition(theirs)) for _ in range(2))
    unknown = {"<unk>", "[UNK]", theirs.unk_token}  # what any text may become
    added = ours.get_added_tokens_decoder().items()
    special = {id_: t.content for id_, t in added if t.special and t.content not in unknown}
    ours = names_as_text(ours)
    for id_, name in special.items():
        for text in (name, f"a{name}b", f" {name} "):
            assert id_ not in ours.encode(text, add_special_tokens=False).ids, name
    plain.encode_special_tokens = True
    for text in HARD_TEXTS:
        assert ours.encode(text, add_special_tokens=False).ids == (
            plain.encode(text, add_special_tokens=False).ids
        )


def test_an_answer_is_kept_for_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "cache"))
    folder = make(tmp_path / "model", "gpt2_prefix")
    found = auto.ask_transformers(folder)
    started = []
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: started.append(args))
    shutil.move(folder, tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text('{"model_type": "gpt2", "n_embd": 8}')
    assert auto.ask_transformers(tmp_path / "other") == found
    assert not started
    (tmp_path / "other" / "tokenizer_config.json").write_text("{}")
    with pytest.raises(AttributeError):
        auto.ask_transformers(tmp_path / "other")
    assert len(started) == 1


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_one_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "file" / "cache"))
    folder = make(tmp_path / "model", "gpt2_prefix")
    assert tokenizer_in(folder).encode("boat").ids == tokenizer_in(folder).encode(" boat").ids
    assert all("is not cached" in record.message for record in caplog.records)


@pytest.mark.parametrize("damage", [b"", b"{}", b"x" * 99, None])
@pytest.mark.quick("None")
def test_a_damaged_answer_is_asked_for_again(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "cache"))
    folder = make(tmp_path / "model", "gpt2_prefix")
    found = auto.ask_transformers(folder)
    (kept,) = (tmp_path / "cache" / "tokenizers").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-9] if damage is None else damage)
    assert auto.ask_transformers(folder) == found
    assert kept.read_bytes() == whole


def test_runs_need_no_transformers(tmp_path, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    folder = make(tmp_path / "model", "gpt2_prefix")
    TokenizerFile(str(folder)).fit([]).save(tmp_path / "run")
    Bytes().fit([]).save(tmp_path / "bytes")
    monkeypatch.setattr(auto, "version", missing)
    assert load_tokenizer(tmp_path / "run").encode("boat").size
    assert read_prompt_encoder(tmp_path / "bytes").plain("a")
    with pytest.raises(MissingExtra, match=r"transformers: pip install 'jaxformer\[hub\]'"):
        tokenizer_in(folder)


@pytest.mark.parametrize(
    ("kind", "old"), [("gpt2", "gpt2"), ("bert", "bert"), ("llama", "llama"), ("t5", "t5_few")]
)
@pytest.mark.quick("llama-llama")
def test_models_with_old_tokenizers_load(tmp_path, kind, old):
    tokenizer = make(tmp_path / "tokenizer", old)
    size = len(transformers.AutoTokenizer.from_pretrained(tokenizer))
    folder = save_checkpoint(kind, tmp_path / "model", vocab_size=size)
    for file in folder.glob("*token*"):
        file.unlink()
    for file in tokenizer.iterdir():
        if file.name != "config.json":
            shutil.copy(file, folder)
    model = jaxformer.load(folder)
    expected = transformers.AutoTokenizer.from_pretrained(folder)("Nobody sells")["input_ids"]
    assert model.prompt_encoder.plain("Nobody sells") == expected
    if kind == "gpt2":
        (text,) = jaxformer.generate(model, "Nobody sells", max_new_tokens=3, do_sample=False)[
            "texts"
        ]
        assert isinstance(text, str)


# What transformers does not read ------------------------------------------------------------------


def settings_of(folder, **settings):
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_what_transformers_refuses_is_read_alone_with_a_warning(tmp_path, caplog):
    folder = make(tmp_path / "model", "gpt2_json")
    (folder / "config.json").write_text('{"model_type": "own"}')
    code = {"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}
    settings_of(folder, tokenizer_class="Own", **code)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer_in(folder).encode("red boat").ids == plain.encode("red boat").ids
    (record,) = caplog.records
    assert "tokenizer.json alone is read" in record.message


@pytest.mark.parametrize("name", ["qwen.tiktoken", "tokenizer.model"])
def test_files_without_a_class_are_read(tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer_folders.tiktoken(name)(folder)
    if name == "qwen.tiktoken":
        (folder / "config.json").write_text('{"model_type": "qwen"}')
        settings_of(folder, tokenizer_class="QWenTokenizer")
    found = tokenizer_in(folder)
    assert found.decode(found.encode("Nobody sells 日本").ids) == "Nobody sells 日本"


def test_what_is_missing_or_foreign_is_named(tmp_path):
    assert tokenizer_file(tmp_path) is None
    with pytest.raises(DataError, match=r"tokenizer\.json does not exist, nor .*save_pretrained"):
        tokenizer_in(tmp_path)
    folder = make(tmp_path / "model", "gpt2")
    settings_of(folder, tokenizer_class="XLNetTokenizerFast")
    with pytest.raises(DataError, match=r"XLNetTokenizer reads .*spiece\.model"):
        tokenizer_in(folder)
    (folder / "tokenizer_config.json").unlink()
    (folder / "merges.txt").write_text("a\nb c d\n")
    with pytest.raises(DataError, match=r"model: transformers cannot read"):
        tokenizer_in(folder)
    (folder / "merges.txt").unlink()
    assert tokenizer_file(folder) is None
    (folder / "config.json").unlink()
    (folder / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(DataError, match="next to it"):
        tokenizer_in(folder)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("bert", {"added_tokens_decoder": {"x": {"content": "a"}}}),
        ("bert", {"cls_token": {"lstrip": True}}),
        ("gpt2", {"extra_special_tokens": 5}),
    ],
)
@pytest.mark.quick("gpt2-*")
def test_settings_that_cannot_work_are_one_error(tmp_path, kind, settings):
    folder = make(tmp_path / "model", kind)
    settings_of(folder, **settings)
    with pytest.raises(DataError, match="model: transformers cannot read") as error:
        tokenizer_in(folder)
    assert "\n" not in str(error.value)


def test_added_tokens_of_older_files_have_their_ids(tmp_path):
    folder = make(tmp_path / "model", "gpt2")
    (folder / "added_tokens.json").write_text('{"<new>": 357, "<special>": 356}')
    (folder / "special_tokens_map.json").write_text(
        '{"pad_token": {"content": "<special>", "lstrip": false}, "eos_token": "<|endoftext|>"}'
    )
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), tokenizer_in(folder)
    for text in ("a <new> b <special> c", "<special>"):
        assert ours.encode(text).ids == theirs(text)["input_ids"]


def test_nothing_outside_of_the_folder_is_read(tmp_path):
    folder = make(tmp_path / "model", "gpt2_json")
    (tmp_path / "secret.json").write_text(
        json.dumps({"added_tokens_decoder": {"9": tokenizer_folders.added("x")}})
    )
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(DataError, match="which is outside of the model's folder"):
        tokenizer_in(folder)
