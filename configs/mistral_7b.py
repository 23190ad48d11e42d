"""Mistral 7B: configs/mistral.py, which gives the sources of its numbers."""

from pathlib import Path

from jaxformer.config import Config, load_config


def get_config() -> Config:
    return load_config(str(Path(__file__).with_name("mistral.py")))
