"""Training with matrix products in float8: which kernels take part."""

from dataclasses import dataclass

from flax import nnx

from jaxformer.checks import check_field, check_types
from jaxformer.models.parameters import EXPERT_AXES, AbstractModel, matching, stack_path
from jaxformer.nn.layers import Linear


@dataclass(frozen=True)
class Float8:
    """Products of the blocks' linear maps in float8, see `functional.float8`.

    They are those of attention and feed-forward layers. Embeddings, heads, norms, experts and the
    products of queries and keys stay in the compute dtype, as do evaluation and every file.

    References:
        Micikevicius et al., FP8 Formats for Deep Learning (https://arxiv.org/abs/2209.05433).
    """

    targets: tuple[str, ...] = ("*",)
    """The kernels, among those of the blocks' linear maps, as patterns of their names."""

    def __post_init__(self):
        check_types(self)
        check_field(self, "targets", len(self.targets) > 0, "at least one pattern")

    def kernels(self, model: AbstractModel) -> tuple[str, ...]:
        """The names of the kernels, in the model's order."""
        nodes = nnx.iter_graph(model.module(model.shapes))
        paths = {
            ".".join(map(str, (*path, "kernel"))) for path, node in nodes if type(node) is Linear
        }
        able = [
            name
            for name in model.shapes
            if name in paths and stack_path(name) and not EXPERT_AXES & set(model.axes[name])
        ]
        kind = "kernel of a linear map in a block"
        chosen = matching(able, self.targets, "train.float8.targets", kind)
        return tuple(name for name in able if name in chosen)
