"""Weights that cannot be read, be right or be written: one clear message, and nothing is left."""

import errno
import json
import resource
import shutil
import sys
from collections import namedtuple

import numpy as np
import pytest
from saved_folders import change_tensors

from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.hub.describe import describe_model
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.model import Pretrained, described_by
from jaxformer.pretrained.writing import save
from jaxformer.training.transfer.origin import open_named
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

QUERY = "model.layers.1.self_attn.q_proj.weight"
INDEX = "model.safetensors.index.json"


def weights_of(folder):
    return folder / "model.safetensors"


def renamed_to(name):
    return lambda folder: weights_of(folder).rename(folder / name)


def rewritten(change):
    """Changes the bytes of the file."""
    return lambda folder: weights_of(folder).write_bytes(change(weights_of(folder).read_bytes()))


def change_one(name, change):
    def spoil(folder):
        change_tensors(folder, lambda tensors: tensors.update({name: change(tensors[name])}))

    return spoil


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
        (
            renamed_to("pytorch_model.bin"),
            ["pytorch_model.bin", "a pickle", "save_pretrained", "model.safetensors"],
        ),
        (renamed_to("model.pt"), ["model.pt", "a pickle", "save_pretrained"]),
        (
            rewritten(lambda data: data[:-10]),
            ["model.safetensors", "not a complete safetensors file", "fetch it again"],
        ),
        (rewritten(lambda data: b""), ["not a complete safetensors file"]),
        (
            rewritten(lambda data: data[:8] + b"no json here" + data[20:]),
            ["not a complete safetensors file"],
        ),
        (
            rewritten(lambda data: (2**62).to_bytes(8, "little") + data[8:]),
            ["not a complete safetensors file"],
        ),
        (change_one(QUERY, lambda x: x.T.copy()), [QUERY, "has shape (48, 72), not (72, 48)"]),
        (drop, [f"{QUERY} is missing"]),
        (add, ["surprise"]),
        (no_weights, ["neither model.safetensors nor model.safetensors.index.json"]),
        (index("{no json"), [INDEX, "not valid JSON"]),
        (index("[1, 2]"), [INDEX, "expected a JSON object, found a list"]),
        (index('{"weight_map": {"a": 3}}'), [INDEX, "weight_map has 3 for a"]),
        (mapped(a="../part.safetensors"), ["'../part.safetensors'", "outside of"]),
        (mapped(a="/part.safetensors"), ["'/part.safetensors'", "outside of"]),
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
    (change_one(QUERY, lambda x: x.astype(np.int8)), [QUERY, "I8", "bfloat16"]),
]


def read_all(folder):
    """As --init-from does."""
    saved = open_named(folder, "init_from")
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
    assert record.getMessage().endswith(f": {QUERY}")


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


@pytest.mark.parametrize("command", ["import", "export"])
def test_an_output_folder_that_is_not_empty(command, llama, tmp_path, refused, monkeypatch):
    target = tmp_path / "out"
    target.mkdir()
    (target / "precious").write_text("mine")
    monkeypatch.setattr(
        "jaxformer.pretrained.hf_folder.open_folder", None
    )  # refused before it is read
    message = refused(command, llama, target)
    assert f"{target} is not empty: name a new or empty folder" in message
    assert [item.name for item in target.iterdir()] == ["precious"]
    assert "precious is a file: name a new or empty folder" in refused(
        command, llama, target / "precious"
    )


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
    assert "; nothing was written" in message


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
    extra = {"torch": "parity", "transformers": "hub"}[missing]
    assert f"needs {missing}: pip install 'jaxformer[{extra}]'" in message
    assert not (llama / "receipt.json").exists()


def test_a_model_that_no_format_can_say(llama, tmp_path):
    model = load(llama)
    config = model.config.with_fields(**{"logits.softcap": 30.0})
    checkpoint = describe_model(config, [FORMATS["bert"], FORMATS["llama"]], {})
    with pytest.raises(
        ConfigError, match=r"nearest: .*'llama' .*logits\.softcap = 30\.0 \(it has None\)"
    ):
        save(Pretrained(config, model.parameters, described_by(checkpoint)), tmp_path / "out")
    assert not list(tmp_path.iterdir())
