"""A new head and its task need two files: they train, save, load, evaluate and predict."""

from dataclasses import dataclass

import numpy as np
import pytest
from corpora import write_rows
from rated_text import RatedText
from rating_head import Rating
from tiny_models import tiny_encoder

import jaxformer
from jaxformer.config import Config, TrainConfig
from jaxformer.data import Bytes
from jaxformer.data.files.tables import read_records
from jaxformer.io.files import read_json
from jaxformer.models import Classification as LibraryClassification
from jaxformer.models import MultipleChoice
from jaxformer.models.heads.base import head_class
from jaxformer.optim import AdamW, Constant
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor
from jaxformer.training.resolve import fill

MODEL = tiny_encoder(vocab_size=264, num_layers=1, heads=(Rating(highest=3),))
SETTINGS = {"steps": 100, "eval_interval": 100, "checkpoint_interval": 100, "loggers": ()}


@pytest.fixture
def reviews(tmp_path):
    """Reviews that are as good as one of their words says."""
    words = {1: "awful", 2: "fair", 3: "superb"}
    rows = [{"review": f"{words[n % 3 + 1]} {n % 7}", "stars": n % 3 + 1} for n in range(48)]
    return write_rows(tmp_path / "reviews.jsonl", rows)


@pytest.mark.more
def test_two_files_train_save_load_and_predict(reviews, tmp_path):
    data = RatedText(train=reviews, validation=reviews, tokenizer=Bytes(), batch_size=8)
    config = Config(MODEL, data, AdamW(schedule=Constant(1e-2)), train=TrainConfig(**SETTINGS))
    result = jaxformer.train(config, tmp_path / "run")
    assert {"loss", "accuracy", "mean_loss"} == result.metrics.keys()
    assert result.metrics["accuracy"] > 0.5
    assert set(read_json(tmp_path / "run" / "evaluation.json")["trivial"]) == {"accuracy"}
    model = jaxformer.load(tmp_path / "run")
    assert model.config.heads == (Rating(highest=3),)
    predictor = open_predictor(tmp_path / "run", PredictionConfig(scores=True))
    records = list(read_records(reviews))
    rows = predictor.predict(records)
    assert all(row.keys() == {"rating", "expected"} for row in rows)
    right = [
        row["rating"] == record.value("stars") for row, record in zip(rows, records, strict=True)
    ]
    np.testing.assert_allclose(np.mean(right), result.metrics["accuracy"], atol=1e-6)
    ids = np.array([[1, 2, 3]])
    assert jaxformer.forward(model, {"input_ids": ids})["logits"].shape == (1, 2)


@pytest.mark.torch
def test_a_checkpoint_gets_the_head_that_the_data_ask_for(reviews, checkpoint):
    config = Config(None, RatedText(train=reviews), init_from=str(checkpoint("bert")))
    assert fill(config).config.model.heads == (Rating(),)


def test_data_ask_for_heads_by_name():
    assert head_class(Rating.kind()) is Rating
    assert head_class("multiple_choice") is MultipleChoice
    assert head_class("next_sentence") is None

    @dataclass(frozen=True)
    class Classification(Rating):
        """Named as one of the library's, which it does not replace."""

    assert head_class(Classification.kind()) is LibraryClassification
