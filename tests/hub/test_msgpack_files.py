"""The msgpack files of Flax: the bytes that Flax writes, and one sentence for any others."""

import contextlib
import json

import flax.serialization
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from flax.serialization import msgpack_serialize
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxformer.errors import DataError
from jaxformer.hub.weights import msgpack_files
from jaxformer.hub.weights.msgpack_files import INDEX, SINGLE, MsgpackFiles, write_tree
from jaxformer.hub.weights.msgpack_tree import SCALAR, Leaf, leaves_of
from jaxformer.hub.weights.tensors import Tensor

DTYPES = [np.float32, np.float16, jnp.bfloat16, np.float64, np.int32, np.int64, np.uint8, np.bool_]
KEYS = st.text("abkernl_0189", min_size=1, max_size=40)


@st.composite
def arrays(draw):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    values = draw(hnp.arrays(np.int8, shape, elements=st.integers(0, 1)))
    return values.astype(draw(st.sampled_from(DTYPES)))


TREES = st.recursive(
    arrays(), lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=4), max_leaves=20
).filter(lambda tree: isinstance(tree, dict))


def flat(tree, path=()):
    """The arrays of a tree by their paths, in the order in which Flax writes them."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {at: x for key in sorted(tree) for at, x in flat(tree[key], (*path, key)).items()}


def described(leaves):
    return [
        Leaf(path, Tensor(x.shape, x.dtype), 1 if isinstance(x, np.ndarray) else SCALAR)
        for path, x in leaves.items()
    ]


@given(tree=TREES)
def test_the_bytes_are_those_of_flax_and_are_read_again(tree, tmp_path_factory):
    folder, leaves = tmp_path_factory.mktemp("tree"), flat(tree)
    write_tree(folder / SINGLE, described(leaves), leaves.values())
    assert (folder / SINGLE).read_bytes() == msgpack_serialize(tree)
    files = MsgpackFiles(folder)
    assert list(files.tensors) == [".".join(path) for path in leaves]
    for path, array in leaves.items():
        read = files.read(".".join(path))
        assert (read.shape, read.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("shape", [(50,), (7, 3), (2, 3, 4), (0, 9)])
def test_large_arrays_are_in_pieces(shape, tmp_path, monkeypatch):
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 40)
    tree = {"a": {"b": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)}, "c": np.ones(3)}
    (tmp_path / SINGLE).write_bytes(msgpack_serialize(tree))
    files = MsgpackFiles(tmp_path)
    np.testing.assert_array_equal(files.read("a.b"), tree["a"]["b"])
    write_tree(tmp_path / "again", described(flat(tree)), flat(tree).values(), chunk=40)
    assert (tmp_path / "again").read_bytes() == (tmp_path / SINGLE).read_bytes()


def test_scalars_of_numpy_are_arrays_without_axes(tmp_path):
    tree = {"logit_scale": np.float32(2.5)}
    (tmp_path / SINGLE).write_bytes(msgpack_serialize(tree))
    assert MsgpackFiles(tmp_path).read("logit_scale") == np.float32(2.5)
    (leaf,) = leaves_of(tmp_path / SINGLE)
    assert leaf.code == SCALAR
    write_tree(tmp_path / "again", described(flat(tree)), [np.full((), 2.5)])
    assert (tmp_path / "again").read_bytes() == (tmp_path / SINGLE).read_bytes()


# Files that are damaged, or lie -----------------------------------------------------------------

WEIGHT = np.ones((2, 3), np.float32)
TREE = {"dense": {"kernel": WEIGHT, "bias": np.ones(3, np.float32)}}


VALUES = WEIGHT.tobytes()


def inner(shape=(2, 3), dtype="float32", data=VALUES):
    return msgpack.packb((shape, dtype, data), use_bin_type=True)


def tree_with(value):
    return msgpack.packb({"dense": {"kernel": value}})


def extension(code=1, data=None, **parts):
    return tree_with(msgpack.ExtType(code, inner(**parts) if data is None else data))


def nested(depth):
    tree = {"w": np.ones(1, np.float32)}
    for _ in range(depth):
        tree = {"a": tree}
    return msgpack_serialize(tree)


def pieces(shape, chunks):
    return {"__msgpack_chunked_array__": True, "shape": shape, "chunks": chunks}


GOOD = msgpack_serialize(TREE)
KERNEL = b"\xa6kernel"
BAD = {
    "empty": (b"", ["is empty"]),
    "cut off": (GOOD[:-10], ["dense/kernel", "the file ends"]),
    "cut off in a size": (GOOD[:3], ["ends in the middle"]),
    "more after it": (GOOD + b"\xc0", ["1 bytes follow"]),
    "a list": (msgpack.packb([1, 2]), ["has a list where"]),
    "a pointer of git lfs": (b"version https://git-lfs.github.com/spec/v1\n", ["has a number"]),
    "too deep": (nested(40), ["nested more than 32 deep"]),
    "a number": (tree_with(3), ["dense/kernel", "a number, not an array"]),
    "a text": (tree_with("x"), ["dense/kernel", "a text, not an array"]),
    "nil": (tree_with(None), ["dense/kernel", "nothing (nil), not an array"]),
    "a list of numbers": (tree_with([1.0]), ["dense/kernel", "a list, not an array"]),
    "an object": (extension(code=42), ["dense/kernel", "unknown type 42"]),
    "a complex number": (extension(code=2), ["dense/kernel", "unknown type 2"]),
    "a key that is a number": (msgpack.packb({1: 2}), ["a key is a number, not a text"]),
    "a key that leads elsewhere": (msgpack.packb({"a/b": 2}), ["'a/b' is not the name"]),
    "objects": (extension(dtype="object"), ["dense/kernel", "dtype 'object'", "float32"]),
    "texts": (extension(dtype="<U4"), ["dense/kernel", "dtype '<U4'"]),
    "a larger shape": (extension(shape=(2, 4)), ["dense/kernel", "[2, 4], 32 bytes", "24 bytes"]),
    "a vast shape": (extension(shape=(2**60, 2**40)), ["dense/kernel", "has 24 bytes"]),
    "a vast shape of nothing": (
        extension(data=inner((2**60, 0), data=b"")),
        ["dense/kernel", "is float32"],
    ),
    "a negative shape": (extension(shape=(-2, -3)), ["dense/kernel", "a number for a size"]),
    "a shape of texts": (extension(shape=("2", "3")), ["dense/kernel", "a text for a size"]),
    "no shape": (extension(shape=6), ["dense/kernel", "a number for its shape"]),
    "values as a text": (extension(data=msgpack.packb(([2, 3], "float32", "x"))), ["a text"]),
    "more in an array": (extension(data=inner() + b"\xc0"), ["dense/kernel", "size that differs"]),
    "nothing in an array": (extension(data=b""), ["dense/kernel", "ends in the middle"]),
    "a key twice": (
        b"\x81\xa5dense\x82" + 2 * (KERNEL + msgpack.packb(msgpack.ExtType(1, inner()))),
        ["'kernel'"],
    ),
    "pieces that do not fit": (
        tree_with(pieces({"0": 9}, {"0": msgpack.ExtType(1, inner((6,)))})),
        ["dense/kernel", "shape [9] whose pieces have 6"],
    ),
    "pieces without numbers": (
        tree_with(pieces({"1": 9}, {})),
        ["dense/kernel", "not numbered from 0"],
    ),
    "a size of 4 GiB": (
        b"\x81\xa1a\xc9\xff\xff\xff\xff\x01",
        ["a: says that it has 4,294,967,295"],
    ),
    "as many keys": (b"\xdf\xff\xff\xff\xff\xa1a", ["more than 1,000,000 keys"]),
    "a long name": (b"\x81\xdb\xff\xff\xff\xff", ["a name has 4,294,967,295 bytes"]),
    "a name in no encoding": (b"\x81\xa2\xff\xfe\xc0", ["is not UTF-8"]),
}


@pytest.mark.parametrize(("data", "words"), BAD.values(), ids=BAD)
def test_a_bad_file_is_one_sentence(data, words, tmp_path):
    (tmp_path / SINGLE).write_bytes(data)
    with pytest.raises(DataError) as found:
        MsgpackFiles(tmp_path)
    message = str(found.value)
    assert str(tmp_path / SINGLE) in message
    assert "\n" not in message
    for word in words:
        assert word in message


@given(data=st.data())
def test_any_other_bytes_are_refused_or_read(data, tmp_path_factory):
    folder, spoiled = tmp_path_factory.mktemp("spoiled"), bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    (folder / SINGLE).write_bytes(spoiled[: data.draw(st.integers(1, len(spoiled)))])
    with contextlib.suppress(DataError):
        files = MsgpackFiles(folder)
        assert all(files.read(name).shape == x.shape for name, x in files.tensors.items())


# Several files ----------------------------------------------------------------------------------


def shard(folder, index, **files):
    for name, tree in files.items():
        (folder / f"{name}.msgpack").write_bytes(msgpack_serialize(tree))
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))


def test_several_files_are_one_tree(tmp_path):
    places = {"a/b": "x.msgpack", "a/c": "y.msgpack"}
    shard(tmp_path, places, x={"a": {"b": WEIGHT}}, y={"a": {"c": WEIGHT}})
    assert list(MsgpackFiles(tmp_path).tensors) == ["a.b", "a.c"]
    assert msgpack_files.has_msgpack(tmp_path)


@pytest.mark.parametrize(
    ("index", "files", "words"),
    [
        ({"a/b": "x.msgpack"}, {}, "x.msgpack does not exist, though flax_model.msgpack.index"),
        ({"a/b": "../x.msgpack"}, {}, "outside of"),
        ({"a/b": "x.msgpack"}, {"x": {"a": {"c": WEIGHT}}}, "says that a/b is in x.msgpack, where"),
        ({"a/b": 3}, {}, "must be the name of a file"),
        (
            {"a/b": "x.msgpack", "a/c": "y.msgpack"},
            {"x": {"a": {"b": WEIGHT}}, "y": {"a": {"b": WEIGHT, "c": WEIGHT}}},
            "a/b is in x.msgpack as well",
        ),
    ],
)
def test_an_index_that_lies_is_one_sentence(index, files, words, tmp_path):
    shard(tmp_path, index, **files)
    with pytest.raises(DataError, match=words):
        MsgpackFiles(tmp_path)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_bytes(GOOD)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / SINGLE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="which is outside of the model's folder"):
        MsgpackFiles(tmp_path / "model")


def test_what_is_not_finite_is_not_written(tmp_path):
    array = Leaf(("a", "b"), Tensor((2,), np.dtype(np.float16)))
    with pytest.raises(DataError, match="a/b has values up to 1e\\+06"):
        write_tree(tmp_path / SINGLE, [array], [np.full(2, 1e6, np.float32)])
