"""Published scores of generated texts from the papers of the recipes, for comparison."""

from collections.abc import Mapping
from typing import NamedTuple

from jaxformer.io.console import aligned
from jaxformer.training.logging.progress import short_number


class PublishedScore(NamedTuple):
    """A row of a table in a paper."""

    model: str
    """The name of the model in the paper."""
    data: str
    """The test set."""
    scores: Mapping[str, float]
    """The metrics, under this library's names and in its units."""
    source: str
    """The paper and the table."""
    flops: float | None = None
    """Training FLOPs as estimated in the paper, or None."""


_TRANSFORMER = "Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, table 2"
_BART = "Lewis et al. 2019, https://arxiv.org/abs/1910.13461, table 3"
_T5 = "Raffel et al. 2019, https://arxiv.org/abs/1910.10683, table 14"
_GERMAN, _FRENCH = (f"WMT 2014 English-{other}" for other in ("German", "French"))
PUBLISHED = (
    PublishedScore("Transformer (base)", _GERMAN, {"bleu": 27.3}, _TRANSFORMER, 3.3e18),
    PublishedScore("Transformer (base)", _FRENCH, {"bleu": 38.1}, _TRANSFORMER, 3.3e18),
    PublishedScore("Transformer (big)", _GERMAN, {"bleu": 28.4}, _TRANSFORMER, 2.3e19),
    PublishedScore("Transformer (big)", _FRENCH, {"bleu": 41.8}, _TRANSFORMER, 2.3e19),
    PublishedScore("BART", "CNN/DailyMail", {"rouge1": 0.4416, "rouge2": 0.2128}, _BART),
    PublishedScore("BART", "XSum", {"rouge1": 0.4514, "rouge2": 0.2227}, _BART),
    PublishedScore("T5-11B", "CNN/DailyMail", {"rouge1": 0.4352, "rouge2": 0.2155}, _T5),
)
"""Published scores. ROUGE-L is omitted, since papers do not say which of its two variants they use.
"""


def published_lines(metric: str) -> list[str]:
    """Returns lines with the published values of a metric, or an empty list."""
    rows = [
        [
            each.model,
            f"{each.scores[metric]:.4f}",
            each.data,
            "" if each.flops is None else f"{short_number(each.flops)} FLOPs",
            each.source,
        ]
        for each in PUBLISHED
        if metric in each.scores
    ]
    return ["published, on other data:", *aligned(rows)] if rows else []
