"""Labelled images, their normalisation and augmentation."""

import abc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from jaxformer.checks import POSITIVE, PROBABILITY, at_least, check_fields, check_types
from jaxformer.data.bad_rows import OnBadRow, with_skip_advice
from jaxformer.data.base import Data, Datasets
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.labels import in_order, numbered, save_labels
from jaxformer.data.split import train_validation_split
from jaxformer.data.tasks.images.pixels import (
    Fit,
    Scaling,
    check_form,
    keep_preprocessor,
    preprocessor,
)
from jaxformer.data.tasks.images.sources import Digits, ImageSet, ImageSource, decodable
from jaxformer.errors import DataError

FORM = ("image_size", "channels", "mean", "std", "scaling")
"""The fields that define how images are read, which may be left to a checkpoint."""


class LabelledImage(NamedTuple):
    """An image and its label's number."""

    image: np.ndarray
    """float32 [height, width, channels]."""
    label: int


class Augmentation(abc.ABC):
    """A random change of a training example; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def __call__(
        self, example: LabelledImage, rng: np.random.Generator, other: Callable[[], LabelledImage]
    ) -> LabelledImage:
        """Returns the changed example, with an image of the same shape."""


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """Shifts the image by up to `padding` pixels in each direction; the edge is repeated."""

    padding: int = 4
    """The largest shift, in pixels."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, padding=at_least(1))

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
        check_types(self)
        check_fields(self, probability=PROBABILITY)

    def __call__(self, example, rng, other):
        flips = rng.random() < self.probability
        return example._replace(image=example.image[:, ::-1]) if flips else example


@dataclass(frozen=True)
class Mixup(Augmentation):
    r"""A blend of two images.

    .. math:: x = \lambda x_1 + (1 - \lambda) x_2, \qquad \lambda \sim \mathrm{Beta}(a, a)

    with the label of the first with probability lambda, or else that of the second, so that the
    expected loss equals that of labels blended in the same proportion.

    References:
        Zhang et al. 2018, mixup: Beyond Empirical Risk Minimization,
        https://arxiv.org/abs/1710.09412
    """

    alpha: float = 0.2
    """The parameter a: the larger it is, the more often both images have an equal share."""

    def __post_init__(self):
        check_types(self)
        check_fields(self, alpha=POSITIVE)

    def __call__(self, example, rng, other):
        second = other()
        share = rng.beta(self.alpha, self.alpha)
        image = share * example.image + (1 - share) * second.image
        label = example.label if rng.random() < share else second.label
        return LabelledImage(image.astype(np.float32), label)


