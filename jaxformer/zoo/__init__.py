"""Published systems: their sizes, and how many parameters they are said to have."""

from jaxformer.zoo import (
    albert,
    bart,
    bert,
    distilbert,
    ernie,
    gemma,
    gpt,
    gptj,
    llama,
    phi,
    pythia,
    roberta,
    t5,
    transformer,
    vit,
)
from jaxformer.zoo.system import System

_MODULES = (
    transformer, bert, roberta, distilbert, albert, ernie, gpt, gptj, pythia, llama, phi, gemma,
    t5, bart, vit,
)  # fmt: skip

SYSTEMS: dict[str, System] = {s.name: s for module in _MODULES for s in module.SYSTEMS}
"""Every system by its name."""

__all__ = ["SYSTEMS", "System"]
