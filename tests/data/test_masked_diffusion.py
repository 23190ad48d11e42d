"""The objective of masked diffusion that docs/extending.md works out."""

import re
from pathlib import Path

import numpy as np
import pytest

from jaxformer.config import load_config, validate
from jaxformer.data import Bytes
from jaxformer.data.text.packing import TokenRow

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    blocks = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    for name, text in blocks:
        (folder / name).write_text(text)
    assert len(dict(blocks)["masked_diffusion.py"].splitlines()) <= 60
    return load_config(str(folder / "masked_diffusion.py"))


def row_of(length, count):
    tokens = np.where(np.arange(length) < count, np.arange(length) % 200, 257).astype(np.int32)
    return TokenRow(tokens, np.roll(tokens, -1), np.arange(length) < count, None, None)


def test_hidden_tokens_weigh_one_over_the_share_that_is_hidden(config):
    tokenizer = Bytes().fit([], ("mask",))
    function = config.data.objective.bind(tokenizer, 64)
    mask_id = tokenizer.token_id("[MASK]")
    row, random, shares, totals = row_of(64, 50), np.random.default_rng(0), [], []
    for _ in range(4000):
        batch = function(row, random)
        hidden = batch["inputs"] == mask_id
        assert not hidden[50:].any()
        np.testing.assert_array_equal(batch["weights"] > 0, hidden)
        np.testing.assert_array_equal(batch["inputs"][~hidden], row.tokens[~hidden])
        np.testing.assert_array_equal(batch["targets"], row.tokens)
        assert len(set(batch["weights"][hidden])) <= 1
        shares.append(hidden[:50].mean())
        totals.append(batch["weights"].sum())
    # t is uniform, and the expected weight of every token is 1.
    assert np.mean(shares) == pytest.approx(0.5, abs=0.02)
    assert np.quantile(shares, [0.25, 0.75]) == pytest.approx([0.25, 0.75], abs=0.04)
    assert np.mean(totals) == pytest.approx(50, rel=0.05)
    assert not function(row_of(64, 0), random)["weights"].any()


def test_the_experiment_is_valid(config):
    validate(config, 1)
    assert config.data.objective.head in [head.name for head in config.model.heads]
