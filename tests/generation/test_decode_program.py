"""What the compiled decode step consists of, layer by layer."""

import re
from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest
from generate_cases import engine_of
from tiny_models import tiny

from jaxformer.generation.decode.loop import SamplingParams
from jaxformer.generation.engine import _split_cache, row_keys
from jaxformer.generation.inputs import Prompts

pytestmark = pytest.mark.optimized

GREEDY = SamplingParams((), False, ())
FREE = ("bitcast", "constant", "get-tuple-element", "parameter", "tuple")
KV_HEADS, HEAD_DIM, CAPACITY = 3, 10, 64


def operations(layers, rows, dtype):
    """Counts the operations in the body of the decode loop by their kinds."""
    sizes = {"num_heads": 12, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    config = tiny(num_layers=layers, model_dim=32, mlp_dim=48, compute_dtype=dtype, **sizes)
    engine = engine_of(config)
    prompts = Prompts(np.ones((rows, 20), np.int32), np.full(rows, 20, np.int32))
    state = engine.prefill(prompts, 30, keys=row_keys(0, np.arange(rows)))
    cache, rest = _split_cache(replace(state, pending=1))
    text = engine._generate.lower(GREEDY, engine.weights, cache, rest, 4).compile().as_text()
    bodies = [text.split(f"\n{name} ")[1] for name in re.findall(r" body=(%[\w.-]+)", text)]
    body = max((body.split("\n}")[0] for body in bodies), key=len)
    lines = re.findall(r"= \w+\[([\d,]*)\]\S* ([\w-]+)\((.*)", body)
    return Counter(kind_of(*line, rows) for line in lines if line[1] not in FREE)


def kind_of(shape, kind, rest, rows):
    if kind == "dot" or "kind=kCustom" in rest:
        return "product"
    sizes = sorted(int(size) for size in shape.split(",") if size not in ("", "1"))
    cache = sorted(size for size in (rows, KV_HEADS, CAPACITY, HEAD_DIM) if size > 1)
    return "whole cache" if sizes == cache else "other"


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.first("bfloat16-1")
@pytest.mark.quick("bfloat16-1", "float32-4")
def test_a_layer_has_six_products_and_no_copy_of_the_cache(rows, dtype):
    fewer, more = (operations(layers, rows, dtype) for layers in (2, 3))
    assert not fewer - more
    layer = more - fewer
    assert layer["product"] == 6  # q|k|v, scores, values, output, gate|up, down
    assert layer["whole cache"] <= 2  # The updates of the keys and of the values.
    # Since jaxlib 0.11 it pads the rows and transposes the result of a product separately.
    assert layer["other"] <= (20 if jax.__version_info__ < (0, 11) else 22)
