"""A tiny decoder on four chips, traced once for each mesh and rematerialisation."""

from dataclasses import replace
from functools import lru_cache

from jaxformer.config import load_config
from jaxformer.config.shipped import config_spec
from jaxformer.distributed.chips import Figure
from jaxformer.distributed.sharding import MeshConfig
from jaxformer.distributed.slices import parse_chips
from jaxformer.optim import AdamW
from jaxformer.plan.trace import TracedStep, trace_step


def tiny(mesh=(1, 1, 1), remat="none", **data):
    config = load_config(config_spec("tiny_decoder"))
    model = replace(config.model, remat=remat)
    data = replace(config.data, **data)
    # Muon has its own products.
    optimizer = AdamW(schedule=config.optimizer.schedule)
    changes = {"model": model, "data": data, "mesh": MeshConfig(*mesh), "optimizer": optimizer}
    return replace(config, **changes)


def shrunk(slice_, memory):
    """The slice, with chips that have so many bytes."""
    return replace(slice_, chip=replace(slice_.chip, memory=Figure(memory, "a test", "2026-11")))


@lru_cache
def traced(mesh=(1, 1, 1), remat="none") -> TracedStep:
    return trace_step(tiny(mesh, remat), parse_chips("v5e:2x2"))
