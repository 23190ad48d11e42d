import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from jaxformer.data import Bytes, TrainTokenizer, load_tokenizer
from jaxformer.data.tokenizers.prompts import read_prompt_encoder
from jaxformer.errors import DataError

TEXT = "one two three one two é"


def publish(folder):
    """Writes a tokenizer as transformers saves it; <s> is in front of each text."""
    names = ["<unk>", "<s>", "</s>", "▁", *"▁one▁two▁three", "é"]
    rust = Tokenizer(models.BPE({name: id_ for id_, name in enumerate(dict.fromkeys(names))}, []))
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    rust.add_special_tokens(["<unk>", "<s>", "</s>"])
    template = TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
    rust.post_processor = template
    rust.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"bos_token": "<s>"}))


@pytest.mark.torch
def test_a_published_tokenizer_encodes_as_transformers_does(tmp_path):
    from transformers import AutoTokenizer

    publish(tmp_path)
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), read_prompt_encoder(tmp_path)
    for text in [TEXT, "", "<s>one</s>", " two "]:
        assert ours.plain(text) == ours.source(text) == theirs(text).input_ids
        assert ours.rendered(text) == theirs(text, add_special_tokens=False).input_ids


@pytest.mark.parametrize(
    "spec", [Bytes(), TrainTokenizer("bpe", 300), TrainTokenizer("unigram", 300)]
)
def test_one_of_our_models_reads_what_its_training_wrote(tmp_path, spec):
    fitted = spec.fit([TEXT])
    fitted.save(tmp_path)
    ours, end = read_prompt_encoder(tmp_path), fitted.end_of_text_id
    for text in [TEXT, "", "<|endoftext|></s>", "日本 🙂"]:
        ids = load_tokenizer(tmp_path).encode(text).tolist()
        assert ours.plain(text) == [end, *ids]
        assert ours.source(text) == [*ids, end]
    name = ours.tokenizer.id_to_token(end)
    # In a rendered chat the same name is the token, whatever was read before.
    assert ours.rendered(f"{name}two") == [end, *fitted.encode("two").tolist()]


@pytest.mark.torch
def test_a_tokenizer_that_was_saved_cutting_and_filling_does_neither(tmp_path):
    publish(tmp_path)
    rust = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rust.enable_truncation(2)
    rust.enable_padding(length=64)
    before = read_prompt_encoder(tmp_path).plain(TEXT)
    rust.save(str(tmp_path / "tokenizer.json"))
    assert read_prompt_encoder(tmp_path).plain(TEXT) == before


def test_a_bad_folder_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(DataError, match=r"tokenizer\.json does not exist.*save_pretrained"):
        read_prompt_encoder(tmp_path)
    publish(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    for text, words in [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object, found a list"),
        ('{"jaxformer_kind": "bytes"}', "eos_token = None"),
        ('{"jaxformer_kind": "bytes", "eos_token": "<none>"}', "eos_token = '<none>'"),
    ]:
        settings.write_text(text)
        with pytest.raises(DataError, match=rf"tokenizer_config\.json: {words}"):
            read_prompt_encoder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json: not a tokenizer"):
        read_prompt_encoder(tmp_path)
