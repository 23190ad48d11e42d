"""Which layers see only a window of the tokens before them, as transformers says it."""

from collections.abc import Sequence
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.hub.hf_config import HFConfig

FULL, SLIDING = "full_attention", "sliding_attention"
Windows = tuple[int | None, ...]


def read_windows(hf_config: HFConfig, usual: Sequence[str], window: int | None) -> Windows:
    """The windows of successive layers, in the shortest pattern that repeats to the depth.

    Args:
        hf_config: The configuration, whose "layer_types" names the kind of each layer.
        usual: The kinds where it does not.
        window: How many tokens a layer of kind "sliding_attention" sees, itself among them.

    Raises:
        ConfigError: There are not as many kinds as layers, one is unknown, or there is no window.
    """
    kinds = hf_config.take("layer_types", None) or usual
    if len(kinds) != len(usual) or not set(kinds) <= {FULL, SLIDING}:
        raise ConfigError(
            f"{hf_config.path}: layer_types = {kinds!r}: must be {len(usual)} times "
            f"{FULL!r} or {SLIDING!r}"
        )
    if SLIDING in kinds and window is None:
        raise ConfigError(
            f"{hf_config.path}: layer_types has {SLIDING!r}, but there is no sliding_window"
        )
    return shortest_pattern([window if kind == SLIDING else None for kind in kinds])


def write_windows(windows: Windows, num_layers: int) -> dict[str, Any]:
    """And back."""
    sizes = [window for window in windows if window is not None]
    kinds = [FULL if window is None else SLIDING for window in windows]
    return {
        "layer_types": kinds * (num_layers // len(windows)),
        "sliding_window": sizes[0] if sizes else None,
    }


def shortest_pattern(windows: Sequence[int | None]) -> Windows:
    """The shortest pattern that gives these windows when it is repeated."""
    count = len(windows)
    lengths = (length for length in range(1, count + 1) if count % length == 0)
    patterns = (tuple(windows[:length]) for length in lengths)
    return next(x for x in patterns if x * (count // len(x)) == tuple(windows))
