"""A page to browse attention maps: choose a layer and a head, point at a token."""

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.lab.attention.maps import AttentionMaps, PatchGrid
from jaxformer.lab.attention.script import MARKUP, SCRIPT, STYLE
from jaxformer.lab.page import Page

_LEVELS = 65535
"""Weights are stored as whole numbers of 2 bytes, this many for 1."""


def write_viewer(path: str | Path, title: str, maps: Sequence[AttentionMaps]) -> Path:
    """Writes a page with attention maps to browse; it needs no network."""
    page = Page(title)
    page.text(
        "Choose a head in the grid of small maps. Point at a token to see how much attention it "
        "pays to each key; point at a key to see which tokens pay attention to it. A click holds "
        "the choice."
    )
    page.html(viewer_fragment(maps))
    return page.write(path)


def viewer_fragment(maps: Sequence[AttentionMaps]) -> str:
    """Returns the HTML of a viewer: markup, style, data as JSON, and the script."""
    data = json.dumps({"levels": _LEVELS, "maps": [_as_json(each) for each in maps]})
    data = data.replace("<", "\\u003c")  # no token ends the script
    return (
        f"<style>{STYLE}</style>\n{MARKUP}\n"
        f'<script type="application/json" id="attention-data">{data}</script>\n'
        f"<script>{SCRIPT}</script>"
    )


def read_weights(data: dict[str, Any], levels: int) -> np.ndarray:
    """Reads the weights of one entry of the viewer's JSON.

    Args:
        data: The entry.
        levels: What stands for 1, the JSON's "levels".

    Returns:
        float32 `[layers, heads, T, S]`, each within half a level of the weight.
    """
    shape = [len(data[name]) for name in ("layers", "heads", "queries", "keys")]
    numbers = np.frombuffer(base64.b64decode(data["weights"]), "<u2")
    return (numbers.reshape(shape) / levels).astype(np.float32)


def _as_json(maps: AttentionMaps) -> dict[str, Any]:
    levels = np.round(np.clip(maps.weights, 0, 1) * _LEVELS).astype("<u2")
    return {
        "name": maps.name,
        "queries": maps.queries,
        "keys": maps.keys,
        "layers": list(maps.layers),
        "heads": list(maps.heads),
        "weights": base64.b64encode(levels.tobytes()).decode(),
        "image": None if maps.grid is None else _image(maps.grid),
    }


def _image(grid: PatchGrid) -> dict[str, Any]:
    from matplotlib.image import imsave

    pixels = grid.pixels
    pixels = np.repeat(pixels, 3, axis=-1) if pixels.shape[-1] == 1 else pixels[..., :3]
    buffer = io.BytesIO()
    imsave(buffer, np.clip(pixels, 0, 1), format="png")
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    height, width = pixels.shape[:2]
    return {
        "source": source,
        "height": height,
        "width": width,
        "rows": grid.rows,
        "columns": grid.columns,
        "prefix": grid.prefix,
    }
