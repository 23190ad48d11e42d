"""How kernels lie in memory where nothing learns."""

import math

from flax import nnx

from jaxformer.nn.embed import Embedding


def transpose_kernels(module: nnx.Module) -> None:
    """Lays the kernels of a module on one device out as `Transposed`, in place.

    Tables of embeddings lie so anyway, for the heads that are tied to them.
    """
    for _, node in nnx.iter_graph(module):
        if isinstance(node, Embedding):
            node.table.set_metadata(outputs=node.table.shape[:1])
        elif isinstance(node, nnx.Param) and (inputs := node.get_metadata()["contract"]):
            stacked = node.get_metadata()["axes"][0] == "layers"
            layers, sizes = node.shape[:stacked], node.shape[stacked:]
            kernel = node[...].reshape(*layers, math.prod(sizes[:inputs]), -1)
            node.set_value(kernel.mT)
            node.set_metadata(outputs=sizes[inputs:])
