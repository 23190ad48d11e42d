"""The layout of weight files: the same bytes again, in one file or in several."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jaxformer.errors import DataError
from jaxformer.hub.weights.file_layout import FileLayout
from jaxformer.hub.weights.tensors import INDEX
from jaxformer.pretrained.auto import load
from jaxformer.zoo import FORMATS

TENSORS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.arange(4).astype(jnp.bfloat16),
    "c": np.arange(3, dtype=np.float16),
}


def write(folder, shards):
    folder.mkdir()
    places = {}
    for name, tensors in shards.items():
        part = {tensor: TENSORS[tensor] for tensor in tensors}
        safetensors.numpy.save_file(part, folder / name, {"format": "pt", "made": "elsewhere"})
        places |= dict.fromkeys(tensors, name)
    if len(shards) > 1:
        (folder / INDEX).write_text(json.dumps({"weight_map": places, "metadata": {}}))
    return folder


@pytest.mark.parametrize(
    "shards", [{"model.safetensors": "abc"}, {"x.safetensors": "b", "y.safetensors": "ac"}]
)
def test_the_same_bytes_are_written_again(tmp_path, shards):
    theirs, ours = write(tmp_path / "theirs", shards), tmp_path / "ours"
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
    tensors = safetensors.numpy.load_file(file)
    tensors = {name.removeprefix("transformer."): x for name, x in tensors.items()}
    tensors["lm_head.weight"] = tensors["wte.weight"]
    safetensors.numpy.save_file(tensors, file, {"format": "pt"})
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
    safetensors.numpy.save_file(tensors, theirs / "model.safetensors", {"format": "pt"})
    layout = FileLayout.of_folder(theirs)
    known = [] if shape == (1, 4) else ["embeddings.position_ids"]
    assert layout.counted == known
    assert layout.tensors.keys() == tensors.keys() - set(known)
    layout.write(tmp_path / "layout.json")
    FileLayout.read(tmp_path / "layout.json").write_tensors(ours, tensors.__getitem__)
    written = (ours / "model.safetensors").read_bytes()
    assert written == (theirs / "model.safetensors").read_bytes()
