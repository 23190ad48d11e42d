"""Every field of every configuration refuses wrong values in one sentence that names it."""

import dataclasses
from functools import partial

import pytest
from refusals import HUGE, INF, NAN, POOL, fields_of, fits, kinds_below, members, refusal
from tiny_models import (
    structure_of,
    tiny,
    tiny_composite,
    tiny_encoder,
    tiny_encoder_decoder,
    tiny_spectrogram,
    tiny_spectrogram_patches,
    tiny_vision,
    tiny_waveform,
)

from jaxformer.config import Config, TrainConfig
from jaxformer.config.train import DPO, Distillation
from jaxformer.data import (
    DataConfig,
    MaskedLM,
    Mixture,
    Packed,
    PrefixLM,
    SpanCorruption,
    TextFiles,
)
from jaxformer.data.ramp import Stage
from jaxformer.data.tasks import Algorithmic
from jaxformer.distributed import MeshConfig
from jaxformer.functional import (
    Binary,
    DistanceEmbedding,
    Learned,
    Llama3Scaling,
    RoPE,
    Sinusoidal,
    Sinusoidal2D,
    T5Bias,
)
from jaxformer.generation.config import GenerationConfig
from jaxformer.io.serialization import json_round_trip
from jaxformer.models import (
    Classification,
    Contrastive,
    DualEncoderConfig,
    LanguageModel,
    ModelConfig,
    Projection,
)
from jaxformer.nn import DisentangledAttention, Embeddings, PreNorm, TokenEmbeddings
from jaxformer.nn.cache import CacheShape
from jaxformer.nn.config import RematNames
from jaxformer.optim import Cosine, InverseSquareRoot

