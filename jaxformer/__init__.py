"""jaxformer: transformers in JAX.

Letters used for array axes everywhere in the package::

    B batch            N query heads          D model dim
    T query length     K key/value heads      F feed-forward dim
    S key length       G = N / K              V vocabulary
    L layers           H head dim

`load`, `forward`, `gradients`, `generate`, `score` and `save` work with trained models, numpy in
and numpy out.
"""

import importlib

__version__ = "0.1.0"
__all__ = ["forward", "generate", "gradients", "load", "save", "score"]

_HOMES = {
    "forward": "pretrained.model",
    "generate": "generation.api",
    "gradients": "pretrained.model",
    "load": "pretrained.auto",
    "save": "pretrained.model",
    "score": "generation.api",
}


def __getattr__(name: str):
    """Imports a public function when it is first asked for: the pure functions need none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxformer' has no attribute {name!r}")
    return getattr(importlib.import_module(f"jaxformer.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
