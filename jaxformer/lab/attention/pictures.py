"""Figures of attention maps: an overview of all heads, and the heads of a layer with tokens."""

import math
from typing import Any

import numpy as np

from jaxformer.lab.attention.maps import AttentionMaps
from jaxformer.lab.drawing import canvas, shown_text

MOST_LABELS = 48
"""Maximum number of token labels on an axis; for longer texts, every n-th token is labelled."""
_MOST_TIMES, _LONGEST_NAME = 15, 14
_WIDEST = 16.0
_MOST_COLUMNS = 4
_LOOKS = {"cmap": "Blues", "interpolation": "nearest"}


def overview(maps: AttentionMaps) -> Any:
    """Draws a small map of every head, with one row of maps per layer.

    Each query is scaled by its largest weight, so that all patterns are visible.
    """
    if maps.grid is None:
        tiles = maps.weights / np.maximum(maps.weights.max(axis=-1, keepdims=True), 1e-9)
        about = f"{len(maps.queries)} queries down, {len(maps.keys)} keys across"
    else:
        tiles = patch_weights(maps)
        tiles = tiles / np.maximum(tiles.max(axis=(-2, -1), keepdims=True), 1e-9)
        about = _source(maps)
    shape = min(max(tiles.shape[3] / tiles.shape[2], 0.6), 1.8)
    rows, columns = tiles.shape[:2]
    size = (0.95 * columns * shape + 2.6, max(0.95 * rows + 1.5, 3.2))
    scope = "query" if maps.grid is None else "head"
    title = f"{maps.name}: every head\n{about}"
    figure, ((axes,),) = canvas(title, (max(size[0], 0.075 * len(title)), size[1]))
    mosaic, x, y = _mosaic(tiles)
    aspect = shape * mosaic.shape[1] / mosaic.shape[0] * rows / (columns * shape**2)
    image = axes.imshow(mosaic, aspect=aspect, vmin=0.0, vmax=1.0, **_LOOKS)
    figure.colorbar(image, ax=axes, label=f"weight / largest of the {scope}", shrink=0.8)
    axes.set_xticks(x, [str(head) for head in maps.heads])
    axes.set_yticks(y, [str(layer) for layer in maps.layers])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def layer_page(maps: AttentionMaps, layer: int) -> Any:
    """Draws the maps of all heads of a layer, with the tokens or the image."""
    row = maps.layers.index(layer)
    if maps.grid is None:
        return _token_page(maps, layer, maps.weights[row])
    return _image_page(maps, layer, patch_weights(maps)[row])


def patch_weights(maps: AttentionMaps) -> np.ndarray:
    """Returns the attention of the first token to the patches, or the mean over all tokens.

    Its shape is `[layers, heads, rows, columns]`.
    """
    grid, weights = maps.grid, maps.weights
    row = weights[..., 0, :] if grid.prefix else weights.mean(axis=-2)
    return row[..., grid.prefix :].reshape(*row.shape[:-1], grid.rows, grid.columns)


def _token_page(maps: AttentionMaps, layer: int, weights: np.ndarray) -> Any:
    from matplotlib.colors import PowerNorm

    size = _panel_size(maps)
    columns = max(1, min(_MOST_COLUMNS, len(weights), int(_WIDEST / size[0])))
    columns = math.ceil(len(weights) / math.ceil(len(weights) / columns))
    title = f"{maps.name}, layer {layer}: queries down, keys across"
    figure, panels = _panels(title, len(weights), columns, size)
    # The square root makes small weights visible, and 1 is the same color on every page; over time
    # attention is spread over so many keys that the largest weight of a layer is chosen instead.
    largest = float(weights.max()) if maps.times[1] else 1.0
    scale = PowerNorm(0.5, vmin=0.0, vmax=largest)
    for number, (axes, values) in enumerate(zip(panels, weights, strict=False)):
        image = axes.imshow(values, aspect="auto", norm=scale, **_LOOKS)
        axes.set_title(f"head {maps.heads[number]}", fontsize=10)
        _name_tokens(axes, maps, left=number % columns == 0)
    ticks = None if maps.times[1] else (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)
    bar = {"label": "attention weight", "ticks": ticks, "aspect": 40}
    figure.colorbar(image, ax=list(panels), **bar, format="%g")
    return figure