KINDS = [*kinds_below([Config]), GenerationConfig, CacheShape]
MIXED = Mixture((TextFiles("a"), TextFiles("b")))
BUCKETS = DistanceEmbedding(9, 4)
HEADS = (Projection(width=8), Contrastive())
# Classes whose fields must fit each other; the others need no more than `REQUIRED`.
EXAMPLES = {
    type(config): config
    for config in (
        tiny(),
        tiny_encoder(),
        tiny_encoder_decoder(),
        tiny_vision(),
        tiny_waveform(),
        tiny_spectrogram(),
        tiny_spectrogram_patches(),
        tiny_composite(tiny_encoder()),
        DualEncoderConfig(tiny_encoder(heads=HEADS), tiny_vision(heads=HEADS)),
        MIXED,
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
    "weight": 0.5,
    "dim": 8,
    "values": (1.0,),
}

# What a number must not be: an integer is at least 1, a number positive and finite. The others:
RANGES = {
    """seed split_seed sample_tokens warmup_steps constant_steps cooldown_steps token_types
    task_types num_random_blocks offset prefix mask_id padding_id register_tokens min_length
    SpanText.sequence_length min_new_tokens GenerationConfig.top_k no_repeat_ngram_size
    encoder_no_repeat_ngram_size eos_token_id pad_token_id forced_bos_token_id forced_eos_token_id
    blank min_time_spans min_channel_spans dense_layers""": [-1],
    "data fsdp tensor sequence expert": [0, -2],
    "word tag": [],  # columns are counted from either end
    """z_loss sample_temperature desirable_weight undesirable_weight sft_weight weight_decay mscale
    learning_rate mscale_all_dim soft_weight hard_weight cosine_weight
    GenerationConfig.temperature diversity_weight""": [-1.0, NAN, INF],
    """label_smoothing dropout beta1 beta2 momentum deletion
    TokenDropout.rate VisionConfig.mask_ratio SpectrogramPatchesConfig.mask_ratio feature_dropout
    time_probability channel_probability""": [-0.1, 1.0, NAN],
    "ema_decay validation_fraction noise_density": [0.0, 1.0, NAN],
    """warmup_fraction final_fraction probability min_fraction max_fraction mask_share top_p min_p
    Denoising.mask_ratio typical_p epsilon_cutoff eta_cutoff""": [-0.1, 1.1, NAN],
    "layer_decay decay_fraction MaskedImages.mask_ratio MaskedLM.rate fraction": [0.0, 1.1, NAN],
    "theta high_frequency_factor": [1.0, NAN, INF],
    """DualEncoderConfig.logit_scale max_logit_scale logit_bias length_penalty presence_penalty
    frequency_penalty FilterBanks.mean
    BalanceLoss.weight ZLoss.weight""": [
        NAN,
        INF,
    ],
    "random_share": [-0.1, 0.3, NAN],
    "repetition_penalty": [0.0, -1.0, NAN, INF, 1e-45],
}
RANGE_OF = {name: values for names, values in RANGES.items() for name in names.split()}
# Wrong in another way than a kind of value or a range.
OTHERS = {
    "windows": [(2.5, None), ("2", None), (True, None), (0, None), (None, -3)],
    "DecoderConfig.num_layers": [HUGE, 10**9],
    "DecoderConfig.model_dim": [HUGE],
    "DecoderConfig.vocab_size": [HUGE],
    "attention": ["nonsense"],
    "batch_size": [-2],
    "Images.channels": [2],
    "Images.mean": [(0.1, 0.2)],
    "Images.std": [(0.0,), (0.1, 0.2)],
    "Images.image_size": [(0, 8)],
    "MaskedImages.patch_size": [(2, 9)],
    "Mixture.sources": [(TextFiles("a"),), (MIXED, TextFiles("a"))],
    "Mixture.weights": [(1.0,), (1.0, 0.0), (1.0, INF)],
    "Algorithmic.task": ["adition"],
    "LabelledText.text": [("a", "b", "c")],
    "template": ["ChatLM"],
    "SummaryText.target_length": [1],
    "PreferenceData.sequence_length": [1],
    "ChatData.sequence_length": [1],
    "VisionConfig.image_size": [(8,), (8, 8, 8), (8.0, 6)],
    "VisionConfig.patch_size": [(0, 3), ("4", 3), (3, 3)],
    "grid": [(2, 0), (4,), (2, 3, 4), (2.0, 3)],
    "long_factors": [(1.0, NAN), (0.0, 1.0), (1.0,), ("a", "b")],
    "activation": ["swish", "gelutanh"],
    "compute_dtype": ["float16"],
    "targets": [()],
    "profile_steps": [(3, 2), (0, 1), (1,)],
    "heads": [("language_model",)],
    "Classification.pooling": ["middle", "max"],
    "Projection.pooling": ["mean"],
    "Regression.num_labels": [2],
    "GenerationConfig.temperature": [1e-45, 1e31],
    "GenerationConfig.seed": [2**32],
    "max_new_tokens": [0],
    "eos_token_id": [(1, -1), ((1,),), (None,), HUGE],
    "pad_token_id": [HUGE, 2**31],
    "bad_words_ids": [((),), ((-1,),), (1,)],
    "suppress_tokens": [(-1,)],
    "exponential_decay_length_penalty": [(-1, 1.1), (5, -1.0), (5, 0.0), (5,)],
    "stop_strings": [("",), (1,)],
    "early_stopping": ["always"],
    "presence_penalty": [1e31],
}
# Fields that do not fit each other: (what makes the configuration, the fields, what is named).
COMBINATIONS = [
    (tiny, {"num_heads": 3, "num_kv_heads": 1, "head_dim": None}, "num_heads = 3"),
    (tiny, {"num_kv_heads": 4}, "num_kv_heads = 4"),
    (tiny, {"num_kv_heads": 12}, "num_kv_heads = 12"),
    (tiny, {"windows": (None, 2, 3)}, "windows"),
    (tiny, {"window_position": RoPE()}, "window_position"),
    (tiny, {"windows": (2,), "window_position": RoPE(fraction=0.3)}, "fraction = 0.3"),
    (tiny, {"rope_layers": (True, False)}, "rope_layers"),
    (tiny, {"position": Sinusoidal(), "rope_layers": (False,)}, "rope_layers"),
    (tiny, {"head_dim": 5, "position": RoPE()}, "fraction"),
    (tiny, {"model_dim": 21, "position": Sinusoidal()}, "Sinusoidal"),
    (tiny, {"encoder_dim": 8}, "encoder_dim = 8"),
    (tiny, {"embeddings.padding_id": 31}, "model.embeddings.padding_id = 31"),
    (tiny, {"embeddings": Embeddings()}, "embeddings"),
    (tiny_vision, {"embeddings": TokenEmbeddings()}, "embeddings"),
    (tiny_encoder, {"embeddings.projection": "both"}, "model.embeddings.projection = 'both'"),
    (tiny_encoder_decoder, {"embeddings.projection": "both"}, "embeddings.projection = 'both'"),
    (tiny_encoder_decoder, {"embeddings.token_types": 2}, "model.embeddings.token_types = 2"),
    (tiny_encoder_decoder, {"embeddings.task_types": 2}, "model.embeddings.task_types = 2"),
    (tiny, {"relative_position": BUCKETS, "self_attention": DisentangledAttention()}, "encoder"),
    (tiny_encoder, {"relative_position": BUCKETS}, "relative_position"),
    (tiny_encoder, {"position": BUCKETS}, "model.position"),
    (tiny_encoder, {"layer_repeats": 3}, "num_layers = 2"),
    (tiny_encoder, {"residual": PreNorm(first_norm=False)}, "first_norm"),
    (tiny_encoder, {"heads": (Classification(2), Classification(3))}, "label"),
    (tiny_encoder, {"heads": (LanguageModel(),), "embeddings.dim": 10}, "embeddings.dim = 10"),
    (tiny_encoder_decoder, {"relative_position": BUCKETS}, "relative_position"),
    (tiny_encoder_decoder, {"decoder_position": RoPE(fraction=0.1)}, "fraction"),
    (
        tiny_encoder_decoder,
        {"layer_repeats": 2, "num_layers": 2, "num_decoder_layers": 3},
        "num_decoder_layers",
    ),
    (tiny_encoder_decoder, {"encoder_dim": 13, "model_dim": 24, "head_dim": None}, "encoder_dim"),
    (
        tiny_encoder_decoder,
        {"encoder_heads": 5, "num_kv_heads": None, "model_dim": 24, "head_dim": None},
        "encoder_heads = 5",
    ),
    (tiny_encoder_decoder, {"encoder_heads": 3}, "encoder_heads = 3"),
    (tiny_vision, {"position": Learned(8)}, "max_length = 8"),
    (tiny_vision, {"position": Learned(9), "class_token": False}, "max_length = 9"),
    (tiny_vision, {"position": Learned(9, offset=2)}, "offset = 2"),
    (tiny_vision, {"position": Sinusoidal2D((4, 2))}, "grid = (4, 2)"),
    (tiny_vision, {"position": Sinusoidal2D((2, 4), prefix=0)}, "prefix = 0"),
    (tiny_vision, {"position": Sinusoidal2D((2, 4)), "model_dim": 18}, "model_dim"),
    (tiny_vision, {"position": Binary(3)}, "num_bits"),
    (tiny_vision, {"windows": (3,)}, "windows"),
    (tiny_vision, {"image_size": (9, 12)}, "patch_size"),
    (tiny_vision, {"image_size": (3, 12), "crop": True}, "patch_size"),
    (tiny_vision, {"class_token": False, "distillation_token": True}, "distillation_token"),
    (tiny_vision, {"distillation_token": True}, "max_length = 9"),
    (tiny_vision, {"heads": (LanguageModel(),)}, "heads"),
    (T5Bias, {"num_buckets": 3, "bidirectional": True}, "num_buckets = 3"),
    (T5Bias, {"max_distance": 8, "bidirectional": True}, "max_distance = 8"),
    (DistanceEmbedding, {"max_distance": 9, "num_buckets": 5}, "num_buckets = 5"),
    (DistanceEmbedding, {"max_distance": 9, "num_buckets": 2}, "num_buckets = 2"),
    (DistanceEmbedding, {"max_distance": 9, "num_buckets": 16}, "max_distance = 9"),
    (RematNames, {"save": ("atention_context",)}, "attention_context"),
    (RematNames, {"save": ("mlp_input",), "offload": ("mlp_input",)}, "offload"),
    (InverseSquareRoot, {"warmup_steps": 0}, "timescale"),
    (Cosine, {"decay_steps": 99}, "decay_steps = 99"),
    (Llama3Scaling, {
        "factor": 8.0, "low_frequency_factor": 4.0, "high_frequency_factor": 4.0,
        "original_max_length": 64,
    }, "high_frequency_factor = 4.0"),
    (MeshConfig, {"data": -1, "fsdp": -1}, "one axis"),
    (Distillation, {"teacher": "x", "soft_weight": 0.0, "cosine_weight": 0.0}, "soft_weight"),
    (TrainConfig, {"distillation": Distillation("x"), "loss_chunk": 8}, "loss_chunk = 8"),
    (TrainConfig, {"preference": DPO(), "label_smoothing": 0.1}, "label_smoothing = 0.1"),
    (TrainConfig, {"preference": DPO(), "z_loss": 1e-4}, "z_loss = 0.0001"),
    (Algorithmic, {"task": "addition", "length": 2}, "length = 2"),
    (DataConfig, {"prefetch_threads": 2, "prefetch_batches": 1}, "prefetch_batches = 1"),
    (DataConfig, {"objective": PrefixLM(), "packing": Packed()}, "packing"),
    (DataConfig, {"objective": MaskedLM(), "sequence_length": 2}, "sequence_length = 2"),
    (PrefixLM, {"min_fraction": 0.2, "max_fraction": 0.1}, "max_fraction = 0.1"),
    (SpanCorruption, {"noise_density": 0.8, "mean_span": 2.0}, "mean_span = 2.0"),
    (Stage, {"batch_size": 4}, "until_step"),
    (Stage, {"batch_size": 4, "until_step": 1, "until_tokens": 1}, "until_step = 1"),
    (GenerationConfig, {"min_new_tokens": 129}, "min_new_tokens = 129"),
    (GenerationConfig, {"num_return_sequences": 2}, "num_return_sequences = 2"),
    *((GenerationConfig, {name: value}, f"{name} = {value}") for name, value in (
        # Of sampling, or of beam search, which are not asked for.
        ("temperature", 0.7), ("top_k", 50), ("top_p", 0.9), ("min_p", 0.1), ("typical_p", 0.9),
        ("length_penalty", 0.6), ("early_stopping", True),
    )),
    *((GenerationConfig, {"num_beams": 4, name: value}, f"{name} = {value}") for name, value in (
        ("do_sample", True), ("temperature", 0.7), ("top_p", 0.7), ("num_return_sequences", 5),
        ("length_penalty", 100),
    )),
    (
        GenerationConfig,
        {"do_sample": True, "temperature": 0, "num_return_sequences": 2},
        "num_return_sequences = 2",
    ),
    (
        GenerationConfig,
        {"forced_eos_token_id": 2, "suppress_tokens": (1, 2)},
        "forced_eos_token_id = 2",
    ),
]  # fmt: skip


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
    return json_round_trip(kind(**fields))


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


@pytest.mark.parametrize(
    ("make", "fields", "name"), COMBINATIONS, ids=[" ".join(row[1]) for row in COMBINATIONS]
)
def test_fields_that_do_not_fit_each_other_are_named(make, fields, name):
    def built():
        config = make(**fields)
        if isinstance(config, ModelConfig):
            structure_of(config)

    refusal(built, name)
