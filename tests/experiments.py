"""The shipped experiments, and those of them that describe a model of their own."""

from pathlib import Path

from jaxformer.config import load_config

ALL = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))
WITH_MODEL = [path for path in ALL if load_config(str(path)).model is not None]
"""The others take the model of the checkpoint that --init-from names."""
