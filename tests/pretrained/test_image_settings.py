"""Files of image processors, old and new, are read as transformers reads them."""

import json

import numpy as np
import pytest

from jaxformer.cli import main as cli
from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import read_records
from jaxformer.errors import ConfigError, DataError
from jaxformer.parity.reference import save_random
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor
from jaxformer.pretrained.prediction.image_settings import PREPROCESSOR, ImageSettings
from jaxformer.pretrained.writing import save

pillow = pytest.importorskip("PIL.Image")
SIZES = {"image_size": 32, "patch_size": 8, "num_channels": 3}
OLD = {
    "do_normalize": True,
    "do_resize": True,
    "image_mean": [0.1, 0.5, 0.4],
    "image_std": [0.5] * 3,
}


def photos(folder, sizes=((40, 24), (21, 33))):
    """A photograph in colour and one in grey, one of them held upright."""
    random, files = np.random.default_rng(0), []
    folder.mkdir()
    for number, size in enumerate(sizes):
        low = random.integers(0, 255, (5, 4, 3)).astype(np.uint8)
        picture = pillow.fromarray(low).resize(size).convert(["RGB", "L"][number % 2])
        exif = picture.getexif()
        exif[0x0112] = [6, 1][number % 2]
        files.append(folder / f"{number}.png")
        picture.save(files[-1], exif=exif)
    return files


def saved(kind, settings, folder, **changes):
    save_random(kind.lower(), f"{kind}ForImageClassification", folder, **(SIZES | changes))
    (folder / PREPROCESSOR).write_text(json.dumps(settings))
    return folder


def rows_of(files):
    return [Record(str(file), {"file": str(file)}) for file in files]


FILES = {
    "beit as it was saved": (
        "Beit",
        OLD | {"crop_size": 28, "do_center_crop": False, "size": 32, "resample": 2}
        | {"feature_extractor_type": "BeitFeatureExtractor"},
    ),
    "beit, cut": (
        "Beit",
        OLD | {"crop_size": {"height": 32, "width": 32}, "do_center_crop": True}
        | {"size": {"height": 36, "width": 40}, "image_processor_type": "BeitImageProcessor"},
    ),
    "deit as it was saved": (
        "DeiT",
        OLD | {"crop_size": 32, "size": 37, "resample": 3}
        | {"feature_extractor_type": "DeiTFeatureExtractor"},
    ),
    "deit, cut beyond the edge": (
        "DeiT",
        {"crop_size": 32, "size": 29, "image_processor_type": "DeiTImageProcessor"},
    ),
    "vit": ("ViT", {"size": 32, "feature_extractor_type": "ViTFeatureExtractor"}),
    "by the short side": (
        "Dinov2",
        {"size": 35, "crop_size": 32, "image_processor_type": "BitImageProcessor"},
    ),
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "settings"), FILES.values(), ids=FILES)
@pytest.mark.quick("beit as*", "deit as*")
def test_labels_are_those_of_the_pipeline(kind, settings, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder, files = saved(kind, settings, tmp_path / "model"), photos(tmp_path / "photos")
    classify = transformers.pipeline("image-classification", model=str(folder))
    rows = open_predictor(folder, PredictionConfig(scores=True)).predict(rows_of(files))
    for file, row in zip(files, rows, strict=True):
        for each in classify(str(file)):
            assert row[f"score_{each['label']}"] == pytest.approx(each["score"], abs=2e-5)


def test_the_file_of_a_whole_processor_comes_first(tmp_path):
    """As version 5 of transformers writes it, and reads it where there are both."""
    own = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 31}}
    whole = {"image_processor": own, "processor_class": "CLIPProcessor"}
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    assert ImageSettings.of_folder(tmp_path).values["size"] == {"shortest_edge": 31}
    (tmp_path / PREPROCESSOR).write_text(json.dumps({"size": 32}))
    assert ImageSettings.of_folder(tmp_path).values["size"] == {"shortest_edge": 31}
    # Older files of a processor have its class alone.
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "X"}))
    assert ImageSettings.of_folder(tmp_path).values["size"] == 32


@pytest.mark.torch
def test_images_of_another_size_are_read_when_asked_for(tmp_path):
    folder = saved("ViT", {"do_resize": False}, tmp_path / "model")
    files = photos(tmp_path / "photos")
    with pytest.raises(DataError, match=r"0\.png: .* makes \(40, 24\) pixels .* --interpolate"):
        open_predictor(folder).predict(rows_of(files))
    output = tmp_path / "out.jsonl"
    arguments = ["--input", str(tmp_path / "photos"), "--output", str(output), "--batch-size", "1"]
    assert cli.main(["predict", str(folder), *arguments, "--interpolate-positions"]) == 0
    assert len(list(read_records(output))) == 2
    both = open_predictor(folder, PredictionConfig(interpolate_positions=True))
    with pytest.raises(DataError, match=r"\(33, 21\) and \(40, 24\) pixels are in one batch"):
        both.predict(rows_of(files))


@pytest.mark.torch
def test_what_is_no_image_of_the_model_is_refused(tmp_path):
    folder = saved("ViT", {"size": 32}, tmp_path / "model")
    file = tmp_path / "notes.png"
    file.write_text("no image")
    with pytest.raises(DataError, match=r"notes\.png: not an image"):
        open_predictor(folder).predict(rows_of([file]))
    folder = saved("ViT", {"size": 32}, tmp_path / "two", num_channels=2)
    with pytest.raises(DataError, match=r"0\.png: image files have 1 or 3 channels.* reads 2"):
        open_predictor(folder).predict(rows_of(photos(tmp_path / "photos")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": "large"}, "size = 'large': must be a whole number"),
        ({"size": {"longest_edge": 30}}, "size = .*longest_edge.*: must be"),
        ({"crop_size": {"height": 3.5, "width": 4}}, r"crop_size = .*3\.5"),
        ({"image_mean": [0.5, 0.5]}, r"image_mean = \[0\.5, 0\.5\]: must be a number or three"),
        ({"resample": 9}, "resample = 9: must be a filter"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings, message, tmp_path):
    (tmp_path / PREPROCESSOR).write_text(json.dumps(settings))
    with pytest.raises(DataError, match=message):
        ImageSettings.of_folder(tmp_path)


@pytest.mark.torch
def test_a_model_that_resizes_is_saved_as_it_came(tmp_path):
    folder = saved("ViT", {"size": 32}, tmp_path / "model")
    save(load(folder, interpolate_positions=True), tmp_path / "copy")
    assert (tmp_path / "copy" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    with pytest.raises(ConfigError, match="interpolate_position: VisionConfig has no such field"):
        load(folder, interpolate_position=True)