def _image_page(maps: AttentionMaps, layer: int, weights: np.ndarray) -> Any:
    title = f"{maps.name}, layer {layer}: {_source(maps)}"
    count = len(weights) + 1
    figure, panels = _panels(title, count, min(_MOST_COLUMNS + 1, count), (2.4, 2.7))
    panels[0].imshow(maps.grid.rgb)
    panels[0].set_title("image", fontsize=10)
    height, width = maps.grid.pixels.shape[:2]
    place = {"extent": (0, width, height, 0), "vmin": 0.0, **_LOOKS}
    for axes, head, values in zip(panels[1:], maps.heads, weights, strict=False):
        image = axes.imshow(values / max(float(values.max()), 1e-9), vmax=1.0, **place)
        axes.set_title(f"head {head}, at most {values.max():.2f}", fontsize=10)
    for axes in panels[:count]:
        axes.set_xticks([])
        axes.set_yticks([])
    figure.colorbar(image, ax=list(panels[:count]), label="weight / largest of the head")
    return figure


def _panels(
    title: str, count: int, columns: int, size: tuple[float, float]
) -> tuple[Any, np.ndarray]:
    rows = math.ceil(count / columns)
    width = max(columns * size[0] + 0.9, 0.09 * len(title) + 0.5)
    figure, grid = canvas(title, (width, rows * size[1] + 0.6), rows, columns)
    for axes in grid.flat[count:]:
        axes.axis("off")
    return figure, grid.ravel()


def _mosaic(tiles: np.ndarray) -> tuple[np.ndarray, list[float], list[float]]:
    """Arranges tiles `[rows, columns, h, w]` in a grid; returns it and the centers of the tiles."""
    rows, columns, height, width = tiles.shape
    gap_y, gap_x = (max(1, round(0.08 * side)) for side in (height, width))
    gaps = ((0, 0), (0, 0), (0, gap_y), (0, gap_x))
    padded = np.pad(tiles.astype(float), gaps, constant_values=np.nan).swapaxes(1, 2)
    mosaic = padded.reshape(rows * (height + gap_y), -1)[:-gap_y, :-gap_x]
    x = [n * (width + gap_x) + (width - 1) / 2 for n in range(columns)]
    y = [n * (height + gap_y) + (height - 1) / 2 for n in range(rows)]
    return mosaic, x, y


def _source(maps: AttentionMaps) -> str:
    source = f"the {maps.queries[0]} token" if maps.grid.prefix else "all tokens, mean"
    return f"attention of {source}"


def _panel_size(maps: AttentionMaps) -> tuple[float, float]:
    counts = zip((maps.queries, maps.keys), _most_labels(maps), strict=True)
    height, width = (0.16 * min(len(names), most) + 1.0 for names, most in counts)
    return max(width, 2.4), max(height, 2.2)


def _most_labels(maps: AttentionMaps) -> list[int]:
    """Returns the maximum number of labels of queries and of keys."""
    return [_MOST_TIMES if time else MOST_LABELS for time in maps.times]


def _name_tokens(axes: Any, maps: AttentionMaps, left: bool) -> None:
    of_queries, of_keys = _most_labels(maps)
    sides = (axes.xaxis, maps.keys, of_keys, True), (axes.yaxis, maps.queries, of_queries, left)
    for axis, names, most, shown in sides:
        step = math.ceil(len(names) / most)
        places = list(range(0, len(names), step)) if shown else []
        turn = 90 if axis is axes.xaxis else 0
        labels = [shown_text(names[n], _LONGEST_NAME) for n in places]
        axis.set_ticks(places, labels, rotation=turn, fontsize=8)
