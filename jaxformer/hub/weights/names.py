"""The possible names of a tensor in files."""

import re
from collections.abc import Collection, Iterable

from jaxformer.hub.model_format import ModelFormat


def current_name(name: str, model_format: ModelFormat) -> str:
    """Returns the current name of a tensor with a possibly outdated name."""
    for old, new in model_format.aliases.items():
        name = re.sub(old, new, name)
    return name


def spellings(name: str, prefix: str) -> tuple[str, ...]:
    """Returns a name with and without the prefix of models with heads."""
    if not prefix:
        return (name,)
    bare = name.removeprefix(prefix)
    return (name, prefix + bare, bare)


class KnownNames:
    """Finds tensors in files by any of their possible names."""

    def __init__(self, names: Iterable[str], model_format: ModelFormat):
        """Takes the names in the files, and the format."""
        current = {name: current_name(name, model_format) for name in names}
        # If a tensor has two names in the files, the current one is used.
        older_first = sorted(current, key=lambda name: current[name] == name)
        self.current = {current[name]: name for name in older_first}
        """Current name of a tensor -> its name in the files."""
        self._format = model_format

    def find(self, tensor: str) -> str | None:
        """Returns the name in the files of a tensor of the weight map, or None."""
        # A body and its head may have tensors of the same name, so try the exact spelling first.
        spelled = spellings(tensor, self._format.prefix)
        return next((self.current[name] for name in spelled if name in self.current), None)

    def find_all(self, tensors: Collection[str]) -> dict[str, str]:
        """Returns the names in the files of the existing ones among tensors of the weight map.

        If the files contain only a tensor that is tied to one of them, its name is returned.
        """
        prefix = self._format.prefix
        found = {tensor: self.find(tensor) for tensor in tensors}
        own = {tensor.removeprefix(prefix): tensor for tensor in found}
        for copy in self._format.copies:
            if copy.removeprefix(prefix) not in own and (name := self.find(copy)):
                for original in self._format.originals(copy):
                    tensor = own.get(original.removeprefix(prefix))
                    if tensor is not None and found[tensor] is None:
                        found[tensor] = name
        return {tensor: name for tensor, name in found.items() if name is not None}
