"""jaxformer: transformers in JAX.

Letters used for array axes everywhere in the package::

    B batch            N query heads          D model dim
    T query length     K key/value heads      F feed-forward dim
    S key length       G = N / K              V vocabulary
    L layers           H head dim

`load`, `forward`, `gradients`, `generate`, `score` and `save` work with trained models. They take
and return NumPy arrays, and need the libraries of ``pip install 'jaxformer[hub]'``. `train` trains
the model of a config; it needs those of ``jaxformer[train]``.
"""

__version__ = "0.1.0"
__all__ = ["forward", "generate", "gradients", "load", "save", "score", "train"]

_HOMES = {
    "forward": "pretrained.model",
    "generate": "generation.api",
    "gradients": "pretrained.model",
    "load": "pretrained.auto",
    "save": "pretrained.model",
    "score": "generation.api",
    "train": "training.loop",
}


def __getattr__(name: str):
    """Imports a public function when it is first used: the pure functions need none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxformer' has no attribute {name!r}")
    from jaxformer.extras import optional_module

    return getattr(optional_module(f"jaxformer.{_HOMES[name]}", f"jaxformer.{name}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
