"""The types of fields of configurations: what is wrong is named, what is ordinary is not."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import tiny, tiny_encoder, tiny_encoder_decoder, tiny_vision

from jaxformer.checks import check_types
from jaxformer.errors import ConfigError
from jaxformer.functional import (
    Binary,
    DynamicNTK,
    LayerNorm,
    Learned,
    Learned2D,
    LinearScaling,
    LongRoPE,
    NoPosition,
    Position,
    RMSNorm,
    RoPE,
    Sinusoidal2D,
    T5Bias,
    YaRN,
    norms,
)
from jaxformer.functional.positions import rope_scaling
from jaxformer.functional.positions import schemes as positional_schemes
from jaxformer.io.components import is_concrete
from jaxformer.models import (
    Classification,
    Dense,
    LanguageModel,
    NormPooler,
    Span,
    TokenClassification,
)
from jaxformer.models.lora import LoRA
from jaxformer.nn import MLP, DotProductAttention, Parallel, PreNorm
from jaxformer.nn.cache import CacheShape

NAN, INF = float("nan"), float("inf")
HUGE = 10**40

WRONG = [
    (tiny, "num_layers", [2.5, True, "2", None, [2], 10**9, HUGE, NAN]),
    (tiny, "model_dim", ["20", 20.0, -4, HUGE]),
    (tiny, "vocab_size", [31.0, "31", 0, HUGE, True]),
    (tiny, "num_kv_heads", [True, 2.0, HUGE]),
    (tiny, "windows", [3, (2.5, None), ("2", None), (True, None), (HUGE, None)]),
    (tiny, "dropout", [NAN, "0.1", None, True, 1]),
    (tiny, "embedding_dropout", [NAN, "0.1"]),
    (tiny, "init_std", [INF, NAN, "0.02", None]),
    (DotProductAttention, "softcap", [INF, True, "30"]),
    (DotProductAttention, "clip", [0, -1.0, NAN, "8"]),
    (tiny, "layer_scale", [0.0, NAN, INF]),
    (tiny, "position", ["rope", RoPE, None, 5]),
    (tiny, "norm", ["rms", None, LayerNorm]),
    (tiny, "residual", ["pre", None]),
    (tiny, "scan_layers", ["yes", 1, None]),
    (MLP, "activation", ["swish", 3, None, []]),
    (tiny, "compute_dtype", ["float16", jnp.bfloat16, None]),
    (tiny, "heads", [LanguageModel(), ("language_model",), None]),
    (tiny, "padding_id", [31, -1, 2.0, True, HUGE]),
    (tiny_encoder, "token_types", [-1, 1.5, "2"]),
    (tiny_encoder, "pooler", ["sigmoid", 1]),
    (tiny_encoder_decoder, "num_decoder_layers", [0, 2.0, 10**9]),
    (tiny_encoder_decoder, "decoder_position", [None, "t5"]),
    (tiny_vision, "image_size", [8, (8,), (8, 8, 8), (8.0, 6)]),
    (tiny_vision, "patch_size", [4, (0, 3), ("4", 3)]),
    (tiny_vision, "channels", [0, 3.0]),
    (Learned, "max_length", [0, 2.5, "8", None, True, HUGE]),
    (Binary, "num_bits", [0, 4.0]),
    (RoPE, "theta", [0.0, 1.0, NAN, INF, "1e4", None]),
    (RoPE, "fraction", [0, 1.5, NAN]),
    (RoPE, "scaling", [4.0, None, "linear"]),
    (T5Bias, "num_buckets", [0, 8.0]),
    (T5Bias, "bidirectional", [1, None]),
    (Sinusoidal2D, "grid", [(2, 0), 4, (2, 3, 4), (2.0, 3)]),
    (Learned2D, "grid", [(2, 0), 4]),
    (LinearScaling, "factor", [0, NAN, INF, "2"]),
    (DynamicNTK, "original_max_length", [0, 8.5]),
    (YaRN, "beta_fast", [NAN, INF, 0.5]),
    (YaRN, "mscale", [NAN, "1"]),
    (LongRoPE, "long_factors", [(1.0, NAN), ("a", "b"), 2.0, (1.0,)]),
    (LayerNorm, "eps", [0, NAN, INF, "1e-5", None]),
    (LayerNorm, "bias", [1, "no"]),
    (RMSNorm, "unit_offset", [1]),
    (PreNorm, "final_norm", [1]),
    (Parallel, "shared_norm", ["yes"]),
    (Classification, "num_labels", [0, 2.5, "3", True]),
    (Classification, "label", [3, None]),
    (Classification, "pooling", ["middle", None]),
    (Classification, "dense", ["tanh"]),
    (Span, "longest", [0, 3.5]),
    (TokenClassification, "num_labels", [0, None]),
    (LoRA, "rank", [0, 8.0]),
    (LoRA, "alpha", [NAN, INF, 0]),
    (CacheShape, "capacity", [0, 8.0, "8"]),
    (CacheShape, "storage", ["int4", None]),
]
REQUIRED = {
    Learned: {"max_length": 8},
    Binary: {"num_bits": 3},
    T5Bias: {"bidirectional": True},
    Sinusoidal2D: {"grid": (2, 3)},
    Learned2D: {"grid": (2, 3)},
    LinearScaling: {"factor": 2.0},
    DynamicNTK: {"factor": 2.0, "original_max_length": 8},
    YaRN: {"factor": 2.0, "original_max_length": 8},
    LongRoPE: {
        "short_factors": (1.0, 2.0),
        "long_factors": (2.0, 3.0),
        "original_max_length": 8,
        "factor": 2.0,
    },
    Dense: {"activation": "tanh"},
    CacheShape: {"batch_size": 2, "capacity": 8, "chunk": 4, "storage": "int8"},
}


@pytest.mark.parametrize(("make", "field", "values"), WRONG)
def test_a_wrong_value_is_named(make, field, values):
    for value in values:
        with pytest.raises(ConfigError) as error:
            make(**REQUIRED.get(make, {}) | {field: value})
        message = str(error.value)
        assert field in message, message
        assert len(message) < 400
        assert message.splitlines() == [message]


def test_the_nearest_name_is_offered():
    with pytest.raises(ConfigError, match=r"activation = 'gelu-tanh': must be .* mean 'gelu_tanh'"):
        MLP(activation="gelu-tanh")
    with pytest.raises(ConfigError, match=r"DecoderConfig.norm = 'rms': must be a Norm, such as"):
        tiny(norm="rms")
    with pytest.raises(ConfigError, match="num_layers = an integer of 133 bits: must be"):
        tiny(num_layers=HUGE)


def test_scalars_of_numpy_and_lists_are_ordinary():
    plain = tiny(windows=(3, None), dropout=0.5)
    config = tiny(
        num_layers=np.int64(2),
        model_dim=jnp.int32(20),
        windows=[np.int32(3), None],
        dropout=np.float64(0.5),
        scan_layers=np.bool_(False),
        heads=[LanguageModel()],
    )
    assert config == plain
    assert hash(config) == hash(plain)
    json.dumps(dataclasses.asdict(replaced := dataclasses.replace(config, init_std=1)), default=str)
    assert type(replaced.num_layers) is int
    assert type(config.scan_layers) is bool
    assert tiny(init_std=np.float32(0.5)).init_std == 0.5
    assert tiny_vision(pooler=NormPooler()).pooler == NormPooler()


def test_every_component_checks_its_types():
    """A field of another type is refused by each scheme, norm and scaling there is."""
    for module in (positional_schemes, rope_scaling, norms):
        for kind in vars(module).values():
            if not is_concrete(kind):
                continue
            names = [field.name for field in dataclasses.fields(kind)]
            if names and kind.__module__ == module.__name__:
                with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{names[0]} = "):
                    kind(**dict.fromkeys(names, object()))


def test_classes_of_a_users_own():
    """Annotations that are not understood, or names known elsewhere alone, are left as they are."""

    class Elsewhere:
        pass

    @dataclass(frozen=True)
    class Mine(RoPE):
        anything: Any = None
        table: dict[str, int] | None = None
        local: "Elsewhere | None" = None

    assert Mine(anything=object(), table={"a": 1}, local=Elsewhere()).theta == 10_000.0
    assert tiny(position=Mine()).position == Mine()

    @dataclass(frozen=True)
    class Other(Position):
        sizes: tuple[int, float] = (1, 2.0)

        def __post_init__(self):
            check_types(self)

    assert Other([np.int64(3), 4]).sizes == (3, 4)
    with pytest.raises(ConfigError, match=r"Other.sizes = \(1,\): must be a tuple of 2: an int"):
        Other((1,))
    assert NoPosition() == NoPosition()
