"""Names of tensors that begin with those of modules around the model: `_orig_mod.`, `module.`.

Whichever these are, the names without them are those that the system has.
"""

import re
from collections.abc import Collection, Mapping

from jaxformer.errors import DataError
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.weights.names import current_name, spellings
from jaxformer.hub.weights.tensors import TensorFiles
from jaxformer.io.notices import warn_once

# torch.compile, checkpointing and FSDP put these anywhere; no module of a model is named so.
_ANYWHERE = re.compile(r"(?<![^.])(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


def unwrapped(files: TensorFiles, checkpoint: HFCheckpoint) -> TensorFiles:
    """Returns the tensors under the names that they have without modules around the model.

    A model that was saved from `torch.compile` or from within another module has such names.
    Warns where names are changed.

    Args:
        files: The tensors.
        checkpoint: The description of their model.

    Raises:
        DataError: Two tensors have the same name then.
    """
    names = {_ANYWHERE.sub("", name): name for name in files.tensors}
    if len(names) < len(files.tensors):
        raise DataError(f"{files.folder}: two tensors have one name without {_ANYWHERE.pattern}")
    known = _known_names(checkpoint)

    def fits(found: Mapping[str, str]) -> int:
        return sum(_module(current_name(n, checkpoint.model_format)) in known for n in found)

    shorter = [names]
    while _have_one_start(shorter[-1]):
        shorter.append({name.partition(".")[2]: old for name, old in shorter[-1].items()})
    names = max(shorter, key=fits)
    changed = next(((new, old) for new, old in names.items() if new != old), None)
    if changed is None:
        return files
    new, old = changed
    warn_once(
        f"{files.folder}: names are read without those of modules around the model: {old} is for "
        f"{new}"
    )
    return files.renamed(names)


def _have_one_start(names: Collection[str]) -> bool:
    """Whether all names are those within one module."""
    starts = {name.partition(".")[0] for name in names}
    return len(starts) == 1 and all("." in name for name in names)


def _known_names(checkpoint: HFCheckpoint) -> set[str]:
    """The names of modules and tensors in a file of the system, with "{}" for numbers."""
    model_format = checkpoint.model_format
    weight_map = model_format.weight_map(checkpoint.config)
    names = [*weight_map.names.values(), *(each.tensor for each in weight_map.fused)]
    found = {_module(spelled) for n in names for spelled in spellings(n, model_format.prefix)}
    return found | {_module(name) for name in model_format.copies}


def _module(tensor: str) -> str:
    """A name with "{}" for numbers, without what a parameter is called in its module."""
    numbered = re.sub(r"\.\d+(?=\.|$)", ".{}", tensor)
    return re.sub(r"[._](weight|bias)$", "", numbered)
