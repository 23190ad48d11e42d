"""GGUF: the files of llama.cpp, Ollama and LM Studio, written with the package `gguf`."""
