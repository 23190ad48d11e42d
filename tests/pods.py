"""What a program that is lowered for a pod holds, and which kernels it calls."""

import re
from math import prod

import jax

GIB = 2**30
CHIP = 95 * GIB  # of a TPU v5p


def bytes_of(tree):
    """Of all arrays together, and of what one device holds of them."""
    leaves = jax.tree.leaves(tree)
    whole = sum(x.size * x.dtype.itemsize for x in leaves)
    return whole, sum(prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)


def custom_calls(text):
    """How many kernels of Mosaic, the compiler of Pallas on TPUs, a lowered program calls."""
    total = 0
    for function in text.split("func.func ")[1:]:
        name = re.search(r"@([\w.]+)\(", function)[1]
        total += function.count("@tpu_custom_call") * max(1, text.count(f"call @{name}("))
    return total
