"""The output files of `lab experts`: a page, its figures, and the numbers as JSON."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.checkpoints.files import write_json
from jaxformer.lab.drawing import save
from jaxformer.lab.experts.pictures import (
    agreement_picture,
    class_picture,
    entropy_picture,
    load_picture,
)
from jaxformer.lab.experts.routing import Routing
from jaxformer.lab.page import Page

HEADER = (
    "layer",
    "busiest / mean",
    "unused",
    "entropy, a token",
    "entropy, mean load",
    "same token",
    "any two tokens",
)
"""The columns of the table of layers."""
_TOP_TOKENS = 8


_PICTURES = (
    (
        "load",
        load_picture,
        "Load",
        "White is a uniform load, red a larger and blue a smaller one. The busiest expert sets the "
        "time of a layer whose experts are on several devices; an expert in dark blue learns "
        "little.",
    ),
    (
        "entropy",
        entropy_picture,
        "Entropy",
        "The entropy of a token is low where the router is certain. Dashed: equal probabilities "
        "of all experts; dotted: of as many experts as a token has. The entropy of the mean load "
        "is at the dashed line if all experts have the same load, and falls if the router "
        "collapses.",
    ),
    (
        "agreement",
        agreement_picture,
        "Does the routing depend only on the token?",
        "At 1 all occurrences of a token have the same experts, in any context. Where the curve is "
        "near that of any two tokens, the experts do not depend on the token.",
    ),
    (
        "classes",
        class_picture,
        "Experts by class of token",
        "A row is the load by the tokens of a class. The color scale ends at four times a uniform "
        "load.",
    ),
)
"""The name, function, title and caption of each picture."""


def table(routing: Routing) -> list[list[object]]:
    """Returns the rows of the table of layers, whose columns are `HEADER`."""
    load = routing.load()
    columns = (
        load.max(axis=1).tolist(),
        np.sum(load == 0, axis=1).tolist(),
        routing.entropies.mean(axis=1).tolist(),
        routing.load_entropies().tolist(),
        routing.mean_agreements().tolist(),
        routing.chance().tolist(),
    )
    rows = zip(routing.layers, *columns, strict=True)
    return [["–" if value != value else value for value in row] for row in rows]


def write_experts(folder: Path, title: str, setting: str, routing: Routing) -> list[Path]:
    """Writes a page, its figures and the numbers; returns the files, the page first."""
    folder.mkdir(parents=True, exist_ok=True)
    page = Page(title)
    per_token = routing.experts.shape[-1]
    page.text(
        setting,
        f"Each layer routes a token to {per_token} of {routing.num} experts. Entropies are in "
        f"nats: {math.log(routing.num):.3f} for {routing.num} equal probabilities. The last two "
        "columns are the fraction of its experts that a token shares with another occurrence of "
        "the same token, and with any other token.",
    )
    page.table(table(routing), HEADER)
    files = []
    for name, draw, heading, caption in _PICTURES:
        figure = draw(routing)
        files.append(save(figure, folder / f"experts-{name}.png"))
        page.section(heading)
        page.figure(figure, caption, alt=heading)
    page.section("Tokens of each expert")
    page.text(
        "The tokens that an expert receives most often, relative to its share of all tokens, with "
        "their count and number of occurrences. ␣ is a space."
    )
    top_tokens = routing.top_tokens(_TOP_TOKENS)
    for layer, load, tops in zip(routing.layers, routing.load(), top_tokens, strict=True):
        rows = [
            [expert, load[expert], ", ".join(f"{t.name} {t.routed}/{t.occurrences}" for t in top)]
            for expert, top in enumerate(tops)
        ]
        page.table(rows, ("expert", "load", "tokens"), f"Layer {layer}")
    numbers = folder / "experts.json"
    write_json(numbers, _numbers(setting, routing, top_tokens))
    return [page.write(folder / "experts.html"), numbers, *files]


def _numbers(setting: str, routing: Routing, top_tokens: Sequence[Any]) -> dict[str, Any]:
    """Returns the numbers of the page and its figures as JSON types."""
    by_class = routing.by_class()
    columns = {
        "layer": routing.layers,
        "load": routing.load().tolist(),
        "token_entropy": routing.entropies.mean(axis=1).tolist(),
        "load_entropy": routing.load_entropies().tolist(),
        "same_token_agreement": _or_none(routing.mean_agreements()),
        "any_token_agreement": _or_none(routing.chance()),
        "load_by_class": _rows({k: routing.load(v).tolist() for k, v in by_class.items()}),
        "agreement_by_class": _rows(
            {k: _or_none(routing.mean_agreements(v)) for k, v in by_class.items()}
        ),
        "top_tokens": [[[token._asdict() for token in top] for top in tops] for tops in top_tokens],
    }
    return {
        "setting": setting,
        "tokens": len(routing.ids),
        "tokens_by_class": {name: int(np.sum(chosen)) for name, chosen in by_class.items()},
        "num_experts": routing.num,
        "experts_per_token": routing.experts.shape[-1],
        "layers": _rows(columns),
    }


def _rows(columns: dict[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Converts columns with a value for each layer to one dictionary per layer."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _or_none(values: np.ndarray) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
