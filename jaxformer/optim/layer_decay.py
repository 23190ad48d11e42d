"""Layer-wise decay of the learning rate: the nearer to the input, the smaller the steps."""

import re

import numpy as np
import optax

from jaxformer.models.parameters import Parameters

# The i-th kind of block of a stack, e.g. "transformer.stack.group.0.".
_BLOCK = re.compile(r"(.*stack\.group\.)(\d+)\..*")


def scale_by_depth(decay: float) -> optax.GradientTransformation:
    r"""Scales each update by the depth of its parameter.

    .. math:: u_l \leftarrow \gamma^{L + 1 - l}\, u_l

    where l is 0 for embeddings and positions, 1 to L for the blocks, and L + 1 for what comes after
    them: final norm, pooler, heads.

    Args:
        decay: γ, between 0 and 1.

    References:
        Howard and Ruder, ULMFiT (https://arxiv.org/abs/1801.06146);
        Clark et al., ELECTRA (https://arxiv.org/abs/2003.10555).
    """

    def scale(updates: Parameters, params: Parameters | None = None) -> Parameters:
        del params
        factors = depth_factors({name: update.shape for name, update in updates.items()}, decay)
        return {name: update * factors[name] for name, update in updates.items()}

    return optax.stateless(scale)


def depth_factors(shapes: dict[str, tuple[int, ...]], decay: float) -> dict[str, np.ndarray]:
    """The factor of each parameter, one for each layer along a stack's leading axis.

    Args:
        shapes: Of the parameters by name.
        decay: γ.

    Returns:
        Name -> float32 that broadcasts against the parameter.
    """
    blocks = {name: found for name in shapes if (found := _BLOCK.fullmatch(name))}
    kinds: dict[str, int] = {}
    for found in blocks.values():
        kinds[found[1]] = max(kinds.get(found[1], 0), int(found[2]) + 1)
    depth = {found[1]: shapes[name][0] * kinds[found[1]] for name, found in blocks.items()}

    def factor(name: str) -> np.ndarray:
        if found := blocks.get(name):
            prefix, rank = found[1], len(shapes[name])
            layer = np.arange(shapes[name][0]) * kinds[prefix] + int(found[2])
            powers = depth[prefix] - layer
            return (decay**powers).reshape(-1, *[1] * (rank - 1)).astype(np.float32)
        return np.float32(decay ** (1 + _layers_above(name, depth)) if is_input(name) else 1.0)

    return {name: factor(name) for name in shapes}


def is_input(name: str) -> bool:
    """Whether a parameter comes before the first block: embeddings, positions, patches."""
    tables = ("embedding.", "decoder_embedding.", "patch_projection.")
    tokens = ("class_token", "distillation_token", "mask_token")
    return name.startswith(tables + tokens) or ".inputs." in name


def _layers_above(name: str, depth: dict[str, int]) -> int:
    """The depth of the stack that an input feeds; of the deepest, where it feeds several."""
    own = [layers for prefix, layers in depth.items() if prefix.split(".")[0] == name.split(".")[0]]
    return max(own or depth.values(), default=0)
