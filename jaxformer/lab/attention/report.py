"""The files of `lab attention`: pictures for print, and a page to browse."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jaxformer.errors import ArgumentError
from jaxformer.lab.attention.maps import AttentionMaps
from jaxformer.lab.attention.pictures import layer_page, overview
from jaxformer.lab.attention.viewer import write_viewer
from jaxformer.lab.drawing import save

PAGE = "attention.html"
MOST_WEIGHTS = 32_000_000
"""The most weights that a page may hold; it has about 2.7 bytes for each."""
Format = Literal["png", "pdf", "svg"]


def write_maps(
    folder: Path, title: str, maps: Sequence[AttentionMaps], media: Format = "png"
) -> list[Path]:
    """Writes attention maps: an overview, a picture for each layer and a page."""
    count = sum(each.weights.size for each in maps)
    if count > MOST_WEIGHTS:
        raise ArgumentError(
            f"attention: the page would hold {count:,} weights: must be at most {MOST_WEIGHTS:,}; "
            "give a shorter text, or choose --layers and --heads"
        )
    folder.mkdir(parents=True, exist_ok=True)
    written = [write_viewer(folder / PAGE, title, maps)]
    for each in maps:
        name = each.name.replace(" ", "-")
        written.append(save(overview(each), folder / f"{name}-overview.{media}"))
        for layer in each.layers:
            path = folder / f"{name}-layer-{layer:02d}.{media}"
            written.append(save(layer_page(each, layer), path))
    return written
