"""jaxformer: transformers in JAX.

Letters used for array axes everywhere in the package::

    B batch            N query heads          D model dim
    T query length     K key/value heads      F feed-forward dim
    S key length       G = N / K              V vocabulary
    L layers           H head dim

`load`, `forward`, `gradients`, `generate`, `chat`, `transcribe`, `score`, `embed`, `score_pairs`,
`save` and `push` work with trained models. They take and return NumPy arrays, or texts and
messages, and need the libraries of ``pip install 'jaxformer[hub]'``. `run_with_cache`,
`run_with_hooks` and `activation_gradients` are JAX functions that read and replace activations.
`train` trains the model of a config, and needs ``jaxformer[train]``.
"""

import importlib

from jaxformer.xla_flags import avoid_wrong_sums as _avoid_wrong_sums

_avoid_wrong_sums()

__version__ = "0.1.0"
_MODULES = {
    "activation_gradients": "pretrained.outputs",
    "activation_names": "pretrained.outputs",
    "chat": "generation.api",
    "embed": "pretrained.embedding.api",
    "encoder": "pretrained.encoder",
    "flax_params": "pretrained.flax_params",
    "forward": "pretrained.outputs",
    "generate": "generation.api",
    "gradients": "pretrained.outputs",
    "load": "pretrained.auto",
    "push": "pretrained.export.push",
    "run_with_cache": "pretrained.outputs",
    "run_with_hooks": "pretrained.outputs",
    "save": "pretrained.writing",
    "score": "generation.scoring",
    "score_pairs": "pretrained.embedding.api",
    "train": "training.loop",
    "transcribe": "generation.speech.api",
}
__all__ = [*_MODULES]


def __getattr__(name: str):
    """Imports a public function on first use: the pure functions do not need its libraries."""
    if name not in _MODULES:
        raise AttributeError(f"module 'jaxformer' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"jaxformer.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        from jaxformer.extras import missing_extra

        raise missing_extra(error, f"jaxformer.{name}") from error


def __dir__() -> list[str]:
    return [*globals(), *__all__]
