"""Rematerialisation: what the backward pass keeps of a block, and what it computes again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax

from jaxformer.checks import check_types
from jaxformer.errors import check_field
from jaxformer.functional.activations import Saveable
from jaxformer.functional.linear import PRODUCT


@dataclass(frozen=True)
class RematNames:
    """Keeps the activations of these names, and computes all others again.

    The names are those of `functional.activations.SAVEABLE`. What is offloaded waits in the pinned
    memory of the host, and is copied back while the backward pass works on a later layer. A stack
    keeps the input of every block in any case: on the device, unless "block_input" is offloaded.

    References:
        Chen et al., Training Deep Nets with Sublinear Memory Cost
        (https://arxiv.org/abs/1604.06174); `jax.checkpoint_policies`.
    """

    save: tuple[Saveable, ...] = ()
    """Names that stay in the memory of the device."""
    offload: tuple[Saveable, ...] = ()
    """Names that move to the memory of the host."""

    def __post_init__(self):
        check_types(self)
        both = [name for name in self.save if name in self.offload]
        rule = f"without {', '.join(both)}, which save has too: a name is in one of them"
        check_field(self, "offload", not both, rule, "model.remat")


Remat = Literal["none", "dots", "full"] | RematNames
"""What the backward pass recomputes: nothing, all but matrix products (dots), all (full), or all
but what has certain names."""


def rematerialised(function: Callable, remat: Remat) -> Callable:
    """`function` with its backward pass as `remat` says; the values and gradients are the same."""
    if remat == "none":
        return function
    return jax.checkpoint(function, policy=_policy(remat))


def _policy(remat: Remat) -> Callable:
    policies = jax.checkpoint_policies
    if isinstance(remat, RematNames):
        return policies.save_and_offload_only_these_names(
            names_which_can_be_saved=remat.save,
            names_which_can_be_offloaded=remat.offload,
            offload_src="device",
            offload_dst="pinned_host",
        )
    if remat == "dots":
        return policies.save_only_these_names(PRODUCT)
    return policies.nothing_saveable
