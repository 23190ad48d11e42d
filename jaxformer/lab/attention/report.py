"""The output files of `lab attention`: figures and an interactive page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jaxformer.errors import ArgumentError
from jaxformer.lab.attention.maps import AttentionMaps
from jaxformer.lab.attention.pictures import layer_page, overview
from jaxformer.lab.attention.viewer import viewer_fragment
from jaxformer.lab.drawing import save
from jaxformer.lab.page import Page

PAGE = "attention.html"
MOST_WEIGHTS = 32_000_000
"""Maximum number of weights on a page, each of about 2.7 bytes."""
Format = Literal["png", "pdf", "svg"]


def write_maps(
    folder: Path, title: str, maps: Sequence[AttentionMaps], media: Format = "png"
) -> list[Path]:
    """Writes attention maps: an overview, a figure for each layer and an interactive page."""
    count = sum(each.weights.size for each in maps)
    if count > MOST_WEIGHTS:
        raise ArgumentError(
            f"attention: the page would contain {count:,} weights: must be at most "
            f"{MOST_WEIGHTS:,}; give a shorter text, or choose --layers and --heads"
        )
    folder.mkdir(parents=True, exist_ok=True)
    page = Page(title)
    page.text(
        "Choose a head in the grid of small maps. Hover over a token to see how much attention "
        "it pays to each key; hover over a key to see which tokens pay attention to it. Click to "
        "pin the selection."
    )
    page.html(viewer_fragment(maps))
    written = [page.write(folder / PAGE)]
    for each in maps:
        name = each.name.replace(" ", "-")
        written.append(save(overview(each), folder / f"{name}-overview.{media}"))
        for layer in each.layers:
            path = folder / f"{name}-layer-{layer:02d}.{media}"
            written.append(save(layer_page(each, layer), path))
    return written
