"""Models from the hub are those of the same files in a folder, and only what is needed is fetched."""

import jax
import numpy as np
import pytest
from huggingface_hub import constants

import jaxformer


def same(left, right):
    assert left.config == right.config
    jax.tree.map(np.testing.assert_array_equal, dict(left.parameters), dict(right.parameters))


def fetched(hub):
    """The names of the files whose bodies were sent."""
    return {p.rpartition("/")[2] for m, p, _ in hub.requests if m == "GET" and "/resolve/" in p}


def test_a_name_is_the_folder_bit_for_bit(hub, folder):
    loaded = jaxformer.load("org/name")
    same(loaded, jaxformer.load(folder))
    assert loaded.folder.name == hub.repositories["org/name"].commit("main")
    assert loaded.tokenizer is not None
