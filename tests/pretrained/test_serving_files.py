"""What vLLM, SGLang and other servers require of an exported folder."""

import json

import pytest
from saved_folders import copy_of
from tiny_models import random_parameters
from tokenizers import Tokenizer

from jaxformer.checkpoints.saved_run import write_run
from jaxformer.cli import main as cli
from jaxformer.config import Config, TrainConfig
from jaxformer.data import Bytes, DataConfig
from jaxformer.data.tokenizers.tokenizer import ByteTokenizer
from jaxformer.io.model_files import read_object
from jaxformer.models import DecoderConfig
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.export.model_card import model_card
from jaxformer.pretrained.export.serving_files import write_serving_files

# "vllm/config/model.py" and "model_arch_config_convertor.py": where the context length comes from.
VLLM_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    model = DecoderConfig(vocab_size=264, num_layers=2, model_dim=32, num_heads=4, mlp_dim=64)
    config = Config(model, DataConfig(tokenizer=Bytes()), train=TrainConfig(steps=4))
    write_run(folder, config, 4, random_parameters(model), {"loss": 2.5})
    ByteTokenizer().save(folder / "tokenizer")
    return folder


@pytest.fixture(scope="module")
def exported(run):
    out = run.with_name("out")
    assert cli.main(["export", str(run), str(out)]) == 0
    return out


def test_the_configuration_has_what_loaders_read(exported):
    values = read_object(exported, "config.json")
    assert values["architectures"]
    assert values["model_type"]
    assert values["dtype"] in ("float32", "bfloat16", "float16")  # vLLM: a name of torch's
    lengths = [values[name] for name in VLLM_LENGTHS if name in values]
    assert lengths
    checkpoint = load(exported).checkpoint
    assert not checkpoint.hf_config.ignored  # nothing that only we know


def test_the_tokenizer_names_its_special_tokens_and_length(exported):
    settings = read_object(exported, "tokenizer_config.json")
    config = read_object(exported, "config.json")
    vocabulary = load(exported).tokenizer
    for name in ("bos_token", "eos_token", "pad_token"):
        assert vocabulary.token_to_id(settings[name]) == config[f"{name}_id"]
    assert settings["model_max_length"] == min(
        config[name] for name in VLLM_LENGTHS if name in config
    )
    assert settings["clean_up_tokenization_spaces"] is False
    special = read_object(exported, "special_tokens_map.json")
    assert special == {name: x for name, x in settings.items() if name.endswith("_token")}


def test_every_weight_is_in_a_file_of_the_index(run, exported, tmp_path):
    # vLLM and SGLang read the *.safetensors that the index names, or all if there is none.
    assert [file.name for file in exported.glob("*.safetensors")] == ["model.safetensors"]
    assert cli.main(["export", str(run), str(tmp_path / "out"), "--max-shard-gb", "3e-5"]) == 0
    index = read_object(tmp_path / "out", "model.safetensors.index.json")
    files = {file.name for file in (tmp_path / "out").glob("*.safetensors")}
    assert len(files) > 1
    assert set(index["weight_map"].values()) == files


@pytest.mark.torch
def test_transformers_reads_them_as_servers_do(exported):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported, trust_remote_code=False)
    config = transformers.AutoConfig.from_pretrained(exported)
    ends = transformers.GenerationConfig.from_pretrained(exported).eos_token_id
    assert tokenizer.is_fast
    assert tokenizer.eos_token_id == ends == config.eos_token_id
    assert tokenizer.bos_token_id == config.bos_token_id
    assert tokenizer.pad_token_id == config.pad_token_id
    assert max(tokenizer.get_vocab().values()) < config.vocab_size
    assert {tokenizer.eos_token_id, tokenizer.pad_token_id} <= set(tokenizer.all_special_ids)
    # SGLang loads the class that is named if AutoTokenizer's is a general one.
    settings = read_object(exported, "tokenizer_config.json")
    assert hasattr(transformers, settings["tokenizer_class"])
    assert settings["tokenizer_class"] not in ("PreTrainedTokenizer", "PreTrainedTokenizerBase")
    text = "def f(x):\n    return  x"
    ours = load(exported).tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer(text)["input_ids"] == ours


def a_chat_model(exported, folder, template):
    """The files of a chat model of our own, before they are completed."""
    copy_of(exported, folder)
    for name in ("generation_config.json", "tokenizer_config.json"):
        settings = read_object(folder, name)
        (folder / name).unlink()
    kept = {name: settings[name] for name in ("eos_token", "pad_token", "jaxformer_kind")}
    (folder / "tokenizer_config.json").write_text(json.dumps(kept | {"jaxformer_kind": "chat"}))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    write_serving_files(folder, read_object(folder, "config.json"), writes_text=True)
    return tokenizer


def test_the_end_of_a_turn_ends_generation(exported, tmp_path):
    tokenizer = a_chat_model(exported, tmp_path / "chat", CHATML)
    ends = [tokenizer.token_to_id(name) for name in ("<|endoftext|>", "<|im_end|>")]
    assert read_object(tmp_path / "chat", "generation_config.json")["eos_token_id"] == ends
    assert "bos_token" in read_object(tmp_path / "chat", "tokenizer_config.json")


def test_a_template_that_writes_the_first_token_gets_none(exported, tmp_path):
    a_chat_model(exported, tmp_path / "chat", "{{ bos_token }}" + CHATML)
    assert "bos_token" not in read_object(tmp_path / "chat", "tokenizer_config.json")


def test_the_card_says_what_was_trained_and_how_well(exported):
    text = (exported / "README.md").read_text()
    for part in ("library_name: transformers", "DataConfig", "| 4 of 4 |", "| loss | 2.5 |"):
        assert part in text


def test_a_published_checkpoint_gets_no_card(exported):
    assert model_card(exported, load(exported)) is None
