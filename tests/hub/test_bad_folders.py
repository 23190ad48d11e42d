"""Folders and configurations that cannot be read, by chance or on purpose: one clear message."""

import os
import random
import shutil
import time

import pytest
from saved_folders import change_settings, copy_of, save_tiny
from soak.folders import ATTACKS

from jaxformer.data.tokenizers.prompts import read_prompt_encoder
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.hf_config import HFConfig
from jaxformer.io.model_files import GENERATION, read_object, side_files
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.import_run import import_folder
from jaxformer.pretrained.reader import open_folder
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
)
def test_what_is_a_pipe_is_not_waited_for(name, spoiled, tmp_path, refused):
    (spoiled / name).unlink()
    os.mkfifo(spoiled / name)
    assert f"{name} is a pipe or a device" in refused("import", spoiled, tmp_path / "run")


def test_nothing_outside_a_folder_is_read(spoiled, tmp_path, refused):
    (tmp_path / "secret").write_text("mine")
    (spoiled / "vocab.txt").symlink_to(tmp_path / "secret")
    for command in ("import", "export"):
        message = refused(command, spoiled, tmp_path / "out")
        assert "vocab.txt is a link to" in message
        assert "which is outside of the model's folder" in message
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        folder = copy_of(spoiled, tmp_path / f"linked-{name}")
        (folder / "vocab.txt").unlink()
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
        assert f"{name} is a link to" in refused("import", folder, tmp_path / "out")


