"""Folders that cannot be read or written: one clear message, and nothing half-written stays."""

import errno
import json
import os
import resource
import shutil
import sys
from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
from saved_folders import change_settings, change_tensors, copy_of, save_tiny

from jaxformer.cli import main as cli
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import describe_model
from jaxformer.hub.hf_config import HFConfig
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.import_run import import_folder
from jaxformer.pretrained.model import Pretrained, save
from jaxformer.training.transfer.origin import open_saved
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

QUERY = "model.layers.1.self_attn.q_proj.weight"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_tiny("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def run_folder(llama):
    import_folder(llama, llama.parent / "imported")
    return llama.parent / "imported"


@pytest.fixture
def spoiled(llama, tmp_path):
    return copy_of(llama, tmp_path / "folder")


@pytest.fixture
def refused(tmp_path, capsys):
    """Runs a command that must fail; returns its message and asserts that it left nothing."""

    def run(*arguments, status=2):
        before = sorted(tmp_path.iterdir())
        assert cli.main([str(argument) for argument in arguments]) == status
        assert sorted(tmp_path.iterdir()) == before
        message = capsys.readouterr().err
        assert message.startswith("error: ")
        assert "Traceback" not in message
        return message

    return run


# Tensors ----------------------------------------------------------------------------------------


def weights_of(folder):
    return folder / "model.safetensors"


def make_pickle(folder):
    weights_of(folder).rename(folder / "pytorch_model.bin")


def make_pt(folder):
    weights_of(folder).rename(folder / "model.pt")


def truncate(folder):
    weights_of(folder).write_bytes(weights_of(folder).read_bytes()[:-10])


def empty(folder):
    weights_of(folder).write_bytes(b"")


def spoil_header(folder):
    data = bytearray(weights_of(folder).read_bytes())
    data[8:20] = b"no json here"
    weights_of(folder).write_bytes(data)


def claim_a_huge_header(folder):
    data = bytearray(weights_of(folder).read_bytes())
    data[:8] = (2**62).to_bytes(8, "little")
    weights_of(folder).write_bytes(data)


def turn(folder):
    change_tensors(folder, lambda tensors: tensors.update({QUERY: tensors[QUERY].T.copy()}))


def drop(folder):
    change_tensors(folder, lambda tensors: tensors.pop(QUERY))


def add(folder):
    change_tensors(folder, lambda tensors: tensors.update(surprise=np.zeros(3, np.float32)))


def no_weights(folder):
    weights_of(folder).unlink()


def index(text):
    def write(folder):
        weights_of(folder).rename(folder / "part.safetensors")
        (folder / INDEX).write_text(text)

    return write


def mapped(**places):
    return index(json.dumps({"weight_map": places}))


@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        (make_pickle, ["pytorch_model.bin", "a pickle", "save_pretrained", "model.safetensors"]),
        (make_pt, ["model.pt", "a pickle", "save_pretrained"]),
        (truncate, ["model.safetensors", "not a whole safetensors file", "fetch it again"]),
        (empty, ["not a whole safetensors file"]),
        (spoil_header, ["not a whole safetensors file"]),
        (claim_a_huge_header, ["not a whole safetensors file"]),
        (turn, [QUERY, "has shape (48, 72), not (72, 48)"]),
        (drop, [f"{QUERY} is missing"]),
        (add, ["surprise is used by nothing"]),
        (no_weights, ["neither model.safetensors nor model.safetensors.index.json"]),
        (index("{no json"), [INDEX, "not valid JSON"]),
        (index("[1, 2]"), [INDEX, "expected a JSON object, found a list"]),
        (index('{"weight_map": {"a": 3}}'), [INDEX, "a file's name is no text"]),
        (mapped(a="../part.safetensors"), ["'../part.safetensors'", "lies outside of"]),
        (mapped(a="/part.safetensors"), ["'/part.safetensors'", "lies outside of"]),
        (mapped(a=".."), ["'..'", "outside"]),
        (mapped(a="gone.safetensors"), ["gone.safetensors does not exist", INDEX]),
        (mapped(a="part.safetensors"), ["says that a is in part.safetensors, where it is not"]),
    ],
)
def test_tensors_that_do_not_fit(spoil, parts, spoiled, tmp_path, refused):
    spoil(spoiled)
    message = refused("import", spoiled, tmp_path / "run")
    for part in parts:
        assert part in message, message


def test_a_tensor_that_two_files_have(spoiled):
    shutil.copy(weights_of(spoiled), spoiled / "a.safetensors")
    weights_of(spoiled).rename(spoiled / "b.safetensors")
    places = {"model.norm.weight": "a.safetensors", QUERY: "b.safetensors"}
    (spoiled / INDEX).write_text(json.dumps({"weight_map": places}))
    with pytest.raises(DataError, match=r"is in a\.safetensors as well"):
        load(spoiled)


