"""Optional dependencies: the extras of ``pip install 'jaxformer[EXTRA]'``."""

import importlib
import importlib.util
from types import ModuleType

EXTRAS = {
    "PIL": ("pillow", "data"),
    "babel": ("babel", "data"),
    "compressed_tensors": ("compressed-tensors", "compressed-tensors"),
    "ctranslate2": ("ctranslate2", "ctranslate2"),
    "espeakng_loader": ("espeakng-loader", "speech"),
    "gcsfs": ("gcsfs", "gcs"),
    "gguf": ("gguf", "gguf"),
    "grain": ("grain", "hub"),
    "huggingface_hub": ("huggingface_hub", "hub"),
    "iree": ("iree-base-compiler", "iree"),
    "jinja2": ("jinja2", "hub"),
    "kenlm": ("kenlm", "kenlm"),
    "llama_cpp": ("llama-cpp-python", "llama-cpp"),
    "matplotlib": ("matplotlib", "plots"),
    "mlx": ("mlx", "mlx"),
    "mlx_lm": ("mlx-lm", "mlx"),
    "onnx": ("onnx", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "onnxscript": ("onnxscript", "onnx"),
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
    "soundfile": ("soundfile", "audio"),
    "soxr": ("soxr", "audio"),
    "starlette": ("starlette", "serve"),
    "tensorboardX": ("tensorboardX", "train"),
    "tokenizers": ("tokenizers", "hub"),
    "torch": ("torch", "parity"),
    "transformers": ("transformers", "hub"),
    "uvicorn": ("uvicorn", "serve"),
    "wandb": ("wandb", "wandb"),
    "yaml": ("pyyaml", "train"),
}
"""Maps a module name to its package on PyPI and the extra that installs it."""


class MissingExtra(ImportError):
    """A library that a feature needs is not installed; the message says how to install it."""


def optional_module(name: str, purpose: str) -> ModuleType:
    """Imports a module that needs an optional dependency."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing_extra(error, purpose) from error


def check_installed(name: str, purpose: str) -> None:
    """Raises MissingExtra if a library is not installed; does not import it, which can take
    seconds.
    """
    if importlib.util.find_spec(name) is None:
        raise missing_extra(ModuleNotFoundError(name=name), purpose)


def missing_extra(
    error: ModuleNotFoundError, purpose: str, extra: str | None = None
) -> ImportError:
    """Returns the error that names the extra to install for a missing module."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return error
    library, own = EXTRAS[module]
    return MissingExtra(f"{purpose} needs {library}: pip install 'jaxformer[{extra or own}]'")
