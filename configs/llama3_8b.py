"""Llama 3 8B: configs/llama.py:llama3-8b, which gives the sources of its numbers."""

from pathlib import Path

from jaxformer.config import Config, load_config


def get_config() -> Config:
    return load_config(f"{Path(__file__).with_name('llama.py')}:llama3-8b")
