"""Collectives read off compiled programs, against what the program is known to send."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.plan.collectives import Collective, collectives
from jaxformer.plan.hlo import Module

LAYERS, ROWS, WIDTH = 5, 16, 32


def compiled_text(sizes, weights_spec, step):
    mesh = make_mesh(MeshConfig(*sizes), jax.devices()[:8])
    spec = {"w": weights_spec, "x": PartitionSpec(("data", "fsdp"), None)}
    shapes = {"w": (LAYERS, WIDTH, WIDTH), "x": (ROWS, WIDTH)}
    w, x = (
        jax.ShapeDtypeStruct(shapes[name], jnp.float32, sharding=NamedSharding(mesh, spec[name]))
        for name in ("w", "x")
    )
    with jax.set_mesh(mesh):
        return jax.jit(step).lower(w, x).compile().as_text(), dict(mesh.shape)


def forward(w, x):
    def layer(x, w):
        whole = jax.sharding.reshard(w, PartitionSpec())
        return jnp.tanh(x @ whole), None

    return jax.lax.scan(layer, x, w)[0]


def test_what_a_loop_gathers_counts_as_often_as_it_runs():
    text, mesh = compiled_text((1, 8, 1), PartitionSpec(None, "fsdp", None), forward)
    found = collectives(Module(text), mesh)
    assert found == [Collective("all-gather", ("fsdp",), LAYERS * WIDTH * WIDTH * 4, LAYERS)]


@pytest.mark.parametrize("axis", ["fsdp", "tensor"])
def test_a_group_of_devices_is_an_axis_of_the_mesh(axis):
    text, mesh = compiled_text((2, 2, 2), PartitionSpec(None, axis, None), forward)
    found = collectives(Module(text), mesh)
    assert {each.axes for each in found if each.kind == "all-gather"} == {(axis,)}


def test_a_sum_over_the_rows_goes_over_their_axes():
    text, mesh = compiled_text((2, 2, 2), PartitionSpec(), lambda w, x: (x.sum(), w[0, 0, 0]))
    (found,) = collectives(Module(text), mesh)
    assert found == Collective("all-reduce", ("data", "fsdp"), 4, 1)


GROUPS = {
    "replica_groups={{0,1},{2,3},{4,5},{6,7}}": ("tensor",),
    "replica_groups={{0,2},{1,3},{4,6},{5,7}}": ("fsdp",),
    "replica_groups=[4,2]<=[8]": ("tensor",),
    "replica_groups=[4,2]<=[2,4]T(1,0)": ("data",),
    "replica_groups=[2,4]<=[2,2,2]T(2,1,0)": ("data", "fsdp"),
    "replica_groups=mesh['axis_0'=2,'axis_1'=2,'axis_2'=2] {'axis_1'}": ("fsdp",),
    "replica_groups=mesh['a'=2,'b'=4] {'b':(1)2}": ("fsdp",),
    "replica_groups=mesh['a'=2,'b'=4] {'b':(2)2}": ("tensor",),
    "replica_groups=mesh['a'=2,'b'=2,'c'=2], device_ids=(0,1,4,5,2,3,6,7) {'b'}": ("data",),
    "replica_groups=mesh['a'=2,'b'=1,'c'=4], device_ids=([2,2,2]T(1,0,2)) {'a'}": ("fsdp",),
    "source_target_pairs={{0,4},{1,5},{4,0}}": ("data",),
    "": ("data", "fsdp", "tensor"),
}


@pytest.mark.parametrize(("groups", "axes"), GROUPS.items())
def test_every_way_to_write_groups_is_read(groups, axes):
    line = f"ROOT %r = f32[4]{{0}} all-reduce(%p), {groups}"
    text = f"ENTRY %main (p: f32[4]) -> f32[4] {{\n  {line}\n}}\n"
    (found,) = collectives(Module(text), {"data": 2, "fsdp": 2, "tensor": 2})
    assert found == Collective("all-reduce", axes, 16, 1)


ASYNCHRONOUS = """
%start (p: bf16[4,8]) -> (bf16[4,8], bf16[8,8]) {
  %g.1 = bf16[8,8]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=1, replica_groups={{0,1}}
  ROOT %c.1 = (bf16[4,8], bf16[8,8]) custom-call(%g.1), custom_call_target="AsyncCollectiveStart"
}
%async_collective_fusion.1 (p: bf16[4,8]) -> bf16[8,8] {
  %g.2 = bf16[8,8]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=1, replica_groups={{0,1}}
  ROOT %c.2 = bf16[8,8]{1,0} convolution(%g.2)
}
%done (p: bf16[4,8]) -> bf16[8,8] {
  %g.3 = bf16[8,8]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=1, replica_groups={{0,1}}
  ROOT %c.3 = bf16[8,8]{1,0} custom-call(%g.3), custom_call_target="AsyncCollectiveDone"
}
%all-reduce-scatter.1 (p: f32[8,8]) -> f32[4,8] {
  %r.1 = f32[8,8]{1,0} all-reduce(%p), channel_id=2, replica_groups={{0,1}}
  ROOT %d.1 = f32[4,8]{1,0} dynamic-slice(%r.1)
}
%less (p: (s32[], f32[8,8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(7)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT
}
%body (p: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %s = (bf16[4,8]{1,0}, bf16[8,8]{1,0}) fusion(%p), kind=kCustom, calls=%start
  %b = bf16[8,8]{1,0} fusion(%p), kind=kCustom, calls=%async_collective_fusion.1
  %e = bf16[8,8]{1,0} fusion(%p), kind=kCustom, calls=%done
  ROOT %f = f32[4,8]{1,0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1
}
ENTRY %main (p: f32[8,8]) -> f32[8,8] {
  ROOT %w = (s32[], f32[8,8]{1,0}) while(%p), condition=%less, body=%body
}
"""


def test_an_asynchronous_collective_of_a_tpu_counts_once_a_trip():
    found = collectives(Module(ASYNCHRONOUS), {"fsdp": 2})
    assert found == [
        Collective("reduce-scatter", ("fsdp",), 7 * 256, 7),
        Collective("all-gather", ("fsdp",), 7 * 128, 7),
    ]


UNROLLED = """HloModule jit_step
%less (p: (f32[8], s32[])) -> pred[] {
  %limit = u32[]{:T(128)} constant(7)
  %i = u32[]{:T(128)} get-tuple-element(%p), index=1
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT
}
%body (p: (f32[8], u32[])) -> (f32[8], u32[]) {
  %two = u32[]{:T(128)} constant(2)
  %x = f32[8]{0} get-tuple-element(%p), index=0
  %i.1 = u32[]{:T(128)} get-tuple-element(%p), index=1
  %y = f32[8]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}
  %z = f32[8]{0} collective-permute(%y), source_target_pairs={{0,1},{1,0}}
  %next = u32[]{:T(128)} add(%i.1, %two), metadata={op_name="dot_general"}
  ROOT %t = (f32[8]{0}, u32[]{:T(128)}) tuple(%z, /*index=1*/%next), metadata={}
}
ENTRY %main (p: (f32[8], u32[])) -> (f32[8], u32[]) {
  ROOT %w = (f32[8]{0}, u32[]{:T(128)}) while(%p), condition=%less, body=%body
}
"""


def test_a_loop_that_counts_in_twos_runs_half_as_often():
    found = collectives(Module(UNROLLED), {"fsdp": 2})
    assert found == [Collective("collective-permute", ("fsdp",), 8 * 32, 8)]
