"""What training made of positions: learned tables and T5's biases of a checkpoint."""

import numpy as np
import pytest
from hf_checkpoints import save_checkpoint
from typed_commands import command

import jaxformer
from jaxformer.errors import ConfigError
from jaxformer.functional import T5Bias, t5_bucket
from jaxformer.lab.positions.trained import (
    bias_by_distance,
    similarity_by_distance,
    trained_section,
)

pytestmark = pytest.mark.more


def test_similarity_is_the_mean_cosine_of_pairs():
    table = np.random.default_rng(0).normal(size=(5, 3))
    found = similarity_by_distance(table)
    pairs = [(table[i], table[i + 2]) for i in range(3)]
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs]
    np.testing.assert_allclose(found[2], np.mean(cosines), rtol=1e-6)
    assert found.shape == (5,)
    assert found[0] == pytest.approx(1)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_bias_of_a_distance_is_that_of_its_bucket(bidirectional):
    scheme = T5Bias(num_buckets=8, max_distance=12, bidirectional=bidirectional)
    table = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    distances, bias = bias_by_distance(scheme, table)
    assert (distances[0], distances[-1]) == (-15, 15 if bidirectional else 0)
    buckets = t5_bucket(distances, num_buckets=8, max_distance=12, bidirectional=bidirectional)
    np.testing.assert_array_equal(bias, table[np.asarray(buckets)])


@pytest.mark.torch
def test_tables_of_checkpoints_are_found(tmp_path):
    for kind, names in {
        "gpt2": {"trained-transformer-table"},
        "t5": {"trained-encoder-bias", "trained-decoder-bias"},
    }.items():
        model = jaxformer.load(save_checkpoint(kind, tmp_path / kind))
        section = trained_section(model, kind)
        assert {picture.name for picture in section.pictures} == names
    with pytest.raises(ConfigError, match="RoPE"):
        trained_section(jaxformer.load(save_checkpoint("llama", tmp_path / "llama")), "llama")


@pytest.mark.torch
def test_the_report_has_the_trained_table(tmp_path):
    folder = save_checkpoint("bert", tmp_path / "bert")
    sizes = ["--length", "6", "--model-dim", "8", "--num-heads", "2", "--limit", "500"]
    words = ["--schemes", "alibi", "--trained", folder, "--out", tmp_path / "out", *sizes]
    command("lab", "positions", *words)
    assert (tmp_path / "out" / "trained-transformer-table.png").stat().st_size > 10_000
