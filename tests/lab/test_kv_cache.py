"""The cache of a decoder: its bytes are those that generation allocates, its work a formula."""

import jax
import numpy as np
import pytest
from tiny_models import tiny, tiny_encoder

from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.functional import Learned
from jaxformer.lab.experiments.kv_cache import cache_report, cache_sizes, next_token_flops
from jaxformer.models import AbstractModel
from jaxformer.nn.cache import CacheShape

pytestmark = pytest.mark.more

LAYERS, HEADS, KV_HEADS, WIDTH = 3, 6, 2, 8
CONFIG = tiny(num_layers=LAYERS, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=WIDTH)


def test_a_token_takes_its_keys_and_values():
    found = cache_sizes(CONFIG, (1, 7), "bfloat16")
    assert found.token_bytes == 2 * LAYERS * KV_HEADS * WIDTH * 2
    assert found.num_bytes.tolist() == [found.token_bytes, 7 * found.token_bytes]
    scaled = cache_sizes(CONFIG, (1,), "int8")
    assert scaled.token_bytes == 2 * LAYERS * KV_HEADS * (WIDTH + 4)


def test_the_bytes_are_those_that_are_allocated():
    config = tiny(num_layers=2, windows=(4, None))
    model = AbstractModel(config.build)
    shape = CacheShape(batch_size=1, capacity=16, chunk=1, storage="float32")
    cache = model.module(model.init(jax.random.key(0))).init_cache(shape)
    arrays = [x for x in jax.tree.leaves(cache.layers) if x.dtype == np.float32]
    assert cache_sizes(config, (16,), "float32").num_bytes == sum(x.nbytes for x in arrays)


def test_without_a_cache_the_row_is_computed_again():
    cached, recomputed = next_token_flops(CONFIG, 10)
    flops = CONFIG.flops({"inputs": 10})
    assert cached == flops.products + 10 * 4 * LAYERS * HEADS * WIDTH
    np.testing.assert_allclose(recomputed, 10 * flops.products + 55 * 4 * LAYERS * HEADS * WIDTH)


def test_fewer_heads_save_their_share():
    report = cache_report(CONFIG, "tiny", (4, 8), "float32")
    heads = {row[0]: row[2] for row in report.rows if row[0]}
    assert heads == {6: 3 * heads[2], 2: 2 * heads[1], 1: 2 * LAYERS * WIDTH * 4}


def test_what_has_no_such_cache_is_refused():
    with pytest.raises(ConfigError, match="must be a decoder"):
        cache_report(tiny_encoder(), "tiny", (4, 8), "float32")
    with pytest.raises(ArgumentError, match="increasing order"):
        cache_report(CONFIG, "tiny", (8, 4), "float32")
    with pytest.raises(ArgumentError, match="16"):
        cache_report(tiny(position=Learned(max_length=16)), "tiny", (8, 32), "float32")
