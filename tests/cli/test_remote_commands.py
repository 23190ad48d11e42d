"""Commands whose tables are in object stores."""

import numpy as np
import pytest
from tiny_models import random_parameters
from typed_commands import printed, refused

from jaxformer.checkpoints.saved_run import write_run
from jaxformer.config import Config
from jaxformer.data import Bytes
from jaxformer.data.files.tables import read_records
from jaxformer.data.labels import save_labels
from jaxformer.data.tasks.glue import GlueFolder
from jaxformer.data.tasks.glue_tasks import TASKS
from jaxformer.data.tasks.images.pixels import FIT, scaled_pixels
from jaxformer.data.tasks.images.sources import ImageFolder
from jaxformer.data.tasks.images.text_pairs import ImageTextPairs
from jaxformer.data.tasks.labelled_text import LabelledText
from jaxformer.errors import DataError
from jaxformer.io.files import upload_folder
from jaxformer.io.paths import any_path
from jaxformer.io.staging import CACHE
from jaxformer.models import Classification, EncoderConfig

pytestmark = pytest.mark.more

pytest_plugins = "object_store"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))


@pytest.fixture
def classifier(tmp_path):
    """The run of a classifier of texts."""
    folder = tmp_path / "classifier"
    model = EncoderConfig(
        vocab_size=264, num_layers=1, model_dim=16, num_heads=2, mlp_dim=32,
        heads=(Classification(2),), scan_layers=False,
    )  # fmt: skip
    data = LabelledText("rows.csv", tokenizer=Bytes(), sequence_length=16, text=("text",))
    write_run(folder, Config(model, data), 0, random_parameters(model))
    Bytes().fit([]).save(folder / "tokenizer")
    save_labels(folder, ["no", "yes"])
    return folder


def uploaded(folder, url):
    upload_folder(folder, any_path(url, "url"))
    return url


@pytest.mark.slow
def test_predictions_go_to_a_store(bucket, classifier, tmp_path, capsys):
    run, table = uploaded(classifier, f"{bucket}/run"), any_path(f"{bucket}/in.csv", "url")
    table.write_text("text,id\na dog,1\na cat,2\n")
    (tmp_path / "in.csv").write_bytes(table.read_bytes())
    found = []
    for folder, source, output in (
        (run, table, f"{bucket}/out/new.jsonl"),
        (classifier, tmp_path / "in.csv", tmp_path / "new.jsonl"),
    ):
        options = ("--input", source, "--output", output, "--scores")
        said = printed(capsys, "predict", folder, *options)
        assert f"written to {output}: 2 rows" in said
        found.append([record.values for record in read_records(output)])
    assert found[0] == found[1]
    asked, there = ("predict", run, "--input", table, "--output"), f"{bucket}/out/new.jsonl"
    assert f"--output {there} exists" in refused(capsys, *asked, there)
    said = refused(capsys, *asked, "s3://no-such-bucket/new.jsonl")
    assert "there is no bucket 'no-such-bucket'" in said


def test_images_and_glue_are_read(bucket, tmp_path):
    image = pytest.importorskip("PIL.Image")
    for label, value in (("black", 0), ("white", 255)):
        (tmp_path / "images" / label).mkdir(parents=True)
        pixels = np.full((4, 4, 3), value, np.uint8)
        image.fromarray(pixels).save(tmp_path / "images" / label / "one.png")
    images = ImageFolder(uploaded(tmp_path / "images", f"{bucket}/images")).load((4, 4), 3)
    assert images.labels == ["black", "white"]
    np.testing.assert_array_equal(images.decode(1), np.ones((4, 4, 3), np.float32))
    (tmp_path / "glue" / "CoLA").mkdir(parents=True)
    for split in ("train", "dev"):
        rows = "gj04\t1\t\tA dog runs.\ngj04\t0\t*\tDog a runs.\n"
        (tmp_path / "glue" / "CoLA" / f"{split}.tsv").write_text(rows)
    url = uploaded(tmp_path / "glue", f"{bucket}/glue")
    there, here = (GlueFolder(str(root), TASKS["cola"]) for root in (url, tmp_path / "glue"))
    assert [row[1:] for row in there.rows("dev")] == [row[1:] for row in here.rows("dev")]
    assert there.missing() == []


def test_pairs_of_images_and_texts_are_read(bucket, tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "pairs").mkdir()
    image.fromarray(np.full((4, 4, 3), 255, np.uint8)).save(tmp_path / "pairs" / "white.png")
    url = f"{bucket}/pairs"
    rows = f"image,text\nwhite.png,a wall\n{url}/white.png,the same\n"
    (tmp_path / "pairs" / "train.csv").write_text(rows)
    uploaded(tmp_path / "pairs", url)
    data = ImageTextPairs(train=f"{url}/train.csv", image_size=(4, 4), tokenizer=Bytes())
    found = data.read(data.train)
    assert [str(row.image) for row in found] == [f"{url}/white.png"] * 2
    pixels = scaled_pixels(found[0].image, (4, 4), 3, FIT)
    np.testing.assert_array_equal(pixels, np.ones((4, 4, 3)))
    (any_path(url, "url") / "train.csv").write_text("image,text\nblack.png,a hole\n")
    with pytest.raises(DataError, match=r"black\.png does not exist"):
        data.read(data.train)
