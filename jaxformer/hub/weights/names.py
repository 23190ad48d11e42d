"""The names that a tensor may have in files."""

import re

from jaxformer.hub.model_format import ModelFormat


def current_name(name: str, model_format: ModelFormat) -> str:
    """Returns the current name of a tensor, which may have an old one in a file."""
    for old, new in model_format.aliases.items():
        name = re.sub(old, new, name)
    return name


def spellings(name: str, prefix: str) -> tuple[str, ...]:
    """Returns a name with and without the prefix of models with heads."""
    if not prefix:
        return (name,)
    bare = name.removeprefix(prefix)
    return (name, prefix + bare, bare)
