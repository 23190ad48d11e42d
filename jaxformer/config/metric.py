"""The direction of validation metrics: which value is better."""

# All other metrics are fractions or correlations.
_LOWER_IS_BETTER = ("loss", "perplexity", "squared_error", "bits_per_byte", "wer")


def lower_is_better(metric: str) -> bool:
    """Whether lower values of a metric ("loss", "tags_loss") are better."""
    return any(metric == name or metric.endswith("_" + name) for name in _LOWER_IS_BETTER)


def cost(metric: str, value: float | None) -> float | None:
    """Returns a metric as a cost (lower is better), or None if it was not measured."""
    return value if value is None or lower_is_better(metric) else -value
