"""Files of tensors, in one or in several: read back bit for bit, and written again as they were."""

import json

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from jaxformer.errors import DataError
from jaxformer.hub.weights.file_layout import FileLayout
from jaxformer.hub.weights.tensors import INDEX, SINGLE, Tensor, TensorFiles, write_tensors
from jaxformer.pretrained.auto import load
from jaxformer.zoo import FORMATS

TENSORS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.arange(4).astype(jnp.bfloat16),
    "c": np.arange(3, dtype=np.float16),
}


def write_shards(folder, shards):
    folder.mkdir()
    places = {}
    for name, tensors in shards.items():
        part = {tensor: TENSORS[tensor] for tensor in tensors}
        save_file(part, folder / name, {"format": "pt", "made": "elsewhere"})
        places |= dict.fromkeys(tensors, name)
    if len(shards) > 1:
        (folder / INDEX).write_text(json.dumps({"weight_map": places, "metadata": {}}))
    return folder


@pytest.mark.parametrize(
    "shards", [{"model.safetensors": "abc"}, {"x.safetensors": "b", "y.safetensors": "ac"}]
)
def test_the_same_bytes_are_written_again(tmp_path, shards):
    theirs, ours = write_shards(tmp_path / "theirs", shards), tmp_path / "ours"
    layout = FileLayout.of_folder(theirs)
    layout.write(tmp_path / "layout.json")
    assert FileLayout.read(tmp_path / "layout.json") == layout
    ours.mkdir()
    layout.write_tensors(ours, lambda name: TENSORS[name].astype(np.float32))
    assert sorted(p.name for p in ours.iterdir()) == sorted(p.name for p in theirs.iterdir())
    for file in theirs.iterdir():
        assert (ours / file.name).read_bytes() == file.read_bytes()
    assert layout.usual_dtype == np.float32
    assert layout.largest == (24 if len(shards) > 1 else 38)


def test_a_damaged_layout_is_one_sentence(tmp_path):
    (tmp_path / "layout.json").write_text('{"other": 1}')
    with pytest.raises(DataError, match="must have the headers of safetensors files"):
        FileLayout.read(tmp_path / "layout.json")


@pytest.mark.torch
def test_names_as_in_the_file_and_copies_are_found(tmp_path):
    """GPT-2's own file: without a prefix, and with the embedding a second time."""
    from hf_checkpoints import save_checkpoint

    folder = save_checkpoint("gpt2", tmp_path / "model")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors = {name.removeprefix("transformer."): x for name, x in tensors.items()}
    tensors["lm_head.weight"] = tensors["wte.weight"]
    save_file(tensors, file, {"format": "pt"})
    model, layout = load(folder, dtype=None), FileLayout.of_folder(folder)
    sources = layout.sources(FORMATS["gpt2"], model.placements)
    assert sources.keys() == tensors.keys()
    assert sources["lm_head.weight"] == sources["wte.weight"]
    assert layout.sources(FORMATS["gpt2"], model.placements[1:]) is None


