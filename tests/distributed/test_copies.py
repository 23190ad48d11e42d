"""Sums over the copies of a model: one reduction, and the dropout of all rows together."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tiny_models import tiny
from train_steps import program_of

from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.distributed.copies import sum_over_replicas
from jaxformer.functional import dropout
from jaxformer.functional.dropout import _product

pytestmark = pytest.mark.more


@pytest.mark.parametrize("sizes", [(8, 1, 1), (4, 2, 1), (1, 1, 1)])
def test_the_copies_drop_what_one_device_drops(sizes):
    key, shape = jax.random.key(3), (2, 16, 5, 7)

    def total(key, x):
        return jnp.sum(jnp.cumsum(dropout(x[0], 0.3, key) - dropout(x[1], 0.6, key), 1), 0)

    x = jax.random.normal(jax.random.key(4), shape)
    expected = total(key, x)
    mesh = make_mesh(MeshConfig(*sizes))
    rows = NamedSharding(mesh, PartitionSpec(None, ("data", "fsdp")))
    with jax.set_mesh(mesh):
        cut = jax.jit(partial(sum_over_replicas, total, cut=1))
        found = cut((key, jax.device_put(x, rows)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_product_has_64_bits():
    x = np.array([0, 1, 65535, 65536, 2**31 + 12345, 2**32 - 1], np.uint32)
    for factor in (1, 7, 2**16, 123456789, 2**32 - 1):
        high, low = (np.asarray(part).astype(object) for part in _product(jnp.asarray(x), factor))
        assert list(high * 2**32 + low) == [int(each) * factor for each in x]


def reductions(text):
    """The float32 elements that each all-reduce returns: outside of loops, and inside."""
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
    found = {False: [], True: []}
    for name, body in re.findall(r"^(?:ENTRY )?%?([\w.\-]+) \(.*?\{\n(.*?)^\}", text, re.M | re.S):
        for shapes in re.findall(r"= (.*?) all-reduce(?:-start)?\(", body):
            sizes = re.findall(r"f32\[([\d,]*)\]", shapes)
            found[name in bodies] += [
                int(np.prod([int(n) for n in s.split(",") if n])) for s in sizes
            ]
    return found[False], found[True]


@pytest.mark.parametrize("compares_rows", [False, True])
@pytest.mark.quick("True")
def test_gradients_meet_once_after_all_parts(compares_rows, monkeypatch):
    model = tiny(num_layers=2, compute_dtype="float32", scan_layers=False)
    monkeypatch.setattr(type(model.heads[0]), "compares_rows", compares_rows)
    program = program_of(model, (8, 1, 1), gradient_accumulation=2)
    text = program.lower(16, {"inputs": 8}).compile().as_text()
    outside, inside = reductions(text)
    learned = sum(shape.size for shape in program.abstract_model.shapes.values())
    # With rows that are compared, the copies meet in every part.
    assert (sum(inside) >= learned) == compares_rows
    assert (sum(outside) >= learned) != compares_rows
