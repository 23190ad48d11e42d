"""Images that are read as the checkpoint's processor does, from training to the export."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import jaxformer
from jaxformer.cli import main as cli
from jaxformer.config import load_config
from jaxformer.config.shipped import config_spec
from jaxformer.data.files.tables import read_records
from jaxformer.data.tasks import ImageFolder, ImageTable
from jaxformer.data.tasks.images.pixels import Resize
from jaxformer.errors import ConfigError, DataError
from jaxformer.pretrained.prediction.image_settings import ImageSettings
from jaxformer.training.resolve import fill
from jaxformer.zoo.folders import image_class

pytestmark = pytest.mark.torch

SIZES = {
    "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
TOWERS = {
    "text_config": {"vocab_size": 64, "max_position_embeddings": 8, **SIZES},
    "vision_config": {"image_size": 16, "patch_size": 8, **SIZES},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Images of many shapes, some grey, in a folder for each label."""
    folder, random = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for number in range(12):
        height, width = random.integers(17, 40, 2)
        pixels = random.integers(0, 255, (height, width, 3)).astype(np.uint8)
        home = folder / ("an owl", "Uhu")[number % 2]
        home.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels).convert(["RGB", "L"][number % 3 == 0])
        picture.save(home / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def origins(tmp_path_factory):
    """A checkpoint of each kind, by its name."""
    import torch
    import transformers

    home = tmp_path_factory.mktemp("origins")
    torch.manual_seed(0)
    square = {"height": 16, "width": 16}
    cut = {"size": {"height": 21, "width": 19}, "crop_size": square}
    plain = {key: SIZES[key] for key in list(SIZES)[:3]}
    made = {
        "deit": (
            transformers.DeiTForImageClassificationWithTeacher(
                transformers.DeiTConfig(image_size=16, patch_size=8, **SIZES)
            ),
            transformers.DeiTImageProcessor(**cut, image_mean=[0.4, 0.5, 0.6]),
        ),
        "dinov2": (
            transformers.Dinov2Model(
                transformers.Dinov2Config(image_size=40, patch_size=8, **plain)
            ),
            transformers.BitImageProcessor(size={"shortest_edge": 20}, crop_size=square),
        ),
        "mae": (
            transformers.ViTMAEForPreTraining(
                transformers.ViTMAEConfig(image_size=16, patch_size=8, **SIZES)
            ),
            transformers.ViTImageProcessor(size=square, do_normalize=False),
        ),
        "clip": (
            transformers.CLIPModel(transformers.CLIPConfig(**TOWERS, projection_dim=8)),
            transformers.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=square),
        ),
    }
    for name, (model, processor) in made.items():
        model.save_pretrained(home / name)
        processor.save_pretrained(home / name)
    return home


def experiment(origin, photos, **data):
    config = load_config(config_spec("finetune_images"))
    data = replace(config.data, source=ImageFolder(str(photos)), **data)
    return replace(config, init_from=str(origin), data=data)


@pytest.mark.parametrize(
    ("name", "size", "scaling"),
    [
        ("deit", (16, 16), Resize((21, 19), "bicubic")),
        ("dinov2", (16, 16), Resize((20,), "bicubic")),
        ("mae", (16, 16), Resize((16, 16), "bilinear")),
        ("clip", (16, 16), Resize((16,), "bicubic")),
    ],
)
def test_images_are_read_as_the_processor_does(origins, photos, name, size, scaling):
    import transformers

    config = fill(experiment(origins / name, photos, augmentation=())).config
    data, model = config.data, config.model
    assert (data.image_size, data.scaling, data.channels) == (size, scaling, 3)
    assert (model.image_size, model.heads[0].num_labels, model.mask_ratio) == (size, 2, None)
    processor = transformers.AutoImageProcessor.from_pretrained(origins / name)
    examples = data._examples(data._load(data.source), range(12), ("Uhu", "an owl"))
    for number, file in enumerate(sorted(photos.rglob("*.png"))):
        with Image.open(file) as opened:
            inputs = processor(opened.convert("RGB"), return_tensors="np")
        ours = examples.read(number, np.random.default_rng(0))["images"]
        theirs = inputs["pixel_values"][0].transpose(1, 2, 0)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)


def test_another_size_keeps_the_share_that_is_cut_off(origins, photos):
    config = fill(experiment(origins / "deit", photos, image_size=(32, 24))).config
    assert config.data.scaling == Resize((42, 28), "bicubic")
    assert config.model.image_size == (32, 24)
    assert config.model.position.max_length == 4 * 3 + 2
    assert fill(config).config == config
    with pytest.raises(ConfigError, match=r"a multiple of the patch size, 8 x 8"):
        fill(experiment(origins / "deit", photos, image_size=(30, 30)))


