"""What the compiled decode step consists of, layer by layer."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tiny_models import random_parameters, structure_of, tiny

from jaxformer.generation.decode.loop import SamplingParams
from jaxformer.generation.engine import Engine, _split_cache, row_keys
from jaxformer.generation.inputs import Prompts

GREEDY = SamplingParams((), False, ())
FREE = ("bitcast", "constant", "get-tuple-element", "parameter", "tuple")
KV_HEADS, HEAD_DIM, CAPACITY = 3, 10, 64


def operations(layers, rows, dtype):
    """The operations in the body of the decode loop, `(kind, shape, text)` each."""
    sizes = {"num_heads": 12, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    config = tiny(num_layers=layers, model_dim=32, mlp_dim=48, compute_dtype=dtype, **sizes)
    engine = Engine(config, structure_of(config), random_parameters(config))
    lengths = np.full(rows, 20, np.int32)
    prompts = Prompts(np.ones((rows, 20), np.int32), lengths)
    state = engine.prefill(prompts, 30, keys=row_keys(0, np.arange(rows)))
    cache, rest = _split_cache(replace(state, pending=1))
    text = engine._generate.lower(GREEDY, engine.weights, cache, rest, 4).compile().as_text()
    body = re.search(r" while\(.*body=(%[\w.-]+)", text)[1]
    lines = text.split(f"\n{body} ")[1].split("\n}")[0].splitlines()[1:]
    found = (re.search(r"= (\S+?)(?:\{\S*\})? ([\w-]+)\((.*)", line) for line in lines)
    return [(m[2], m[1], m[0]) for m in found if m is not None and m[2] not in FREE]


def kind_of(kind, shape, text, rows):
    if "kind=kCustom" in text:
        return "product"
    sizes = [int(size) for size in re.findall(r"\d+", shape.partition("[")[2])]
    cache = [rows, KV_HEADS, CAPACITY, HEAD_DIM]
    if sorted(filter((1).__lt__, sizes)) == sorted(filter((1).__lt__, cache)):
        return "whole cache"
    return kind


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_layer_of_a_step_has_six_products_and_writes_the_cache_in_place(rows, dtype):
    fewer, more = (
        Counter(kind_of(*each, rows) for each in operations(layers, rows, dtype))
        for layers in (2, 3)
    )
    assert not fewer - more
    layer = more - fewer
    print(layer, [t[:150] for k, s, t in operations(2, rows, dtype) if k not in FREE][:14])
    assert layer["product"] == 6  # q|k|v, scores, values, output, gate|up, down
    assert layer["whole cache"] == 2  # The updates of keys and values: no copy, no transpose.
    assert layer["fusion"] <= 22
    assert set(layer) == {"product", "whole cache", "fusion"}
