"""A published encoder: read, run as transformers runs it, and written again byte for byte.

JAXFORMER_REAL_CHECKPOINT names its folder; docs/hub.md says where to get one.
"""

import os
from pathlib import Path

import numpy as np
import pytest

import jaxformer
from jaxformer.cli import main as cli
from jaxformer.data.files.record import Record
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor

FOLDER = os.environ.get("JAXFORMER_REAL_CHECKPOINT")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.optimized,
    pytest.mark.skipif(FOLDER is None, reason="JAXFORMER_REAL_CHECKPOINT names no folder"),
]
TEXTS = (
    "A man is eating food.",
    "x",
    "The girl carries a baby, and tonight the sky is blue over the sea: 10:45, in Zürich!",
    "Someone eats.",
)


@pytest.fixture(scope="module")
def theirs():
    from transformers import AutoModel, AutoTokenizer

    return AutoModel.from_pretrained(FOLDER).eval(), AutoTokenizer.from_pretrained(FOLDER)


def run(theirs, side):
    import torch

    model, tokenizer = theirs
    batch = tokenizer(list(TEXTS), padding=True, padding_side=side, return_tensors="np")
    with torch.no_grad():
        outputs = model(**{name: torch.tensor(x) for name, x in batch.items()})
    return dict(batch), outputs


@pytest.mark.parametrize("side", ["right", "left"])
def test_outputs_are_those_of_transformers(theirs, side):
    batch, expected = run(theirs, side)
    found = jaxformer.forward(jaxformer.load(FOLDER), batch)
    real = batch["attention_mask"].astype(bool)
    theirs_last = expected.last_hidden_state.numpy()[real]
    np.testing.assert_allclose(found["last_hidden_state"][real], theirs_last, rtol=0, atol=2e-5)
    pooled = expected.pooler_output.numpy()
    np.testing.assert_allclose(found["pooler_output"], pooled, rtol=0, atol=2e-5)
    for name, ours, reference in (
        ("last_hidden_state", found["last_hidden_state"][real], theirs_last),
        ("pooler_output", found["pooler_output"], pooled),
    ):
        print(f"{name}: {np.abs(ours - reference).max():.1e} of {np.abs(reference).max():.2f}")
    print(f"tokens: {batch['attention_mask'].sum(1)}")


def test_embeddings_are_means(theirs):
    batch, expected = run(theirs, "right")
    mask = batch["attention_mask"][..., None]
    means = (expected.last_hidden_state.numpy() * mask).sum(1) / mask.sum(1)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    config = PredictionConfig(task="embeddings", normalize=True)
    predictor = open_predictor(FOLDER, config, dtype="float32")
    rows = [Record("here", {"text": text}) for text in TEXTS]
    found = np.array([row["embedding"] for row in predictor.predict(rows)])
    np.testing.assert_allclose(found, means, rtol=0, atol=2e-5)
    print(f"embeddings: {np.abs(found - means).max():.1e} of {np.abs(means).max():.2f}")


def test_its_files_are_written_again(tmp_path):
    jaxformer.save(jaxformer.load(FOLDER, dtype=None), tmp_path / "saved")
    assert cli.main(["import", FOLDER, str(tmp_path / "run")]) == 0
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "exported")]) == 0
    for folder in (tmp_path / "saved", tmp_path / "exported"):
        names = {path.name for path in folder.iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
        for name in names:
            assert (folder / name).read_bytes() == Path(FOLDER, name).read_bytes(), name
