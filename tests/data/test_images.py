import dataclasses
import json
import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

from jaxformer.data.tasks import Digits, HorizontalFlip, ImageFolder, Images, Mixup, RandomCrop
from jaxformer.data.tasks.images.labelled import LabelledImage
from jaxformer.errors import DataError

AUGMENTED = Images(augmentation=(RandomCrop(2), HorizontalFlip(), Mixup(0.4)), batch_size=8)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "images" / label / "more").mkdir(parents=True)
        for number in range(3):
            pixels = rng.integers(0, 256, (6 + number, 9, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / "more" / f"{number}.PNG")
    return tmp_path / "images"


def of_folder(folder, **changes):
    fields = {"image_size": (6, 9), "channels": 3, "mean": (0.0,), "std": (1.0,), "batch_size": 2}
    return Images(source=ImageFolder(str(folder)), **(fields | changes))


def test_the_digits_are_scikit_learns(tmp_path):
    config = Images(mean=(0.25,), std=(0.5,), validation_fraction=0.1)
    data = config.prepare(tmp_path)
    assert data.labels == tuple("0123456789")
    assert json.loads((tmp_path / "labels.json").read_text()) == list("0123456789")
    assert data.train.num_rows + data.validation.num_rows == 1797
    digits = load_digits()
    known = {
        (image / 16).astype(np.float32).tobytes(): label
        for image, label in zip(digits.images, digits.target, strict=True)
    }
    batch = data.train.batch(3)
    assert batch["images"].shape == (16, 8, 8, 1)
    assert batch["images"].dtype == np.float32
    for image, label in zip(batch["images"], batch["label"], strict=True):
        assert known[(image * np.float32(0.5) + np.float32(0.25)).tobytes()] == label


def test_a_folder_has_a_label_for_each_sub_folder(folder, tmp_path):
    data = of_folder(folder, validation_source=ImageFolder(str(folder))).prepare(tmp_path / "run")
    assert data.labels == ("cat", "dog")
    rows = next(iter(data.validation.epoch(batch_size=6)))
    assert rows["label"].tolist() == [0, 0, 0, 1, 1, 1]
    with Image.open(folder / "cat" / "more" / "0.PNG") as image:
        expected = np.asarray(image, np.float32) / 255
    np.testing.assert_allclose(rows["images"][0], expected, rtol=0, atol=1e-7)
    assert rows["images"].shape == (6, 6, 9, 3)


def test_grey_images(folder, tmp_path):
    data = of_folder(folder, channels=1, validation_fraction=0.3).prepare(tmp_path / "run")
    assert data.train.batch(0)["images"].shape == (2, 6, 9, 1)


def png(width, height):
    """A file of some bytes that says it is an image of any size."""

    def chunk(name, content):
        checked = name + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"")), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(
    "content",
    [
        png(30_000, 30_000),
        png(2**31 - 1, 2**31 - 1),
        png(100, 100),
        png(0, 5),
        b"P6\n100000 100000\n255\n",
        b"P6\n0 0\n255\n",
        b"",
    ],
    ids=["bomb", "larger", "cut", "no pixels", "ppm bomb", "ppm of none", "empty"],
)
def test_bombs_and_damaged_images_are_refused(folder, content):
    (folder / "cat" / "0.png").write_bytes(content)
    images = ImageFolder(str(folder)).load((6, 9), 3)
    with pytest.raises(DataError, match=r"cat/0\.png: not an image that can be decoded"):
        images.decode(images.names.index("cat/0.png"))


@given(st.sampled_from(["png", "jpeg", "gif", "bmp", "ppm", "tiff", "webp"]), st.data())
def test_any_damage_to_an_image_gives_pixels_or_one_error(tmp_path_factory, kind, data):
    path = tmp_path_factory.mktemp("damaged") / "cat" / f"0.{kind}"
    path.parent.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    images = ImageFolder(str(path.parents[1])).load((6, 9), 3)
    try:
        assert images.decode(0).shape == (6, 9, 3)
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017


def test_pixels_of_16_bits_are_scaled_and_of_32_refused(tmp_path):
    (tmp_path / "a").mkdir()
    pixels = np.array([[0, 0x8000], [0x4000, 0xFFFF]], np.uint16)
    Image.fromarray(pixels).save(tmp_path / "a" / "0.png")
    Image.fromarray(pixels.astype(np.float32)).save(tmp_path / "a" / "1.tiff")
    images = ImageFolder(str(tmp_path)).load((2, 2), 1)
    expected = np.float32([[0, 128], [64, 255]]) / 255
    np.testing.assert_allclose(images.decode(0)[..., 0], expected, rtol=0, atol=1e-6)
    with pytest.raises(DataError, match=r"a/1\.tiff.*pixels of 32 bits"):
        images.decode(1)


