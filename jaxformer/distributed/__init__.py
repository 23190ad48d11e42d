"""The device mesh, and the processes that train together."""

from jaxformer.distributed.sharding import MeshConfig, make_mesh

__all__ = [
    "MeshConfig",
    "make_mesh",
]
