"""Every field of every configuration refuses wrong values in one sentence that names it."""

import dataclasses
from functools import partial
from typing import Any

import pytest
from refusals import INF, NAN, POOL, fields_of, fits, kinds_below, members, refusal
from tiny_models import tiny, tiny_composite, tiny_encoder, tiny_encoder_decoder, tiny_vision

from jaxformer.config import Config
from jaxformer.data import Mixture, TextFiles
from jaxformer.data.ramp import Stage
from jaxformer.generation.config import GenerationConfig
from jaxformer.io.serialization import as_saved
from jaxformer.models import (
    Contrastive,
    DualEncoderConfig,
    Projection,
)
from jaxformer.nn.cache import CacheShape

KINDS = [*kinds_below([Config]), GenerationConfig, CacheShape]
HEADS = (Projection(width=8), Contrastive())
# Classes whose fields must fit each other; the others need no more than `REQUIRED`.
EXAMPLES = {
    type(config): config
    for config in (
        tiny(),
        tiny_encoder(),
        tiny_encoder_decoder(),
        tiny_vision(),
        tiny_composite(tiny_encoder()),
        DualEncoderConfig(tiny_encoder(heads=HEADS), tiny_vision(heads=HEADS)),
        Mixture((TextFiles("a"), TextFiles("b"))),
        Stage(2, until_step=3),
    )
}
REQUIRED = {
    **dict.fromkeys(("path", "teacher"), "x"),
    **dict.fromkeys(("max_length", "max_distance", "original_max_length", "capacity"), 8),
    **dict.fromkeys(("num_bits", "mask_id", "batch_size", "chunk"), 3),
    "activation": "gelu",
    "bidirectional": True,
    "factor": 2.0,
    "grid": (2, 3),
    "high_frequency_factor": 4.0,
    "long_factors": (2.0, 3.0),
    "low_frequency_factor": 1.0,
    "short_factors": (1.0, 2.0),
    "storage": "int8",
    "values": (1.0,),
}

# What a number must not be: an integer is at least 1, a number positive and finite. The others:
RANGES = {
    """seed split_seed sample_tokens warmup_steps constant_steps cooldown_steps token_types
    task_types num_random_blocks offset prefix mask_id padding_id register_tokens min_length
    SpanText.sequence_length min_new_tokens top_k no_repeat_ngram_size eos_token_id pad_token_id
    encoder_no_repeat_ngram_size forced_bos_token_id forced_eos_token_id""": [-1],
    "data fsdp tensor": [0, -2],
    "word tag": [],  # columns are counted from either end
    """z_loss sample_temperature desirable_weight undesirable_weight sft_weight weight_decay mscale
    learning_rate mscale_all_dim soft_weight hard_weight cosine_weight
    GenerationConfig.temperature""": [-1.0, NAN, INF],
    """label_smoothing dropout beta1 beta2 momentum deletion embedding_dropout attention_dropout
    TokenDropout.rate VisionConfig.mask_ratio""": [-0.1, 1.0, NAN],
    "ema_decay validation_fraction noise_density": [0.0, 1.0, NAN],
    """warmup_fraction final_fraction probability min_fraction max_fraction mask_share top_p min_p
    Denoising.mask_ratio typical_p epsilon_cutoff eta_cutoff""": [-0.1, 1.1, NAN],
    "layer_decay decay_fraction MaskedImages.mask_ratio MaskedLM.rate fraction": [0.0, 1.1, NAN],
    "theta high_frequency_factor": [1.0, NAN, INF],
    """DualEncoderConfig.logit_scale max_logit_scale logit_bias length_penalty presence_penalty
    frequency_penalty""": [NAN, INF],
    "random_share": [-0.1, 0.3, NAN],
    "repetition_penalty": [0.0, -1.0, NAN, INF, 1e-45],
}
RANGE_OF = {name: values for names, values in RANGES.items() for name in names.split()}
# Wrong in another way than a kind of value or a range.
OTHERS: dict[str, list[Any]] = {
    "windows": [3, (2.5, None), ("2", None), (True, None), (0, None)],
}
COMBINATIONS: list[tuple[type, dict[str, Any], str]] = []


def example(kind):
    """The fields of a configuration that is right."""
    if kind in EXAMPLES:
        return {name: getattr(EXAMPLES[kind], name) for name in fields_of(kind)}
    missing = dataclasses.MISSING
    required = (
        field.name
        for field in dataclasses.fields(kind)
        if field.init and field.default is missing and field.default_factory is missing
    )
    return {name: REQUIRED[name] for name in required}


def of_field(table, kind, name, default=()):
    return table.get(f"{kind.__name__}.{name}", table.get(name, default))


def out_of_range(kind, name, annotation):
    """The numbers that a field must not have; none where it holds no number."""
    usual = {int: [0, -1], float: [0.0, -1.0, NAN, INF]}
    of_kind = next((usual[member] for member in (float, int) if member in members(annotation)), [])
    return of_field(RANGE_OF, kind, name, of_kind) if of_kind else []


def made(kind, fields):
    """The configuration as a run reads it."""
    return as_saved(kind(**fields))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_wrong_value_of_a_field_is_named(kind):
    fields = example(kind)
    made(kind, fields)
    for name, annotation in fields_of(kind).items():
        wrong = [value for value in POOL if not fits(value, annotation)]
        assert wrong, f"{kind.__name__}.{name}: nothing is refused"
        wrong += [*out_of_range(kind, name, annotation), *of_field(OTHERS, kind, name)]
        for value in wrong:
            refusal(partial(made, kind, fields | {name: value}), name, value)
