"""The package `gguf`, of llama.cpp's authors, which is imported when it is needed."""

from typing import Any

from jaxformer.extras import optional_module


def library() -> Any:
    """Returns the package `gguf`."""
    return optional_module("gguf", "--format gguf")
