"""What the training recipes in configs/ take from the zoo."""

from jaxformer.errors import ConfigError
from jaxformer.zoo import SYSTEMS
from jaxformer.zoo.system import System


def sizes_of(file: str) -> dict[str, System]:
    """The systems that a file of configs/ trains, by their sizes there."""
    recipes = {name: s.recipe.split(":") for name, s in SYSTEMS.items() if s.recipe}
    return {size: SYSTEMS[name] for name, (owner, size) in recipes.items() if owner == file}


def choose(file: str, size: str) -> System:
    """The system that a file of configs/ trains at one of its sizes.

    Raises:
        ConfigError: It has no such size; the message lists those that there are.
    """
    sizes = sizes_of(file)
    if size not in sizes:
        raise ConfigError(f"configs/{file} has no size {size!r}: choose one of {', '.join(sizes)}")
    return sizes[size]


def padded(vocab_size: int) -> int:
    """A vocabulary with unused rows at its end, so that 128 divides it: fast, and cut evenly."""
    return -(-vocab_size // 128) * 128
