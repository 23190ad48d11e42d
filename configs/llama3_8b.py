"""Llama 3 8B: configs/llama.py:llama3-8b, which says where its numbers come from."""

from pathlib import Path

from jaxformer.config import Config, load_config


def get_config() -> Config:
    return load_config(f"{Path(__file__).with_name('llama.py')}:llama3-8b")
