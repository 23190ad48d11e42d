"""Losses and gradients with the tokens of each row on several devices are those of one."""

import chex
import jax
import numpy as np
import pytest
from train_steps import assert_same_gradients, gradients, program_of, stepped

from jaxformer.config import Config, experiment, validate
from jaxformer.config.train import DPO
from jaxformer.data import DataConfig
from jaxformer.distributed import MeshConfig
from jaxformer.errors import ConfigError
from jaxformer.functional import ALiBi, Learned, NoPosition, RoPE, T5Bias, YaRN
from jaxformer.models import (
    Classification,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    MaskedLanguageModel,
    VisionConfig,
)
from jaxformer.models.heads.autoencoder import MaskedAutoencoder
from jaxformer.models.heads.patches import VisualTokens
from jaxformer.nn.attention import DotProductAttention
from jaxformer.nn.latent_attention import LatentAttention
from jaxformer.training.preference_loss import preference_loss

pytestmark = pytest.mark.usefixtures("compiled_here")
ROWS, LENGTH = 8, 16
SIZES = {
    "compute_dtype": "float32",
    "vocab_size": 64,
    "num_layers": 1,
    "model_dim": 16,
    "num_heads": 4,
    "mlp_dim": 32,
}
RANDOM = np.random.default_rng(0)


def batch(length=LENGTH):
    tokens = RANDOM.integers(1, 64, (ROWS, length + 1), dtype=np.int32)
    weights = (RANDOM.random((ROWS, length)) < 0.7).astype(np.float32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights}


def documents():
    return np.sort(RANDOM.integers(0, 4, (ROWS, LENGTH)).astype(np.int32))


TWO_AXES = (1, 2, 1, 4)  # fsdp and sequence
THREE_AXES = (2, 1, 2, 2)  # data, tensor and sequence


def programs(model, mesh=TWO_AXES, **options):
    """The program on one device, and with parts of rows on several."""
    return (program_of(model, sizes, **options) for sizes in ((1, 1, 1), mesh))


def assert_same(model, arrays, mesh, **train):
    alone, together = programs(model, mesh, **train)
    params = jax.device_get(alone.init(0).params)
    expected, actual = (gradients(program, arrays, params) for program in (alone, together))
    assert_same_gradients(actual, expected)


DECODERS = {
    "RoPE": ({}, {}),
    "one kv head": ({"num_kv_heads": 1}, {}),
    "grouped": ({"num_kv_heads": 2}, {}),
    "few heads": ({"num_heads": 2, "num_kv_heads": 1}, {}),
    "YaRN": ({"position": RoPE(scaling=YaRN(factor=4.0, original_max_length=8))}, {}),
    "ALiBi": ({"position": ALiBi()}, {}),
    "learned": ({"position": Learned(max_length=LENGTH)}, {}),
    "no positions": ({"position": NoPosition()}, {}),
    "T5": ({"position": T5Bias(bidirectional=False)}, {}),
    "packed": ({}, {"segments": documents()}),
    "prefix": ({}, {"prefix": RANDOM.integers(1, 9, ROWS).astype(np.int32)}),
    "window": ({"windows": (5,)}, {"segments": documents()}),
    "ring": (
        {"attention": "ring", "position": T5Bias(bidirectional=False)},
        {"segments": documents()},
    ),
    "remat": ({"remat": "full"}, {}),
    "scanned": ({"scan_layers": True, "num_layers": 2}, {}),
    "dropout": ({"dropout": 0.3, "self_attention": DotProductAttention(dropout=0.2)}, {}),
}


@pytest.mark.first("mesh0-packed")
@pytest.mark.quick("mesh0-few heads", "mesh0-packed", "mesh0-dropout")
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("mesh", [TWO_AXES, THREE_AXES])
def test_decoders(name, mesh):
    fields, arrays = DECODERS[name]
    assert_same(DecoderConfig(**SIZES | fields), batch() | arrays, mesh)


@pytest.mark.parametrize(
    "train",
    [{"loss_chunk": 3}, pytest.param({"gradient_accumulation": 2}, marks=pytest.mark.slow)],
)
@pytest.mark.more
def test_chunks_of_the_loss_and_parts_of_the_batch(train):
    assert_same(DecoderConfig(**SIZES), batch(), TWO_AXES, **train)


def padding():
    return np.arange(LENGTH)[None] < RANDOM.integers(9, LENGTH + 1, (ROWS, 1))


@pytest.mark.more
def test_encoders():
    masked = EncoderConfig(**SIZES, heads=(MaskedLanguageModel(),))
    assert_same(masked, batch() | {"mask": padding()}, TWO_AXES)


