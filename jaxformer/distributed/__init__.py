"""The device mesh, and jobs of several processes."""

from jaxformer.distributed.sharding import MeshConfig, make_mesh

__all__ = ["MeshConfig", "make_mesh"]
