"""Removes the prefixes of wrapper modules from tensor names: `_orig_mod.`, `module.`.

Any prefix is removed if the remaining names are those of the model.
"""

import re
from collections.abc import Collection, Mapping

from jaxformer.errors import DataError
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.weights.names import current_name, spellings
from jaxformer.hub.weights.tensors import TensorFiles
from jaxformer.io.notices import warn_once

# torch.compile, checkpointing and FSDP insert these anywhere in a name.
_ANYWHERE = re.compile(r"(?<![^.])(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


def unwrapped(files: TensorFiles, checkpoint: HFCheckpoint) -> TensorFiles:
    """Returns the tensors without the prefixes of wrapper modules (`torch.compile`), and warns."""
    names = {_ANYWHERE.sub("", name): name for name in files.tensors}
    if len(names) < len(files.tensors):
        raise DataError(f"{files.folder}: two tensors have one name without {_ANYWHERE.pattern}")
    known = _known_names(checkpoint)

    def fits(found: Mapping[str, str]) -> int:
        return sum(_module(current_name(n, checkpoint.model_format)) in known for n in found)

    shorter = [names]
    while _share_prefix(shorter[-1]):
        shorter.append({name.partition(".")[2]: old for name, old in shorter[-1].items()})
    names = max(shorter, key=fits)
    changed = next(((new, old) for new, old in names.items() if new != old), None)
    if changed is None:
        return files
    new, old = changed
    warn_once(
        f"{files.folder}: tensor names are read without the prefixes of wrapping modules: {old} "
        f"is read as {new}"
    )
    return files.renamed(names)


def _share_prefix(names: Collection[str]) -> bool:
    """Whether all names have the same first module."""
    starts = {name.partition(".")[0] for name in names}
    return len(starts) == 1 and all("." in name for name in names)


def _known_names(checkpoint: HFCheckpoint) -> set[str]:
    """Returns the names of modules and tensors of this format, with "{}" for numbers."""
    model_format = checkpoint.model_format
    weight_map = model_format.weight_map(checkpoint.config)
    names = [*weight_map.names.values(), *(each.tensor for each in weight_map.fused)]
    found = {_module(spelled) for n in names for spelled in spellings(n, model_format.prefix)}
    return found | {_module(name) for name in model_format.copies}


def _module(tensor: str) -> str:
    """Returns the module of a tensor, with "{}" for numbers."""
    numbered = re.sub(r"\.\d+(?=\.|$)", ".{}", tensor)
    return re.sub(r"[._](weight|bias)$", "", numbered)
