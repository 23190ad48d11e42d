"""Low-rank adapters in PEFT's format, onto models."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jaxformer.errors import ConfigError
from jaxformer.hub.hf_config import is_hf_checkpoint
from jaxformer.hub.peft.config import CONFIG, read_peft_config
from jaxformer.hub.remote.names import hub_name
from jaxformer.io.paths import is_remote
from jaxformer.pretrained.folders import model_folder
from jaxformer.pretrained.model import Pretrained, opened_with


def with_read_adapters(
    pretrained: Pretrained, adapters: Mapping[str, str | Path], **hub: str | Path | None
) -> Pretrained:
    """A model with adapters of PEFT, of which none is merged.

    Args:
        pretrained: The base.
        adapters: The folders of adapters to read, by name.
        **hub: `token` and `cache_dir`, see `model_folder`.

    Returns:
        The model.

    Raises:
        ConfigError: One is of another kind, or has a setting that is not supported.
        DataError: The tensors do not fit the model.
    """

    def found(name: str, folder: str | Path) -> Path:
        where = model_folder(folder, f"adapters[{name!r}]", **hub)
        opened_with(pretrained, where)
        return where

    return replace(pretrained, adapters={name: found(name, x) for name, x in adapters.items()})


def base_of(folder: Path, **hub: str | Path | None) -> Path:
    """The Hugging Face checkpoint that an adapter of PEFT changes.

    Args:
        folder: The adapter's.
        **hub: `token` and `cache_dir`, see `model_folder`.

    Returns:
        The folder that `base_model_name_or_path` names, from here or from the adapter's folder; or
        that of the cache, if it is a name of the hub.

    Raises:
        ConfigError: There is no such folder here, and no such model on the hub.
    """
    name = read_peft_config(folder).base
    if name and is_remote(name):
        return model_folder(name, f"{folder / CONFIG}: base_model_name_or_path")
    for place in (Path(name), folder / name) if name else ():
        if is_hf_checkpoint(place):
            return place
    if hub_name(name) is not None:
        return model_folder(name, f"{folder / CONFIG}: base_model_name_or_path", **hub)
    raise ConfigError(
        f"{folder / CONFIG}: base_model_name_or_path = {name!r}: must be the folder of a Hugging "
        'Face checkpoint here; jaxformer.load(BASE, adapter="ADAPTER") takes another base'
    )
