"""Sizes of published systems for the training recipes in configs/."""

from jaxformer.errors import ConfigError
from jaxformer.zoo import SYSTEMS
from jaxformer.zoo.system import System


def sizes_of(file: str) -> dict[str, System]:
    """Returns the systems that a file of configs/ trains, by their sizes there."""
    recipes = {name: s.recipe.split(":") for name, s in SYSTEMS.items() if s.recipe}
    return {size: SYSTEMS[name] for name, (owner, size) in recipes.items() if owner == file}


def choose(file: str, size: str) -> System:
    """Returns the system that a file of configs/ trains at one of its sizes.

    Args:
        file: The file: "bert.py".
        size: The size: "base".

    Raises:
        ConfigError: There is no such size; the message lists the sizes.
    """
    sizes = sizes_of(file)
    if size not in sizes:
        raise ConfigError(f"configs/{file} has no size {size!r}: choose one of {', '.join(sizes)}")
    return sizes[size]


def padded(vocab_size: int) -> int:
    """Returns the size of a vocabulary padded to a multiple of 128: fast, and sharded evenly."""
    return -(-vocab_size // 128) * 128
