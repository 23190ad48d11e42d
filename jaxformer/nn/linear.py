"""A linear map between named axes."""

import jax
from flax import nnx

from jaxformer.functional.assertions import assert_axes
from jaxformer.functional.linear import linear
from jaxformer.nn.parameter import Initializer, constant, kernel_of, parameter, value_of


class Linear(nnx.Module):
    """`functional.linear` with its kernel (and bias): axes apart, never fused.

    `Linear(key, {"embed": D}, {"heads": N, "head_dim": H}, normal(0.02))` maps `[..., D]` to
    `[..., N, H]`.
    """

    def __init__(
        self,
        key: jax.Array,
        inputs: dict[str, int],
        outputs: dict[str, int],
        initializer: Initializer,
        *,
        bias: bool = False,
    ):
        """Declares the kernel `[*inputs, *outputs]` and, if asked, the bias `[*outputs]`."""
        axes = inputs | outputs
        self.inputs = tuple(inputs.values())
        self.contract = len(inputs)
        self.kernel = parameter(
            key, tuple(axes.values()), tuple(axes), initializer, contract=self.contract
        )
        shape = tuple(outputs.values())
        self.bias = parameter(key, shape, tuple(outputs), constant(0.0)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., *inputs] -> [..., *outputs]` in the dtype of `x`."""
        assert_axes(x=(x, " ".join(["...", *map(str, self.inputs)])))
        return linear(x, kernel_of(self.kernel), value_of(self.bias), contract=self.contract)