@pytest.mark.parametrize("shape", [(1, 5), (5,), (1, 4)])
def test_position_ids_are_written_again(tmp_path, shape):
    """As older BERTs have them. Other integers are not known to be those of positions."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    counted = np.broadcast_to(np.arange(shape[-1]), shape)
    tensors = TENSORS | {"embeddings.position_ids": counted.copy(), "others": counted + 1}
    tensors["embeddings.position_ids"] += shape == (1, 4)
    theirs.mkdir()
    ours.mkdir()
    save_file(tensors, theirs / "model.safetensors", {"format": "pt"})
    layout = FileLayout.of_folder(theirs)
    known = [] if shape == (1, 4) else ["embeddings.position_ids"]
    assert layout.counted == known
    assert layout.tensors.keys() == tensors.keys() - set(known)
    layout.write(tmp_path / "layout.json")
    FileLayout.read(tmp_path / "layout.json").write_tensors(ours, tensors.__getitem__)
    written = (ours / "model.safetensors").read_bytes()
    assert written == (theirs / "model.safetensors").read_bytes()


DTYPES = [np.dtype(x) for x in (np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.bool_)]


def described(tensors):
    return {name: Tensor(array.shape, array.dtype) for name, array in tensors.items()}


def write(folder, tensors, max_bytes=10**9):
    return write_tensors(folder, described(tensors), tensors.items(), max_bytes)


def random(shape, dtype, seed=0):
    return (10 * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=6),
    st.sampled_from(DTYPES),
    st.integers(1, 300),
)
def test_what_is_written_is_read(tmp_path_factory, shapes, dtype, max_bytes):
    folder = tmp_path_factory.mktemp("files")
    tensors = {f"t{n}": random(shape, dtype, n) for n, shape in enumerate(shapes)}
    total = write(folder, tensors, max_bytes)
    assert total == sum(array.nbytes for array in tensors.values())
    files = TensorFiles(folder)
    assert files.tensors == described(tensors)
    for name, array in tensors.items():
        assert files.read(name).tobytes() == array.tobytes()
    theirs = {
        name: x for path in folder.glob("*.safetensors") for name, x in load_file(path).items()
    }
    assert {name: x.tobytes() for name, x in theirs.items()} == {
        name: x.tobytes() for name, x in tensors.items()
    }


def test_shards_are_full_and_named(tmp_path):
    tensors = {name: random((10,), np.float32) for name in "abcde"} | {
        "f": random((90,), np.float32)
    }
    write(tmp_path, tensors, max_bytes=100)
    files = [f"model-{n:05d}-of-00004.safetensors" for n in (1, 2, 3, 4)]
    assert sorted(item.name for item in tmp_path.iterdir()) == [*files, INDEX]
    index = json.loads((tmp_path / INDEX).read_text())
    expected = dict(zip("abcdef", [files[n] for n in (0, 0, 1, 1, 2, 3)], strict=True))
    assert index == {"metadata": {"total_size": 560}, "weight_map": expected}


def test_tensors_are_turned_and_cast(tmp_path):
    array = random((5, 7), np.float32)
    kind = Tensor((7, 5), np.dtype(ml_dtypes.bfloat16))
    write_tensors(tmp_path, {"x": kind}, [("x", array.T)], 1000)
    expected = array.T.astype(ml_dtypes.bfloat16)
    assert TensorFiles(tmp_path).read("x").tobytes() == expected.tobytes()
    with safe_open(tmp_path / SINGLE, "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_what_comes_must_be_what_was_announced(tmp_path):
    kinds = {"x": Tensor((3,), np.dtype(np.float32))}
    with pytest.raises(ValueError, match=r"y .* x"):
        write_tensors(tmp_path, kinds, [("y", np.zeros(3, np.float32))], 1000)


def test_tensors_that_do_not_begin_at_a_multiple_of_their_size(tmp_path):
    """A header may have any length."""
    text = json.dumps({"x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    text += b" " * ((5 - len(text)) % 8)
    array = random((2, 3), np.float32)
    data = len(text).to_bytes(8, "little") + text + array.tobytes()
    (tmp_path / SINGLE).write_bytes(data)
    np.testing.assert_array_equal(TensorFiles(tmp_path).read("x"), array)


def test_a_dtype_that_no_array_has(tmp_path):
    save_file({"x": random((4,), ml_dtypes.float8_e4m3fn)}, tmp_path / SINGLE)
    with pytest.raises(DataError, match=r"x .*F8_E4M3.*F64, F32"):
        TensorFiles(tmp_path)


def test_reading_does_not_keep_the_file_open(tmp_path):
    write(tmp_path, {"x": random((4,), np.float32)})
    read = TensorFiles(tmp_path).read("x")
    (tmp_path / SINGLE).unlink()
    assert np.isfinite(read).all()
    assert not read.flags.writeable
