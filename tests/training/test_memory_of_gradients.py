"""Gradients as users compile them do not depend on what memory held before, and are right.

jaxformer/xla_flags.py says which fusions of XLA read memory that nothing has written.
"""

import ctypes
import itertools
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from importlib.metadata import version
from unittest import mock

import jax
import numpy as np
import pytest
from family_cases import assert_gradients_close
from tiny_models import batch_for, tiny, tiny_encoder, tiny_encoder_decoder, tiny_vision
from train_steps import program_of

from jaxformer.functional import LayerNorm, Learned
from jaxformer.functional.arrays import on_mesh
from jaxformer.models import Classification, LanguageModel
from jaxformer.models.lora import LoRA
from jaxformer.nn import PostNorm, TokenEmbeddings
from jaxformer.nn.config import RematNames, TransformerConfig

pytestmark = [pytest.mark.optimized, pytest.mark.more]

# What conftest.py chooses to compile quickly, as it is without a word from the user.
AS_USERS = {"xla_cpu_parallel_codegen_split_count": 32}
if version("jaxlib").startswith("0.10."):
    AS_USERS["xla_cpu_use_fusion_emitters"] = True

# With as many tokens the compiler of jaxlib 0.10.2 fuses sums with all that is around them.
ROWS, LENGTH = 32, 128
SIZES = {
    "model_dim": 32,
    "num_heads": 4,
    "head_dim": 8,
    "mlp_dim": 64,
    "scan_layers": True,
    "dropout": 0.0,
    "self_attention.dropout": 0.0,  # which draw other numbers in float64
}
LABEL = Classification(num_labels=3, pooling="last")
FAMILIES = {
    "decoder": tiny(heads=(LanguageModel(), LABEL), tie_embeddings=False, **SIZES),
    "encoder": tiny_encoder(
        position=Learned(max_length=LENGTH),
        residual=PostNorm(),
        embeddings=TokenEmbeddings(norm=LayerNorm(), token_types=3),
        num_kv_heads=4,
        heads=(Classification(num_labels=3),),
        **SIZES,
    ),
    "encoder-decoder": tiny_encoder_decoder(
        num_decoder_layers=2,
        residual=PostNorm(),
        **{"feed_forward.activation": "gelu", "feed_forward.gated": False},
        tie_embeddings=False,
        **SIZES,
    ),
    "vision": tiny_vision(
        image_size=(16, 16), patch_size=(2, 1), position=Learned(max_length=LENGTH + 1), **SIZES
    ),
}
MODES = ("full", "frozen", "lora", "heads")
REMATS = {
    **{name: name for name in ("none", "dots", "full")},
    "names": RematNames(save=("attention_output", "mlp_hidden")),
}
DTYPES = ("bfloat16", "float32")
# Of the largest entry of a gradient.
TOLERANCES = {"bfloat16": 0.15, "float32": 2e-5}


def fine_tuning(mode, config):
    """The settings under which only a part of a model learns."""
    names = config_names(config)
    if mode == "lora":
        return {"lora": LoRA(rank=3)}
    patterns = {
        "full": (),
        "frozen": ("*.stack.*", "patch_projection.*" if "class_token" in names else "embedding.*"),
        "heads": tuple(name for name in names if not name.startswith("heads.")),
    }
    return {"frozen": patterns[mode]}


@lru_cache
def config_names(config):
    return tuple(program_of(config).abstract_model.shapes)


def numbers(program, dtype="float32"):
    """Parameters and a batch; every parameter is random, so that each one matters."""
    random = np.random.default_rng(0)
    parameters = {}
    for name, shape in program.abstract_model.shapes.items():
        values = name.endswith("scale") + 0.15 * random.normal(size=shape.shape)
        parameters[name] = values.astype("float32").astype(dtype)
    batch = jax.device_put(batch_for(program.model, ROWS, LENGTH), program.batch_sharding)
    return jax.device_put(parameters, program.param_shardings), batch


def compiled_gradient(program, parameters, batch, **options):
    """The compiled gradient of the training step, a function of the parameters."""

    def gradient(parameters, batch):
        return program._gradients(parameters, {}, batch, jax.random.key(0))[0]

    with on_mesh(program.mesh):
        compiled = jax.jit(gradient).lower(parameters, batch).compile(compiler_options=options)

    def call(parameters):
        with on_mesh(program.mesh):
            return {name: np.array(x) for name, x in compiled(parameters, batch).items()}

    return call


@lru_cache
def true_gradients(config, lora=None):
    """The gradient in float64."""
    in_float64 = mock.patch.object(TransformerConfig, "dtype", np.dtype("float64"))
    with in_float64, jax.enable_x64(True):
        program = program_of(config, lora=lora)
        parameters, batch = numbers(program, "float64")
        options = {"xla_backend_optimization_level": 0}
        return compiled_gradient(program, parameters, batch, **options)(parameters)


@contextmanager
def new_memory_holding(byte):
    """Makes glibc fill what it gives out; 0xFF is NaN as bfloat16, float32 or float64."""
    fill = getattr(ctypes.CDLL(None), "mallopt", lambda *_: None)
    fill(-6, byte ^ 0xFF | 0x100)  # M_PERTURB
    try:
        yield
    finally:
        fill(-6, 0)


CASES = {
    f"{family}-{mode}-{remat}-{dtype}": (family, mode, remat, dtype)
    for family, mode, remat, dtype in itertools.product(FAMILIES, MODES, REMATS, DTYPES)
}
# Each family in each mode, so that each of both also meets each remat, and float32 once.
QUICK = [
    f"{family}-{mode}-{list(REMATS)[(i + j + 2) % 4]}-{DTYPES[j == (i + 1) % 4]}"
    for i, family in enumerate(FAMILIES)
    for j, mode in enumerate(MODES)
]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.quick("decoder-frozen-names-float32")
def test_gradients_depend_on_nothing_but_their_arguments(case):
    family, mode, remat, dtype = case
    config = FAMILIES[family]
    train = fine_tuning(mode, config)
    program = program_of(config.with_fields(remat=REMATS[remat], compute_dtype=dtype), **train)
    parameters, batch = numbers(program)
    gradient = compiled_gradient(program, parameters, batch, **AS_USERS)

    first = gradient(parameters)
    gradient(jax.tree.map(lambda x: x * np.nan, parameters))
    for fill in (nullcontext(), *map(new_memory_holding, (0xFF, 0x55, 0xFF))):
        with fill:
            again = gradient(parameters)
        assert all(again[name].tobytes() == first[name].tobytes() for name in first)

    # What does not learn changes no other gradient.
    true = true_gradients(config, train.get("lora"))
    assert_gradients_close(first, {name: true[name] for name in first}, TOLERANCES[dtype])
