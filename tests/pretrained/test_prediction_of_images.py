"""Labels of images equal those of the pipeline of transformers, and those of a run's evaluation."""

import jax
import numpy as np
import pytest
from evaluated_runs import measured

from jaxformer.cli import main as cli
from jaxformer.config import Config
from jaxformer.data.files.record import Record
from jaxformer.data.files.tables import read_records
from jaxformer.data.tasks import ImageFolder, Images
from jaxformer.errors import DataError
from jaxformer.functional import Learned
from jaxformer.models import Classification, VisionConfig
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor

pytestmark = pytest.mark.more

LABELS = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Images of several sizes and modes, in a folder for each label."""
    image = pytest.importorskip("PIL.Image")
    folder, random = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for number in range(9):
        size = [(32, 32), (40, 24), (21, 33)][number % 3]
        low = random.integers(0, 255, (4, 4, 3)).astype(np.uint8)
        picture = image.fromarray(low).resize(size).convert(["RGB", "L"][number % 2])
        (folder / LABELS[number % 3]).mkdir(parents=True, exist_ok=True)
        picture.save(folder / LABELS[number % 3] / f"{number}.png")
    return folder


@pytest.mark.torch
def test_the_command_labels_the_images_of_a_folder(photos, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=40, id2label=dict(enumerate(LABELS)), initializer_range=0.3,
    )  # fmt: skip
    folder = tmp_path / "vit"
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    size = {"height": 32, "width": 32}
    processor = transformers.ViTImageProcessor(size=size, resample=3, image_mean=[0.1, 0.2, 0.3])
    processor.save_pretrained(folder)
    classify = transformers.pipeline("image-classification", model=str(folder))
    output = tmp_path / "out.csv"
    arguments = ["--input", str(photos), "--output", str(output), "--scores", "--batch-size", "4"]
    assert cli.main(["predict", str(folder), *arguments]) == 0
    rows = [record.values for record in read_records(output)]
    assert [row["file"] for row in rows] == sorted(map(str, photos.rglob("*.png")))
    for row in rows:
        wanted = {each["label"]: each["score"] for each in classify(row["file"])}
        for label, score in wanted.items():
            assert float(row[f"score_{label}"]) == pytest.approx(score, abs=1e-5)
        assert row["label"] == max(LABELS, key=lambda label: float(row[f"score_{label}"]))


def test_labels_are_those_of_the_evaluation(photos, tmp_path):
    source = ImageFolder(str(photos))
    data = Images(
        source=source, validation_source=source, image_size=(16, 24), channels=3, batch_size=4
    )
    model = VisionConfig(
        image_size=(16, 24), patch_size=(8, 8), channels=3, num_layers=1, model_dim=24,
        num_heads=2, mlp_dim=32, heads=(Classification(num_labels=3),), compute_dtype="float32",
        position=Learned(max_length=7),
    )  # fmt: skip
    run = tmp_path / "run"
    result, _ = measured(
        run,
        Config(model, data),
        lambda program: jax.tree.map(lambda x: x * 3, program.init(0).params),
    )
    predictor = open_predictor(run, PredictionConfig(batch_size=4))
    records = list(predictor.reader.records(photos, True))
    found = predictor.predict(records)
    assert [row["label"] for row in found] == [LABELS[n] for n in result.predictions.predicted]
    embedded = open_predictor(run, PredictionConfig(task="embeddings", pooling="first"))
    assert len(embedded.predict(records[:1])[0]["embedding"]) == model.model_dim
    (tmp_path / "broken.png").write_text("no image")
    with pytest.raises(DataError, match=r"broken\.png: not an image that can be decoded"):
        predictor.predict([Record("x:1", {"file": str(tmp_path / "broken.png")})])
    with pytest.raises(DataError, match="holds no images"):
        predictor.reader.records(tmp_path / "run", True)
