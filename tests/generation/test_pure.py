"""Generation as a pure function gives the tokens of `generate`."""

from functools import partial

import jax
import numpy as np
import pytest
from recordings import Recording

from jaxformer.generation.api import generate
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.pure import generate_rows
from jaxformer.pretrained.auto import load

IDS = np.arange(3, 15).reshape(2, 6)
MASK = np.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.first("1")
def test_the_same_tokens(beams, tmp_path):
    Recording.read("gpt2").write(tmp_path)
    model = load(tmp_path)
    options = {"max_new_tokens": 4, "num_beams": beams, "eos_token_id": 7}
    expected = generate(model, {"input_ids": IDS, "attention_mask": MASK}, **options)["sequences"]
    config = GenerationConfig(**options)
    run = jax.jit(partial(generate_rows, model.model, config=config, key=jax.random.key(0)))
    found = np.asarray(run(IDS, MASK)["sequences"])
    assert found.shape == (2, 10)
    assert np.array_equal(found[:, : expected.shape[1]], expected)
