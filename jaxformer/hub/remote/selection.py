"""Selects the required files of a model's repository: weights in one format, without pickles."""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.weights.found import INDEX, SINGLE, unreadable_weights, weight_names
from jaxformer.io.model_files import (
    ADAPTER_CONFIG,
    CONFIG,
    SIDE_FILES,
    TEMPLATES,
    is_embedding_file,
)

ADAPTER = "adapter_model.safetensors"
_FLAX = "flax_model.msgpack"
_FLAX_INDEX = f"{_FLAX}.index.json"
_FORMATS = (SINGLE, INDEX, _FLAX, _FLAX_INDEX)  # the preferred one first
_SHARD = re.compile(r"(flax_)?model-\d+-of-\d+\.(safetensors|msgpack)")
_ALSO_PUSHED = ("README.md", "receipt.json")


def settings_files(names: Collection[str]) -> list[str]:
    """Returns the files that describe a model: its configuration, tokenizer and chat templates."""
    own = (CONFIG, ADAPTER_CONFIG, *SIDE_FILES)
    kinds = (_is_template, _is_tiktoken, is_embedding_file)
    others = sorted(name for name in names if any(is_one(name) for is_one in kinds))
    return [name for name in (*own, *others) if name in names]


def weight_index(names: Collection[str]) -> str | None:
    """Returns the index of the weights if they are in several files."""
    first = _first(names)
    return first if first is not None and first.endswith(".json") else None


def weight_files(
    names: Collection[str], read: Callable[[str], Mapping[str, Any] | None]
) -> list[str] | None:
    """Returns the files with the weights, in the preferred format."""
    if CONFIG not in names and ADAPTER_CONFIG in names:
        return [ADAPTER] if ADAPTER in names else None
    index = weight_index(names)
    if index is None:
        first = _first(names)
        return None if first is None else [first]
    places = (read(index) or {}).get("weight_map")
    named = places.values() if isinstance(places, dict) else ()
    shards = sorted({shard for shard in named if isinstance(shard, str)})
    for shard in shards:
        if shard not in names or PurePosixPath(shard).name != shard:
            raise DataError(f"{index} names {shard!r}, which is not there")
    return [index, *shards]


def check_has_weights(what: str, names: Collection[str], convert: str) -> None:
    """Checks that a repository has weights that can be read."""
    adapter = CONFIG not in names and ADAPTER_CONFIG in names
    if not {CONFIG, ADAPTER_CONFIG} & set(names):
        raise ConfigError(
            f"{what} has no {CONFIG}, as a model of transformers has: {_file_list(names)}"
        )
    wanted = {ADAPTER} if adapter else set(_FORMATS)
    if wanted & set(names) or not (adapter or _first(names) is None):
        return
    if other := unreadable_weights(names, convert.removesuffix(")")):
        raise ConfigError(f"{what} holds {other}")
    raise ConfigError(f"{what} has no {' or '.join(sorted(wanted))}: {_file_list(names)}")


def _first(names: Collection[str]) -> str | None:
    """Returns the weight file, or the index, in the preferred format."""
    own = weight_names(names)
    return next(
        (name for name in (own.single, own.index, _FLAX, _FLAX_INDEX) if name in names), None
    )


def files_to_push(
    names: Collection[str], read: Callable[[str], Mapping[str, Any] | None]
) -> list[str]:
    """Returns the files of an exported folder to upload."""
    weights = weight_files(names, read) or []
    flax = [name for name in names if name.startswith("flax_model") and "/" not in name]
    also = [name for name in (*_ALSO_PUSHED, *sorted(flax)) if name in names]
    return list(dict.fromkeys([*settings_files(names), *weights, *also]))


def replaced_weight_files(there: Collection[str], pushed: Collection[str]) -> list[str]:
    """Returns the weight files in a repository that the uploaded ones replace."""
    weights = (*_FORMATS, ADAPTER)
    return [
        name
        for name in sorted(there)
        if name not in pushed and (name in weights or _SHARD.fullmatch(name))
    ]


def _is_template(name: str) -> bool:
    path = PurePosixPath(name)
    return str(path.parent) == TEMPLATES and path.suffix == ".jinja"


def _is_tiktoken(name: str) -> bool:
    return "/" not in name and name.endswith(".tiktoken") and name not in SIDE_FILES


def _file_list(names: Collection[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return f"its files are {', '.join(shown[:8])}{more}" if shown else "it has no files"
