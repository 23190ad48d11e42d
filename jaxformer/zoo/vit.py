"""ViT, and the shape of ViT-22B."""

from jaxformer.functional.norms import LayerNorm, RMSNorm
from jaxformer.functional.positional_schemes import Learned
from jaxformer.models import Classification, VisionConfig
from jaxformer.nn import Parallel
from jaxformer.zoo.system import System


def vit(num_layers: int, model_dim: int, num_heads: int, patch: int, **changes) -> VisionConfig:
    """The architecture in any size, for 224 x 224 pixels and 1000 classes."""
    fields = {
        "num_layers": num_layers,
        "model_dim": model_dim,
        "num_heads": num_heads,
        "mlp_dim": 4 * model_dim,
        "image_size": (224, 224),
        "patch_size": (patch, patch),
        "position": Learned(max_length=1 + (224 // patch) ** 2),
        "norm": LayerNorm(eps=1e-6),
    }
    return VisionConfig(**(fields | changes))


_SOURCE = "Dosovitskiy et al., 2020, table 1, https://arxiv.org/abs/2010.11929"

SYSTEMS = (
    System("vit-base-16", "vit.py:base-16", vit(12, 768, 12, 16), "86M", _SOURCE),
    System(
        "vit-large-16",
        "vit.py:large-16",
        vit(24, 1024, 16, 16),
        "307M",
        _SOURCE,
        "patches of 32 x 32",
    ),
    System("vit-huge-14", "vit.py:huge-14", vit(32, 1280, 16, 14), "632M", _SOURCE),
    System(
        "vit-22b",
        "vit.py:22b",
        vit(
            48,
            6144,
            48,
            14,
            norm=RMSNorm(eps=1e-6),
            residual=Parallel(shared_norm=True),
            query_key_norm=LayerNorm(eps=1e-6, bias=False),
            attention_bias=False,
            # The mean over the patches stands in for the paper's attention pooling.
            class_token=False,
            position=Learned(max_length=16 * 16),
            heads=(Classification(num_labels=1000, pooling="mean"),),
        ),
        "21743M",
        "Dehghani et al., 2023, table 1, https://arxiv.org/abs/2302.05442",
        "the matrices of the blocks",
    ),
)
