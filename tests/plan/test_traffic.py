"""What a step sends, as its trace says."""

from math import prod

import pytest
from plan_cases import traced

from jaxformer.plan.traffic import collectives


def by_kind(mesh, remat="none"):
    found = collectives(traced(mesh, remat))
    assert [each.bytes for each in found] == sorted((each.bytes for each in found), reverse=True)
    return {(each.kind, each.axes): each.bytes for each in found}


def kernels(step):
    """Bytes of the parameters of all products of the blocks, in the compute dtype."""
    shapes = step.train_program.abstract_model.shapes
    return sum(2 * prod(x.shape) for name, x in shapes.items() if name.endswith("kernel"))


def test_copies_of_a_model_sum_their_gradients_alone():
    found = by_kind((4, 1, 1))
    assert not any(kind == "all-gather" for kind, _ in found)
    shapes = traced((4, 1, 1)).train_program.abstract_model.shapes
    gradients = sum(4 * prod(x.shape) for x in shapes.values())
    assert 0.5 * gradients < found["all-reduce", ("data",)] < 1.1 * gradients


@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_cut_model_is_gathered_and_its_gradients_scattered(remat):
    found = by_kind((1, 4, 1), remat)
    kernel = kernels(traced((1, 4, 1)))
    # Its layers are not in a loop, so what the forward pass gathers is there in the backward pass.
    assert kernel <= found["all-gather", ("fsdp",)] < 6 * kernel
    assert found["reduce-scatter", ("fsdp",)] >= 2 * kernel


def test_heads_on_several_devices_sum_activations():
    found = by_kind((2, 1, 2))
    step = traced((2, 1, 2))
    model, rows = step.config.model, step.config.data.batch_size // 2
    one = rows * step.config.row_lengths["inputs"] * model.model_dim * 2
    assert found["all-reduce", ("tensor",)] >= 4 * model.num_layers * one


def test_one_device_sends_nothing():
    assert collectives(traced((1, 1, 1))) == []