def test_what_says_nothing_of_images_is_refused(origins, photos, tmp_path):
    (tmp_path / "bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "bare" / name).write_bytes((origins / "deit" / name).read_bytes())
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json does not exist"):
        fill(experiment(tmp_path / "bare", photos))
    given = experiment(tmp_path / "bare", photos)
    model = jaxformer.load(tmp_path / "bare").config
    with pytest.raises(ConfigError, match="--init-from"):
        fill(replace(given, model=model, init_from=None))


@pytest.mark.parametrize(
    ("name", "options", "architecture"),
    [
        ("deit", ["--data.image-size", "24", "32"], "DeiTForImageClassification"),
        ("clip", [], "CLIPForImageClassification"),
    ],
)
@pytest.mark.slow
def test_the_pipeline_of_an_export_predicts_what_the_run_does(
    origins, photos, name, options, architecture, tmp_path
):
    import transformers

    run, exported, output = (tmp_path / part for part in ("run", "out", "out.csv"))
    given = ["--init-from", str(origins / name), "--data.train", str(photos), "--train.steps", "2"]
    given += ["--data.batch-size", "4", "--optimizer.schedule.learning-rate", "0.01"]
    assert cli.main(["train", "finetune_images", *given, *options, "--run-dir", str(run)]) == 0
    assert cli.main(["export", str(run), str(exported)]) == 0
    values = json.loads((exported / "config.json").read_text())
    assert values["architectures"] == [architecture]
    assert values["id2label"] == {"0": "Uhu", "1": "an owl"}
    asked = ["--input", str(photos), "--output", str(output), "--scores"]
    assert cli.main(["predict", str(run), *asked]) == 0
    classify = transformers.pipeline("image-classification", model=str(exported))
    for record in read_records(output):
        for found in classify(record.values["file"]):
            ours = float(record.values[f"score_{found['label']}"])
            assert ours == pytest.approx(found["score"], abs=1e-5)
    # What says the same as the checkpoint's own file is that file.
    same = (origins / name / "preprocessor_config.json").read_bytes()
    assert ((exported / "preprocessor_config.json").read_bytes() == same) is not options
    image = ImageSettings.of_folder(exported)
    assert image.of_one_size((1, 1))[0] == ((24, 32) if options else (16, 16))


def test_a_table_of_paths_is_the_folder(photos, tmp_path):
    names = sorted(file.relative_to(photos.parent) for file in photos.rglob("*.png"))
    table = photos.parent / "table.csv"
    rows = [f"{name},{name.parts[1]}" for name in names]
    table.write_text("\n".join(["file_name,kind", *rows]) + "\n", encoding="utf-8")
    assert ImageTable.reads(str(table))
    assert not ImageFolder.reads(str(table))
    found = ImageTable(str(table), label="kind").load((16, 16), 3)
    expected = ImageFolder(str(photos)).load((16, 16), 3)
    assert found.labels == expected.labels
    for number in range(12):
        np.testing.assert_array_equal(found.decode(number), expected.decode(number))
    table.write_text("file_name,kind\nphotos/none.png,a\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"table\.csv:2: .*none\.png does not exist"):
        ImageTable(str(table), label="kind").load((16, 16), 3)


def test_images_within_a_table(photos, tmp_path):
    arrow, parquet = (pytest.importorskip(f"pyarrow{end}") for end in ("", ".parquet"))
    files = sorted(photos.rglob("*.png"))
    rows = [{"bytes": file.read_bytes(), "path": None} for file in files]
    labels = [file.parent.name for file in files]
    parquet.write_table(arrow.table({"image": rows, "label": labels}), tmp_path / "a.parquet")
    found = ImageTable(str(tmp_path / "a.parquet")).load((16, 16), 3)
    expected = ImageFolder(str(photos)).load((16, 16), 3)
    assert found.labels == expected.labels
    assert len(set(found.names)) == 12
    np.testing.assert_array_equal(found.decode(7), expected.decode(7))
    rows[1]["bytes"] = b"none"
    parquet.write_table(arrow.table({"image": rows, "label": labels}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet, row 2: not an image that can be decoded"):
        ImageTable(str(tmp_path / "a.parquet")).load((16, 16), 3).decode(1)


def test_the_splits_of_a_data_set_are_no_labels(photos, tmp_path):
    for split in ("train", "val"):
        (tmp_path / split).symlink_to(photos)
    with pytest.raises(DataError, match="holds the splits train, validation"):
        ImageFolder(str(tmp_path)).load((16, 16), 3)


def test_only_dual_encoders_have_a_class_for_their_images(origins):
    assert image_class(origins / "clip") == "CLIPForImageClassification"
    assert image_class(origins / "deit") is None
