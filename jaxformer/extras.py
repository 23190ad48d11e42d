"""The libraries that only some features need: the extras of ``pip install 'jaxformer[EXTRA]'``."""

import importlib
from types import ModuleType

EXTRAS = {
    "PIL": ("pillow", "data"),
    "babel": ("babel", "data"),
    "gcsfs": ("gcsfs", "gcs"),
    "grain": ("grain", "hub"),
    "huggingface_hub": ("huggingface_hub", "hub"),
    "jinja2": ("jinja2", "hub"),
    "matplotlib": ("matplotlib", "plots"),
    "optax": ("optax", "hub"),
    "orbax": ("orbax-checkpoint", "hub"),
    "pyarrow": ("pyarrow", "train"),
    "rouge_score": ("rouge-score", "train"),
    "s3fs": ("s3fs", "s3"),
    "sacrebleu": ("sacrebleu", "train"),
    "safetensors": ("safetensors", "hub"),
    "scipy": ("scipy", "train"),
    "seqeval": ("seqeval", "train"),
    "sklearn": ("scikit-learn", "train"),
    "tensorboardX": ("tensorboardX", "train"),
    "tokenizers": ("tokenizers", "hub"),
    "torch": ("torch", "parity"),
    "transformers": ("transformers", "hub"),
    "wandb": ("wandb", "wandb"),
    "yaml": ("pyyaml", "train"),
}
"""By the name of a module: the library on the package index, and the extra that installs it."""


class MissingExtra(ImportError):
    """A library that a feature needs is not installed; the message says how to install it."""


def optional_module(name: str, purpose: str) -> ModuleType:
    """Imports a module that needs the libraries of an extra."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        problem = missing_extra(error, purpose)
        raise problem from error


def missing_extra(
    error: ModuleNotFoundError, purpose: str, extra: str | None = None
) -> ImportError:
    """Says which extra to install for a module that was not found."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return error
    library, own = EXTRAS[module]
    return MissingExtra(f"{purpose} needs {library}: pip install 'jaxformer[{extra or own}]'")