def test_pipes_and_links_in_a_circle_are_refused(folder):
    os.mkfifo(folder / "cat" / "pipe.png")
    images = ImageFolder(str(folder)).load((6, 9), 3)
    with pytest.raises(DataError, match=r"pipe\.png is a pipe"):
        images.decode(images.names.index("cat/pipe.png"))
    (folder / "dog" / "again").symlink_to(folder / "cat")
    assert len(ImageFolder(str(folder)).load((6, 9), 3).names) == 11
    (folder / "dog" / "circle").symlink_to(folder)
    with pytest.raises(DataError, match=r"dog/circle is a link to .*images, which contains it"):
        ImageFolder(str(folder)).load((6, 9), 3)


def test_a_label_only_in_validation_is_refused(folder, tmp_path):
    other = tmp_path / "other" / "bird"
    other.mkdir(parents=True)
    (folder / "cat" / "more" / "0.PNG").rename(other / "0.png")
    config = of_folder(folder, validation_source=ImageFolder(str(other.parent)))
    with pytest.raises(DataError, match=r"bird/0\.png: the label 'bird' .* 'cat', 'dog'"):
        config.prepare(tmp_path / "run")


def test_the_last_batch_is_filled_with_rows_of_no_weight(tmp_path):
    validation = Images(validation_fraction=0.01, batch_size=8).prepare(tmp_path).validation
    batches = list(validation.epoch())
    assert {batch["images"].shape for batch in batches} == {(8, 8, 8, 1)}
    assert sum(batch["label_weights"].sum() for batch in batches) == validation.num_rows


def test_augmentation_is_a_function_of_seed_and_row(tmp_path):
    first, again = (AUGMENTED.prepare(tmp_path).train for _ in range(2))
    other = dataclasses.replace(AUGMENTED, seed=1).prepare(tmp_path).train
    np.testing.assert_array_equal(first.batch(5)["images"], again.batch(5)["images"])
    np.testing.assert_array_equal(
        first.batch(5)["images"][[2, 6]], first.batch(5, rows=[2, 6])["images"]
    )
    assert (first.batch(5)["images"] != other.batch(5)["images"]).any()


def test_validation_images_stay_as_they_are(tmp_path):
    plain = dataclasses.replace(AUGMENTED, augmentation=())
    for a, b in zip(
        AUGMENTED.prepare(tmp_path).validation.epoch(),
        plain.prepare(tmp_path).validation.epoch(),
        strict=True,
    ):
        np.testing.assert_array_equal(a["images"], b["images"])


images = st.integers(0, 2**32).map(
    lambda seed: np.random.default_rng(seed).random((5, 7, 2), np.float32)
)


@given(images, st.integers(0, 1000), st.integers(1, 3))
def test_a_crop_is_a_shift(image, seed, padding):
    crop = RandomCrop(padding)(LabelledImage(image, 1), np.random.default_rng(seed), None).image
    padded = np.pad(image, ((padding,) * 2, (padding,) * 2, (0, 0)), mode="edge")
    shifts = range(2 * padding + 1)
    assert any((crop == padded[i : i + 5, j : j + 7]).all() for i in shifts for j in shifts)


@given(images, st.integers(0, 1000))
def test_flips_are_left_to_right(image, seed):
    always, never = HorizontalFlip(1.0), HorizontalFlip(0.0)
    rng, example = np.random.default_rng(seed), LabelledImage(image, 1)
    np.testing.assert_array_equal(always(example, rng, None).image, np.flip(image, 1))
    np.testing.assert_array_equal(never(example, rng, None).image, image)


def test_mixup_draws_the_label_with_the_images_share():
    zeros, ones = (LabelledImage(np.full((1, 1, 1), n, np.float32), n) for n in (0, 1))
    rng, mixup = np.random.default_rng(0), Mixup(1.0)
    drawn = [mixup(ones, rng, lambda: zeros) for _ in range(4000)]
    shares = np.array([example.image.item() for example in drawn])
    labels = np.array([example.label for example in drawn])
    assert np.abs((labels - shares).mean()) < 4 * 0.41 / np.sqrt(4000)  # 0.41 = sqrt(1 / 6)
    high = shares > 0.8
    assert np.abs((labels - shares)[high].mean()) < 0.05


def test_digits_have_one_size():
    with pytest.raises(DataError, match="Digits are 8 x 8"):
        Digits().load((16, 16), 1)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no images: expected .*/LABEL/FILE"):
        ImageFolder(str(tmp_path)).load((8, 8), 1)
    with pytest.raises(DataError, match="is not a folder"):
        ImageFolder(str(tmp_path / "none")).load((8, 8), 1)


def test_a_label_without_images_is_refused(folder):
    (folder / "bird").mkdir()
    (folder / "bird" / "notes.txt").write_text("none yet")
    with pytest.raises(DataError, match=r"images/bird holds no images, and every folder in .*png"):
        ImageFolder(str(folder)).load((6, 9), 3)
