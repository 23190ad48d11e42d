"""The direction of validation metrics: which value is better."""

# All other metrics are shares or correlations.
_LOWER_IS_BETTER = ("loss", "perplexity", "squared_error", "bits_per_byte", "wer")


def lower_is_better(metric: str) -> bool:
    """Whether a metric, perhaps that of one head ("tags_loss"), is better where it is smaller."""
    return any(metric == name or metric.endswith("_" + name) for name in _LOWER_IS_BETTER)


def cost(metric: str, value: float | None) -> float | None:
    """A metric as a number that is better where it is smaller; None where it was not measured."""
    return value if value is None or lower_is_better(metric) else -value
