"""The share of padding in a batch of sounds, by the number of lengths to which they are padded.

The lengths of the sounds are log-normal between 1 and 30 seconds. An epoch is planned as in
training, without sounds, so the figures are those that a run prints at its start.

    python benchmarks/padding.py
"""

import grain
import numpy as np

from jaxformer.data.buckets import BucketedDataset, SizedExamples, bucket_lengths

COUNTS = (1, 4, 6, 8, 10, 12)
SPREADS = ((4, 0.5), (6, 0.6), (6, 0.9), (12, 0.5))
"""The median in seconds, and the deviation of the logarithm."""


class Lengths(SizedExamples):
    """Sounds that have only lengths."""

    def __init__(self, sizes: np.ndarray):
        self.sizes = sizes

    def read_padded(self, index, rng, length):
        raise NotImplementedError


def seconds_of(median: float, deviation: float, count: int) -> np.ndarray:
    """Returns the lengths of sounds, float `[count]`."""
    drawn = np.random.default_rng(0).normal(np.log(median), deviation, 3 * count)
    seconds = np.exp(drawn)
    return seconds[(seconds >= 1) & (seconds <= 30)][:count]


def padding(sizes: np.ndarray, count: int, batch_size: int) -> float:
    """Returns the share of padding in an epoch."""
    lengths = bucket_lengths(sizes, count)
    options = grain.ReadOptions()
    return BucketedDataset(Lengths(sizes), batch_size, 0, options, lengths).padding


def main() -> None:
    print("median s  deviation  " + "  ".join(f"{count:3} lengths" for count in COUNTS))
    for median, deviation in SPREADS:
        sizes = (seconds_of(median, deviation, 10_000) * 16_000).astype(int)
        shares = [f"{padding(sizes, count, batch_size=32):11.1%}" for count in COUNTS]
        print(f"{median:8}  {deviation:9}  " + "  ".join(shares))


if __name__ == "__main__":
    main()
