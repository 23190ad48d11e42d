"""GPT-2 small, 124M parameters: configs/gpt2.py:small, which gives the sources of its numbers."""

from pathlib import Path

from jaxformer.config import Config, load_config


def get_config() -> Config:
    return load_config(f"{Path(__file__).with_name('gpt2.py')}:small")
