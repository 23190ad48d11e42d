"""Which parameters learn, and which stay as they are."""

import fnmatch

from jaxformer.errors import ConfigError
from jaxformer.models.lora import LoraTemplate
from jaxformer.models.parameters import Template


def trained_names(template: Template | LoraTemplate, frozen: tuple[str, ...]) -> tuple[str, ...]:
    """The parameters that learn.

    Args:
      template: says which may.
      frozen: patterns of those that shall not.

    Raises:
      ConfigError: a pattern matches no parameter, or nothing is left to learn.
    """
    names = tuple(template.shapes)
    for pattern in frozen:
        if not fnmatch.filter(names, pattern):
            raise ConfigError(
                f"train.frozen: {pattern!r} matches no parameter; there are {', '.join(names[:5])}"
                f"{' ...' if len(names) > 5 else ''}"
            )
    learning = frozenset(template.learning)
    kept = [
        name
        for name in names
        if name in learning and not any(fnmatch.fnmatchcase(name, pattern) for pattern in frozen)
    ]
    if not kept:
        raise ConfigError(f"train.frozen = {frozen}: every parameter is frozen, nothing can learn")
    return tuple(kept)
