"""Random changes of training images that leave their meaning as it is."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxformer.errors import check_field


class LabelledImage(NamedTuple):
    """An image and its label's number."""

    image: np.ndarray
    """float32 [height, width, channels]."""
    label: int


class Augmentation(abc.ABC):
    """A random change of a training example; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def __call__(
        self,
        example: LabelledImage,
        rng: np.random.Generator,
        other: Callable[[], LabelledImage],
    ) -> LabelledImage:
        """Returns the changed example, with an image of the same shape.

        Args:
            example: The example; its image stays as it is.
            rng: The row's own generator.
            other: Draws another training example at random.
        """


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """Moves the image by up to `padding` pixels each way; what comes in repeats the edge."""

    padding: int = 4
    """The largest shift, in pixels."""

    def __post_init__(self):
        check_field(self, "padding", self.padding >= 1, "at least 1")

    def __call__(self, example, rng, other):
        height, width, _ = example.image.shape
        top, left = (rng.integers(-self.padding, self.padding + 1) for _ in range(2))
        moved = example.image.take(np.arange(top, top + height), axis=0, mode="clip")
        moved = moved.take(np.arange(left, left + width), axis=1, mode="clip")
        return example._replace(image=moved)


@dataclass(frozen=True)
class HorizontalFlip(Augmentation):
    """Mirrors the image left to right."""

    probability: float = 0.5
    """The share of images that are mirrored."""

    def __post_init__(self):
        check_field(self, "probability", 0 <= self.probability <= 1, "between 0 and 1")

    def __call__(self, example, rng, other):
        flips = rng.random() < self.probability
        return example._replace(image=example.image[:, ::-1]) if flips else example


@dataclass(frozen=True)
class Mixup(Augmentation):
    r"""A blend of two images.

    .. math:: x = \lambda x_1 + (1 - \lambda) x_2, \qquad \lambda \sim \mathrm{Beta}(a, a)

    with the label of the first with probability lambda and else that of the second, so that the
    expected loss is the one of labels blended likewise.

    Reference:
        Zhang et al. 2018, mixup: Beyond Empirical Risk Minimization,
        https://arxiv.org/abs/1710.09412
    """

    alpha: float = 0.2
    """a: the larger, the more often both images have an equal share."""

    def __post_init__(self):
        check_field(self, "alpha", self.alpha > 0, "positive")

    def __call__(self, example, rng, other):
        second, share = other(), rng.beta(self.alpha, self.alpha)
        image = share * example.image + (1 - share) * second.image
        label = example.label if rng.random() < share else second.label
        return LabelledImage(image.astype(np.float32), label)
