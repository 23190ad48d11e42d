"""GGUF: the files of llama.cpp, Ollama and LM Studio, written with the package `gguf`."""

from typing import Any

from jaxformer.extras import optional_module


def library() -> Any:
    """Returns the package `gguf`, of llama.cpp's authors, which is imported when it is needed."""
    return optional_module("gguf", "--format gguf")
