"""GGUF: files for llama.cpp, Ollama and LM Studio, written with the package `gguf`."""

from typing import Any

from jaxformer.extras import optional_module


def library() -> Any:
    """Imports the package `gguf` of llama.cpp's authors on demand."""
    return optional_module("gguf", "--format gguf")
