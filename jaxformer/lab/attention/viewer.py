"""An interactive page of attention maps: choose a layer and a head, hover over a token."""

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxformer.lab.attention.maps import AttentionMaps, PatchGrid
from jaxformer.lab.attention.script import MARKUP, SCRIPT, STYLE
from jaxformer.lab.page import png_source

_LEVELS = 65535
"""Weights are stored as 16-bit integers; this value represents 1."""


def viewer_fragment(maps: Sequence[AttentionMaps]) -> str:
    """Returns the HTML of a viewer: markup, style, data as JSON, and the script."""
    data = json.dumps({"levels": _LEVELS, "maps": [_as_json(each) for each in maps]})
    data = data.replace("<", "\\u003c")  # so that a token cannot close the script element
    return (
        f"<style>{STYLE}</style>\n{MARKUP}\n"
        f'<script type="application/json" id="attention-data">{data}</script>\n'
        f"<script>{SCRIPT}</script>"
    )


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

    buffer = io.BytesIO()
    imsave(buffer, np.clip(grid.rgb, 0, 1), format="png")
    height, width = grid.pixels.shape[:2]
    return {
        "source": png_source(buffer.getvalue()),
        "height": height,
        "width": width,
        "rows": grid.rows,
        "columns": grid.columns,
        "prefix": grid.prefix,
    }
