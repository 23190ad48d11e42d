"""The work of a step: what it computes, saves and sends."""

from dataclasses import replace
from math import prod

import pytest
from plan_cases import tiny, traced

from jaxformer.config import load_config
from jaxformer.config.shipped import config_spec
from jaxformer.distributed import MeshConfig
from jaxformer.distributed.slices import parse_chips
from jaxformer.nn.config import RematNames
from jaxformer.plan.closed_form import (
    layer_products,
    recomputed_products,
    saved_bytes,
    sent,
    work_of,
)
from jaxformer.plan.program import each_operation
from jaxformer.plan.trace import trace_step

SLICE = parse_chips("v5e:2x2")


def test_less_rematerialisation_keeps_more():
    model = tiny().model
    kept = [saved_bytes(replace(model, remat=remat), 64) for remat in ("none", "dots", "full")]
    assert kept[0] > kept[1] > kept[2] == model.num_layers * 64 * model.model_dim * 2
    assert saved_bytes(model, 64, tensor=2) < kept[0]


def test_each_axis_sends_what_is_its_own():
    model = tiny().model
    sizes = {"parameters": 10**9, "tokens": 64}
    assert sent(model, {"data": 1, "fsdp": 1, "tensor": 1}, **sizes) == ()
    found = sent(model, {"data": 2, "fsdp": 4, "tensor": 2}, **sizes, parts=3)
    assert {(each.kind, each.axes): each.bytes for each in found[:3]} == {
        ("all-gather", ("fsdp",)): 3 * 2 * 2 * 10**9 // 2,
        ("reduce-scatter", ("fsdp",)): 3 * 4 * 10**9 // 2,
        ("all-reduce", ("data",)): 3 * 4 * 10**9 // 8,
    }
    assert found[3].axes == ("tensor",)


def test_layers_that_share_parameters_gather_them_each_time():
    model = tiny().model
    sizes = {"parameters": 1, "tokens": 64}
    (gathered, scattered) = sent(model, {"data": 1, "fsdp": 4, "tensor": 1}, **sizes)
    used = model.num_layers * sum(layer_products(model).values())
    assert (gathered.bytes, scattered.bytes) == (2 * 2 * used, 4 * used)


@pytest.mark.parametrize(
    ("remat", "parts"),
    [
        ("none", set()),
        ("dots", {"attention"}),
        ("full", {"query", "key", "value", "attention", "output", "mlp"}),
        (RematNames(save=("attention_context", "mlp_hidden")), {"query", "key", "value", "output"}),
        (RematNames(offload=("query_key_value",)), {"attention", "output", "mlp"}),
    ],
)
def test_what_is_not_saved_is_recomputed(remat, parts):
    assert recomputed_products(tiny((1, 1, 1), remat).model).keys() == parts


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.quick("full")
def test_the_products_are_those_of_the_trace(remat):
    step = traced((1, 4, 1), remat)
    total = 0.0

    def visit(op, times):
        nonlocal total
        if op.name == "dot_general" and "attention/" not in op.results[0].source:
            (contracted, _), _ = op.equation.params["dimension_numbers"]
            factor = prod(op.operands[0].shape[axis] for axis in contracted)
            # A gradient is computed for the device's own rows before it is scattered.
            whole = op.results[0].sharding.mesh.shape["fsdp"] if gradient(op) else 1
            total += 2.0 * times * factor * prod(op.results[0].shape) * whole

    def gradient(op):
        (contracted, _), _ = op.equation.params["dimension_numbers"]
        return "fsdp" in op.operands[0].axes_of(contracted) & op.results[0].axes

    each_operation(step.program, visit)
    assert work_of(step.config, step.slice).products == pytest.approx(total, rel=0.05)


@pytest.mark.parametrize(("mesh", "count"), [((4, 1, 1), 1), ((1, 4, 1), 2), ((2, 1, 2), 2)])
def test_each_axis_has_its_collectives(mesh, count):
    found = work_of(tiny(mesh), SLICE).collectives
    assert len(found) == count
    assert {axis for each in found for axis in each.axes} == {
        axis for axis, size in zip(("data", "fsdp", "tensor"), mesh, strict=True) if size > 1
    }
    assert work_of(tiny(), parse_chips("v5e:1x1")).collectives == ()


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.quick("full")
def test_mixtures_exchange_tokens_and_divide_their_state(remat):
    config = load_config(config_spec("tiny_experts"))
    mesh, model = MeshConfig(fsdp=2, expert=2), replace(config.model, remat=remat)
    step = trace_step(replace(config, mesh=mesh, model=model), SLICE)
    sent = dict.fromkeys(("all_gather", "reduce_scatter"), 0)

    def visit(op, times):
        shapes = [x for x in (*op.operands, *op.results) if x is not None]
        if op.name in sent and shapes[0].shape[-1] == model.model_dim:
            sent[op.name] += times * max(x.bytes for x in shapes)

    each_operation(step.program, visit)
    work = work_of(step.config, SLICE)
    found = {(each.kind, each.axes): each.bytes for each in work.collectives}
    assert found["all-gather", ("expert",)] == sent["all_gather"]
    assert found["reduce-scatter", ("expert",)] == sent["reduce_scatter"]
    own = sum(
        prod(x.sharding.shard_shape(x.shape))
        for x in step.train_program.state_shapes.params.values()
    )
    assert work.state_bytes / 32 == pytest.approx(own, rel=0.01)