def test_a_folder_of_a_cache_is_imported(llama, tmp_path):
    home = tmp_path / "models--a--b"
    snapshot = home / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (home / "blobs").mkdir()
    for number, file in enumerate(llama.iterdir()):
        shutil.copy(file, home / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    (tmp_path / "link").symlink_to(snapshot)
    import_folder(tmp_path / "link", tmp_path / "run")
    kept = tmp_path / "run" / "huggingface" / "tokenizer_config.json"
    assert kept.read_bytes() == (llama / "tokenizer_config.json").read_bytes()
    assert not kept.is_symlink()


@pytest.mark.parametrize("command", ["evaluate", "inspect", "merge"])
def test_commands_that_want_a_run(command, llama, tmp_path, refused):
    message = refused(command, llama, *([tmp_path / "out"] if command == "merge" else []))
    assert f"import it first with python -m jaxformer import {llama} RUN_DIR" in message


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model_type": "lama"}, ["model_type = 'lama'", "Parity with transformers"]),
        ({"model_type": "Llama"}, ["model_type = 'Llama'", "must be 'llama'"]),
        ({"model_type": "mistral4"}, ["model_type = 'mistral4'", "mistral", "experts"]),
        ({"model_type": None}, ["model_type = None", "Parity with transformers"]),
        ({"model_type": ["llama"]}, ["model_type = ['llama']"]),
        ({"architectures": ["LlamaForCausalLN"]}, ["LlamaForCausalLN", "'LlamaForCausalLM'"]),
        ({"architectures": "LlamaForCausalLM"}, ["architectures"]),
        ({"hidden_act": "foo"}, ["hidden_act = 'foo'", "'silu'"]),
        ({"hidden_act": ["silu"]}, ["hidden_act = ['silu']"]),
        ({"is_causal": None}, ["is_causal = None"]),
        ({"token_classification_bias": 0.5}, ["token_classification_bias = 0.5"]),
        ({"rope_parameters": {"rope_type": "spiral"}}, ["spiral", "linear"]),
        ({"rope_parameters": "llama3"}, ["rope_parameters = 'llama3'"]),
        ({"hidden_size": "48"}, ["hidden_size = '48'", "must be a number"]),
        ({"hidden_size": 0}, ["model_dim = 0"]),
        ({"num_hidden_layers": -1}, ["num_layers = -1"]),
        ({"num_attention_heads": 5}, ["num_heads"]),
        ({"vocab_size": None}, ["vocab_size = None"]),
        ({"attention_bias": "yes"}, ["DotProductAttention.bias = 'yes'"]),
        ({"tie_word_embeddings": 7}, ["tie_embeddings = 7", "True or False"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers = 1000000000", "10,000"]),
        ({"num_hidden_layers": 1.5}, ["num_layers = 1.5"]),
        ({"hidden_size": 48 * 10**7}, ["model_dim = 480000000", "65,736 values"]),
        ({"vocab_size": 10**9}, ["vocab_size = 1000000000", "65,736 values"]),
        ({"vocab_size": 10**10}, ["vocab_size = 10000000000", "from 1 to 2147483647"]),
        ({"vocab_size": 10**40}, ["vocab_size has 133 bits"]),
        ({"num_attention_heads": True}, ["num_attention_heads = True"]),
        ({"intermediate_size": [64]}, ["intermediate_size = [64]"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps = nan: must be finite"]),
        ({"rope_parameters": {"rope_theta": float("inf")}}, ["rope_theta = inf: must be finite"]),
        ({"id2label": [[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]}, ["nested too deeply"]),
        ({"quantization_config": {"quant_method": "gptq"}}, ["quantised ('gptq')", "bfloat16"]),
        ({"quantization": {"bits": 4, "group_size": 64}}, ["quantization", "bfloat16"]),
    ],
)
def test_configurations_that_no_one_implements(changes, parts, spoiled, tmp_path, refused):
    change_settings(spoiled, **changes)
    message = refused("import", spoiled, tmp_path / "run")
    assert "config.json" in message
    for part in parts:
        assert part in message, message


def test_a_configuration_that_is_not_there(spoiled, tmp_path, refused):
    (spoiled / "config.json").unlink()
    message = refused("import", spoiled, tmp_path / "run")
    assert "config.json does not exist: a folder that transformers saved has one" in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{no", "not valid JSON"),
        ("[]", "expected a JSON object, found a list"),
        ("", "not valid JSON"),
    ],
)
def test_a_configuration_that_is_no_json(text, part, spoiled, tmp_path, refused):
    (spoiled / "config.json").write_text(text)
    assert part in refused("import", spoiled, tmp_path / "run")


def test_a_folder_that_is_not_there(tmp_path, refused):
    assert "gone" in refused("import", tmp_path / "gone", tmp_path / "run")
    assert "gone" in refused("export", tmp_path / "gone", tmp_path / "out")


STRANGE = (None, "strange", -1, 0, 0.5, True, [], [1, "a"], {"a": 1})


@pytest.mark.parametrize("kind", ["bert", "llama", "gemma3_text", "t5", "vit", "falcon"])
def test_strange_values_are_read_or_refused_by_name(kind):
    """No value of any field ends in an error that a user cannot read."""
    transformers = pytest.importorskip("transformers")
    format = FORMATS[kind]
    values = transformers.AutoConfig.for_model(kind, **TINY[kind]).to_dict()
    values["architectures"] = [format.architectures[0].name]
    for field in values:
        for strange in STRANGE:
            try:
                read_checkpoint(HFConfig(values | {field: strange}), FORMATS)
            except ConfigError as error:
                message = str(error)
            except Exception as error:
                raise AssertionError(f"{field} = {strange!r}: {error!r}") from error
            else:
                continue
            assert message.startswith("config.json: ") or f"{field} = {strange!r}" in message


TRIED, PARTS = 150, 30
SECONDS = 5.0


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """One folder with one file of tensors, and one with several."""
    whole = save_tiny("llama", tmp_path_factory.mktemp("models") / "llama")
    save(load(whole), whole.with_name("shards"), max_shard_bytes=60_000)
    return whole, whole.with_name("shards")


def described(folder):
    """All that is understood of a folder before the model runs."""
    side_files(folder)
    opened = open_folder(folder)
    encoder = read_prompt_encoder(folder)
    encoder.plain("the dog runs")
    read_object(folder, GENERATION)
    return opened.checkpoint.config


def problem(source, folder, expected):
    """What is wrong with how a spoiled copy is answered; None if nothing is."""
    started = time.process_time()
    try:
        found = described(folder)
    except (ConfigError, DataError) as error:
        named = str(folder) in str(error) and len(str(error)) < 2000
        wrong = None if named else f"not one sentence that names the file: {error}"
    except BaseException as error:
        return repr(error)
    else:
        same = (folder / "config.json").read_bytes() == (source / "config.json").read_bytes()
        wrong = f"another configuration: {found}" if same and found != expected else None
    return wrong if time.process_time() - started < SECONDS else "too slow"


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.quick("6")
def test_spoiled_folders_are_refused_in_one_sentence(part, sources, tmp_path):
    expected = {source: described(source) for source in sources}
    for seed in range(part, TRIED, PARTS):
        source, dice = sources[seed % 3 == 0], random.Random(seed)
        folder = copy_of(source, tmp_path / str(seed))
        done = dice.choice(ATTACKS)(folder, dice)
        assert problem(source, folder, expected[source]) is None, f"seed {seed}: {done}"