@pytest.mark.slow
def test_classifiers():
    labels = {"label": RANDOM.integers(0, 3, ROWS).astype(np.int32)}
    labels |= {"label_weights": np.ones(ROWS, np.float32), "inputs": batch()["inputs"]}
    classifier = EncoderConfig(**SIZES, heads=(Classification(num_labels=3),))
    assert_same(classifier, labels | {"mask": padding()}, THREE_AXES)


@pytest.mark.slow
def test_an_encoder_and_a_decoder_of_different_lengths():
    decoded = batch(24)
    decoded["decoder_inputs"] = decoded.pop("inputs")
    assert_same(EncoderDecoderConfig(**SIZES), decoded | {"inputs": batch()["inputs"]}, TWO_AXES)


IMAGES = {
    "class token": {},
    "registers": {"image_size": (16, 12), "register_tokens": 3},
    "dropout": {"dropout": 0.3},
    "masked autoencoder": {"heads": (MaskedAutoencoder(),), "mask_ratio": 0.5},
    "masked patches": {"heads": (VisualTokens(),), "mask_token": True},
}


@pytest.mark.more
@pytest.mark.quick("mesh0-class token")
@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("mesh", [TWO_AXES, THREE_AXES])
def test_images(name, mesh):
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    shapes = {"image_size": (20, 12), "patch_size": (4, 4), "position": Learned(max_length=LENGTH)}
    fields = {"heads": (Classification(num_labels=3),)} | shapes | IMAGES[name]
    model = VisionConfig(**sizes, **fields)
    random = np.random.default_rng(1)
    arrays = {}
    for each, shape in model.batch_spec(ROWS, {}).items():
        if shape.dtype == bool:
            arrays[each] = np.stack([random.permutation(shape.shape[1]) < 7 for _ in range(ROWS)])
        elif each == "images":
            arrays[each] = random.normal(size=shape.shape).astype(shape.dtype)
        else:
            arrays[each] = random.integers(1, 3, shape.shape).astype(shape.dtype)
    assert_same(model, arrays, mesh)


@pytest.mark.more
def test_the_evaluation_of_a_head_over_rows():
    model = EncoderConfig(**SIZES, heads=(Classification(num_labels=3),))
    arrays = {"inputs": batch()["inputs"], "mask": padding(), "row": np.arange(ROWS)}
    arrays |= {"label": np.arange(ROWS) % 3, "label_weights": np.ones(ROWS, np.float32)}
    expected, actual = (
        program.eval_step(program.init(0).params, jax.device_put(arrays, program.batch_sharding))
        for program in programs(model)
    )
    chex.assert_trees_all_close(actual, expected, rtol=1e-7, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 3])
def test_preferences(chunk):
    model, loss, random = DecoderConfig(**SIZES), preference_loss(DPO()), np.random.default_rng(2)
    shapes = loss.batch_spec(model, ROWS, {"inputs": LENGTH})
    arrays = {name: random.integers(1, 3, x.shape).astype(x.dtype) for name, x in shapes.items()}
    options = {"loss": loss, "preference": DPO(), "loss_chunk": chunk}
    expected, actual = (stepped(each, arrays)[1] for each in programs(model, **options))
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_step_gathers_keys_and_values_and_each_device_keeps_its_tokens():
    model = DecoderConfig(**SIZES, num_kv_heads=2)
    alone, together = (
        program.lower(2, {"inputs": 512}).compile()
        for program in programs(model, (1, 1, 1, 8), loss_chunk=32)
    )
    text = together.as_text()
    assert "all-gather" in text
    assert "all-to-all" not in text
    sizes = [each.memory_analysis().temp_size_in_bytes for each in (together, alone)]
    assert sizes[0] < 0.5 * sizes[1]


def config(**fields):
    model = fields.pop("model", DecoderConfig(**SIZES))
    return Config(model=model, data=DataConfig(sequence_length=30, batch_size=8), **fields)


def test_what_devices_cannot_share_is_refused():
    with pytest.raises(ConfigError, match=r"30 .*--mesh.sequence 3"):
        validate(config(mesh=MeshConfig(sequence=4)), 4)
    latent = DecoderConfig(**SIZES, self_attention=LatentAttention(rank=4, rope_dim=2))
    images = VisionConfig(num_layers=1, model_dim=16, num_heads=2, mlp_dim=16)
    with pytest.raises(ConfigError, match=r"197 .*--model.register-tokens 3"):
        experiment._check_sequence_axis(images, 4, images.row_lengths({}))
    with pytest.raises(ConfigError, match="LatentAttention"):
        validate(config(mesh=MeshConfig(sequence=2), model=latent), 2)