def change_one(name, change):
    def spoil(folder):
        change_tensors(folder, lambda tensors: tensors.update({name: change(tensors[name])}))

    return spoil


def with_values(*values):
    """Puts values at the end of a tensor."""

    def change(tensor):
        tensor = tensor.copy()
        tensor.reshape(-1)[-len(values) :] = values
        return tensor

    return change


NORM = "model.norm.weight"
WRONG_WEIGHTS = [
    (change_one(QUERY, with_values(np.nan)), [QUERY, "1 NaN and 0 infinite values among 3,456"]),
    (change_one(NORM, with_values(np.inf, -np.inf)), [NORM, "0 NaN and 2 infinite"]),
    (change_one(QUERY, lambda x: np.full_like(x, np.nan)), [QUERY, "3,456 NaN"]),
    (change_one(QUERY, lambda x: x.astype(np.int32)), [f"{QUERY} holds int32", "quantised"]),
    (change_one(NORM, lambda x: x > 0), [f"{NORM} holds bool"]),
    (change_one(QUERY, lambda x: x.astype(np.int8)), [f"{QUERY} is kept as I8", "quantised"]),
]


def read_all(folder):
    """As --init-from does."""
    saved = open_saved(folder, "--init-from")
    return saved.read(saved.shapes)


@pytest.mark.parametrize(("spoil", "parts"), WRONG_WEIGHTS)
def test_weights_that_cannot_be_right(spoil, parts, spoiled, tmp_path, refused):
    spoil(spoiled)
    np.savez(tmp_path / "in.npz", input_ids=[[1, 2]])
    arrays = ("--inputs", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
    for command in (
        ("import", spoiled, tmp_path / "run"),
        ("export", spoiled, tmp_path / "out"),
        ("forward", spoiled, *arrays),
        ("generate", spoiled, "--prompt", "the dog"),
        ("verify", spoiled),
    ):
        message = refused(*command)
        for part in parts:
            assert part in message, message
    with pytest.raises((ConfigError, DataError), match=parts[0].split()[0]):
        read_all(spoiled)


def test_values_that_a_cast_would_make_infinite(spoiled, tmp_path):
    change_one(QUERY, with_values(1e9))(spoiled)
    for dtype in ("float32", "bfloat16", None):
        load(spoiled, dtype=dtype)
    match = r"q_proj\.weight has values up to 1e\+09, which float16 cannot hold: choose bfloat16"
    with pytest.raises(DataError, match=match):
        load(spoiled, dtype="float16")
    with pytest.raises(DataError, match=match):
        save(load(spoiled), tmp_path / "out", dtype="float16")
    assert not (tmp_path / "out").exists()


def test_a_kernel_of_zeros_is_said(spoiled, caplog):
    load(spoiled)
    assert not caplog.records
    change_one(QUERY, np.zeros_like)(spoiled)
    load(spoiled)
    (record,) = caplog.records
    assert f"1 kernels hold nothing but zeros, as where a file was fetched in part: {QUERY}" in (
        record.getMessage()
    )


@pytest.mark.parametrize("dtype", ["int8", "float7", "float64", 5, "", "int32"])
def test_dtypes_that_weights_cannot_have(dtype, llama, run_folder, tmp_path):
    for folder in (llama, run_folder):
        with pytest.raises(ArgumentError, match=r"dtype = .*: must be one of float32, bfloat16"):
            load(folder, dtype=dtype)
    with pytest.raises(ArgumentError, match=r"dtype = .*: must be one of float32, bfloat16"):
        save(load(llama), tmp_path / "out", dtype=dtype)


def test_a_dtype_may_be_one_of_numpys(llama):
    model = load(llama, dtype=np.float32)
    assert model.config.compute_dtype == "float32"
    assert {str(x.dtype) for x in model.parameters.values()} == {"float32"}


@pytest.mark.parametrize("size", ["nan", "inf", "0", "-1"])
def test_sizes_that_no_file_has(size, llama, tmp_path, refused):
    message = refused("export", llama, tmp_path / "out", "--max-shard-gb", size)
    assert "--max-shard-gb" in message
    assert "must be positive and finite" in message
    with pytest.raises(ArgumentError, match="max_shard_bytes = "):
        save(load(llama), tmp_path / "out", max_shard_bytes=min(float(size), 0))


# Files ------------------------------------------------------------------------------------------


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
        assert "outside of the model's folder" in message
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
    assert f"make one of it first: python -m jaxformer import {llama} RUN_DIR" in message


# Configurations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model_type": "lama"}, ["model_type = 'lama'", "'llama'", "must be one of albert, "]),
        ({"model_type": None}, ["model_type = None", "must be one of albert, "]),
        ({"model_type": ["llama"]}, ["model_type = ['llama']"]),
        ({"architectures": ["LlamaForCausalLN"]}, ["LlamaForCausalLN", "'LlamaForCausalLM'"]),
        ({"architectures": "LlamaForCausalLM"}, ["architectures"]),
        ({"hidden_act": "foo"}, ["hidden_act = 'foo'", "'silu'"]),
        ({"hidden_act": ["silu"]}, ["hidden_act = ['silu']"]),
        ({"attention_sinks": 4}, ["attention_sinks = 4", "not known for model_type 'llama'"]),
        ({"rope_parameters": {"rope_type": "spiral"}}, ["spiral", "linear"]),
        ({"rope_parameters": "llama3"}, ["rope_parameters = 'llama3'"]),
        ({"hidden_size": "48"}, ["hidden_size = '48'", "must be a number"]),
        ({"hidden_size": 0}, ["model_dim = 0"]),
        ({"num_hidden_layers": -1}, ["num_layers = -1"]),
        ({"num_attention_heads": 5}, ["num_heads"]),
        ({"vocab_size": None}, ["vocab_size = None"]),
        ({"attention_bias": "yes"}, ["attention_bias = 'yes'"]),
        ({"tie_word_embeddings": 7}, ["tie_embeddings = 7", "True or False"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers = 1000000000", "10,000 at most"]),
        ({"num_hidden_layers": 1.5}, ["num_layers = 1.5"]),
        ({"hidden_size": 48 * 10**7}, ["model_dim = 480000000", "no more than"]),
        ({"vocab_size": 10**9}, ["vocab_size = 1000000000", "no more than"]),
        ({"vocab_size": 10**10}, ["vocab_size = 10000000000", "from 1 to 2147483647"]),
        ({"vocab_size": 10**40}, ["vocab_size has 133 bits"]),
        ({"num_attention_heads": True}, ["num_attention_heads = True"]),
        ({"intermediate_size": [64]}, ["intermediate_size = [64]"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps = nan: must be finite"]),
        ({"rope_parameters": {"rope_theta": float("inf")}}, ["rope_theta = inf: must be finite"]),
        ({"id2label": [[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]}, ["nested too deeply"]),
        ({"quantization_config": {"quant_method": "gptq"}}, ["quantised ('gptq')", "bfloat16"]),
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


# What is written --------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["import", "export"])
def test_an_output_folder_that_is_not_empty(command, llama, tmp_path, refused, monkeypatch):
    target = tmp_path / "out"
    target.mkdir()
    (target / "precious").write_text("mine")
    monkeypatch.setattr("jaxformer.pretrained.auto.load_folder", None)  # refused before it is read
    message = refused(command, llama, target)
    assert f"{target} is not empty: name a new or an empty folder" in message
    assert [item.name for item in target.iterdir()] == ["precious"]
    assert "precious is not empty" in refused(command, llama, target / "precious")


@pytest.mark.parametrize("command", ["import", "export"])
def test_too_small_a_disk(command, llama, tmp_path, refused, monkeypatch):
    usage = namedtuple("usage", "total used free")(10**12, 10**12 - 5000, 5000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    message = refused(command, llama, tmp_path / "deep" / "out")
    assert "the disk has 0.00 GB free" in message


def test_a_disk_that_is_full_while_weights_are_written(llama, tmp_path, refused):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        message = refused("export", llama, tmp_path / "deep" / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot be written, and nothing of it was" in message


@pytest.mark.parametrize("command", ["import", "export"])
def test_a_disk_that_is_full_at_the_end(command, llama, tmp_path, refused, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fail)
    message = refused(command, llama, tmp_path / "out")
    assert "No space left on device" in message


def test_a_run_is_not_imported(run_folder, tmp_path, refused):
    message = refused("import", run_folder, tmp_path / "again")
    assert "this is a run already" in message


def test_a_run_is_not_verified(run_folder, refused):
    message = refused("verify", run_folder)
    assert f"export it first: python -m jaxformer export {run_folder} OUT_DIR" in message


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_verify_says_what_it_needs(missing, llama, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    message = refused("verify", llama)
    assert f"needs {missing}: pip install 'jaxformer[parity]'" in message
    assert not (llama / "receipt.json").exists()


def test_a_model_that_no_format_can_say(llama, tmp_path):
    model = load(llama)
    config = replace(model.config, logit_softcap=30.0)
    checkpoint = describe_model(config, [FORMATS["bert"], FORMATS["llama"]], {})
    with pytest.raises(ConfigError, match=r"nearest: .*'llama' cannot say logit_softcap = 30\.0"):
        save(Pretrained(checkpoint, model.parameters), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_format_of_files_that_there_is_not(llama, tmp_path):
    with pytest.raises(ConfigError, match="format = 'gguf': only 'hf'"):
        save(load(llama), tmp_path / "out", format="gguf")
    assert not list(tmp_path.iterdir())


# Every field of every system --------------------------------------------------------------------

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