@dataclass(frozen=True)
class Images(Data):
    """Images with one label each.

    A row has "images" float32 [height, width, channels], "label" int32 and "label_weights" float32,
    which is 0 if the row only fills up a batch.
    """

    source: ImageSource = Digits()
    """Where the images come from."""

    validation_source: ImageSource | None = None
    """Where the validation data come from; None holds out a share of the training data."""

    image_size: tuple[int, int] | None = (8, 8)
    """Height and width in pixels; None: those of the checkpoint."""

    channels: int | None = 1
    """1 for grey, 3 for red, green and blue; None: those of the checkpoint."""

    mean: tuple[float, ...] | None = (0.5,)
    """Subtracted from the pixels, which lie between 0 and 1: one number, or one per channel; None:
    that of the checkpoint."""

    std: tuple[float, ...] | None = (0.5,)
    """Divides the pixels after that: one number, or one per channel; None: that of the checkpoint.
    """

    scaling: Scaling | None = Fit()
    """How images get their size: Fit or Resize; None: as in the checkpoint's image processor."""

    augmentation: tuple[Augmentation, ...] = ()
    """Random changes of the training images, in order."""

    on_bad_row: OnBadRow = "stop"
    """What happens to an image that cannot be decoded: it stops the run, or is left out (skip),
    which decodes every image at the start; more than 5 % of them stop the run in either case.
    """

    label_order: tuple[str, ...] = ()
    """The labels in the order of their numbers; empty: those of the training data, sorted."""

    head = "classification"
    has_text = False
    has_images = True

    def __post_init__(self):
        super().__post_init__()
        check_form(self)

    @property
    def form_is_open(self) -> bool:
        """Whether a checkpoint has to define how images are read."""
        return any(getattr(self, name) is None for name in FORM)

    @property
    def lengths(self) -> dict[str, int]:
        """Empty: the model determines the number of tokens of an image."""
        return {}

    def prepare(self, folder: str | os.PathLike) -> Datasets:
        """Finds the images; saves their labels' names and, for exports, the image settings."""
        images = self._load(self.source)
        labels = save_labels(folder, self._labels(images))
        form = self.image_size, self.channels, self.mean, self.std
        keep_preprocessor(folder, preprocessor(self.scaling, *form))
        usable = self._usable(images, self.source)
        if self.validation_source is None:
            train, validation = train_validation_split(
                usable,
                [images.names[number] for number in usable],
                self.validation_fraction,
                self.split_seed,
                self.source,
            )
            held_out = self._examples(images, validation, labels)
        else:
            train = usable
            held_out = self.validation_examples(None, labels)
        shown = self._examples(images, train, labels, self.augmentation)
        sides = self.dataset(shown, "train"), self.dataset(held_out, "validation")
        found = Datasets(*sides, labels=labels)
        height, width = self.image_size
        kind = {1: "grey", 3: "RGB"}[self.channels]
        read = f"{height} x {width} pixels, {kind}, {self.scaling}"
        return replace(found, summary=(*found.sides(), ("images", read)))

    def training_labels(self):
        return self._labels(self.source.load(self.image_size or (8, 8), self.channels or 1))

    def _load(self, source: ImageSource) -> ImageSet:
        return source.load(self.image_size, self.channels, self.scaling)

    def _labels(self, images: ImageSet) -> tuple[str, ...]:
        return in_order(sorted(set(images.labels)), self.label_order)

    def validation_examples(self, tokenizer, labels):
        if self.validation_source is None:
            return None
        images = self._load(self.validation_source)
        return self._examples(images, self._usable(images, self.validation_source), labels)

    def _usable(self, images: ImageSet, source: ImageSource) -> Sequence[int]:
        return decodable(range(len(images.names)), images.decode, self.on_bad_row, source)

    def _examples(self, images, chosen, labels, augmentation=()) -> "ImageExamples":
        return ImageExamples(images, chosen, labels, self.mean, self.std, augmentation)


class ImageExamples(ExampleSource):
    """Some images of a set, augmented and normalised."""

    def __init__(
        self,
        images: ImageSet,
        chosen: Sequence[int],
        labels: tuple[str, ...],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        augmentation: tuple[Augmentation, ...] = (),
    ):
        self._images = images
        self._chosen = chosen
        self._augmentation = augmentation
        self._mean = np.array(mean, np.float32)
        self._std = np.array(std, np.float32)
        self._labels = numbered(
            [images.labels[number] for number in chosen],
            labels,
            [images.names[number] for number in chosen],
        )

    def __len__(self) -> int:
        return len(self._chosen)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        example = self._example(index)
        for change in self._augmentation:
            example = change(example, rng, lambda: self._example(int(rng.integers(len(self)))))
        return self._row(*example, weight=1.0)

    def blank(self) -> Batch:
        return self._row(np.zeros_like(self._example(0).image), 0, weight=0.0)

    def _example(self, index: int) -> LabelledImage:
        try:
            image = self._images.decode(self._chosen[index])
        except DataError as error:
            raise DataError(with_skip_advice(error)) from error
        return LabelledImage(image, int(self._labels[index]))

    def _row(self, image: np.ndarray, label: int, weight: float) -> Batch:
        return {
            "images": ((image - self._mean) / self._std).astype(np.float32),
            "label": np.int32(label),
            "label_weights": np.float32(weight),
        }
