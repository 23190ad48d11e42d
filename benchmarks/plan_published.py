"""Published measurements of steps, to evaluate and to fit `plan.roofline`.

TPU rows: AI-Hypercomputer/tpu-recipes, MaxText in bfloat16; GPU rows: AI-Hypercomputer/gpu-recipes
(MaxText) and pytorch/torchtitan. Mixtures of experts, 8-bit floats, context parallelism and models
of images are left out, and so are both rows of v5p: GPT-3 175B is in 8-bit integers, and the remat
of Llama 3.1 405B is not stated.
"""

from collections.abc import Callable
from typing import NamedTuple

from jaxformer.distributed.slices import parse_chips
from jaxformer.models import DecoderConfig
from jaxformer.plan.closed_form import Work, layer_products, sent
from jaxformer.plan.roofline import Shares, StepTime, time_of
from jaxformer.zoo.recipes import choose

_TPU = "https://github.com/AI-Hypercomputer/tpu-recipes/tree/c8cfe2f/training/"
_GPU = "https://github.com/AI-Hypercomputer/gpu-recipes/tree/2e1fd5e/training/"
_TORCHTITAN = "https://github.com/pytorch/torchtitan/blob/main/benchmarks/"

# The parts of a layer whose forward pass runs again in the backward pass. The last product of a
# layer never does, because its result is not read.
_IN_MLP = frozenset({"mlp"})
_NO_OUTPUT = frozenset({"attention", "mlp"})
_NO_CONTEXT = frozenset({"attention", "output", "mlp"})
_FULL = frozenset({"query", "key", "value", "attention", "output", "mlp"})


class Row(NamedTuple):
    """A measured step."""

    model: str
    """Its name."""
    config: Callable[[], DecoderConfig]
    """Its sizes."""
    chips: str
    """The slice, as `parse_chips` reads it."""
    rows: int
    """Rows of the global batch."""
    length: int
    """Tokens of a row."""
    again: frozenset[str]
    """What is computed twice."""
    seconds: float
    """Measured."""
    source: str
    """Where it is published."""
    held_out: bool
    """Whether no constant was fitted on it."""
    tensor: int = 1
    """Devices of the tensor axis; those of a slice that are left are the fsdp axis."""
    data: int = 1
    """Copies of the model."""
    date: str = "2026-08"
    """When the source was read."""

    @property
    def mesh(self) -> dict[str, int]:
        """The devices along each axis."""
        rest = parse_chips(self.chips).num_devices // (self.data * self.tensor)
        return {"data": self.data, "fsdp": rest, "tensor": self.tensor}

    def predicted(self, shares: Shares | None = None) -> StepTime:
        """The time that the roofline gives."""
        slice_ = parse_chips(self.chips)
        return time_of(work_of_row(self), slice_, self.mesh, shares)


def _zoo(file: str, size: str) -> Callable[[], DecoderConfig]:
    return lambda: choose(file, size).config


def _gemma3_12b() -> DecoderConfig:
    """https://huggingface.co/google/gemma-3-12b-pt, config.json."""
    return DecoderConfig(
        num_layers=48,
        model_dim=3840,
        num_heads=16,
        num_kv_heads=8,
        head_dim=256,
        mlp_dim=15_360,
        vocab_size=262_144,
        windows=(1024,) * 5 + (None,),
    )


_8B, _70B = _zoo("llama.py", "llama3-8b"), _zoo("llama.py", "llama3-70b")
_405B, _LLAMA2 = _zoo("llama.py", "llama3-405b"), _zoo("llama.py", "llama2-70b")
_V6E_8B, _V6E_70B = _TPU + "trillium/Llama3.1-8B-MaxText/", _TPU + "trillium/Llama3.1-70B-MaxText/"
_GEMMA = _TPU + "trillium/Gemma3-12B-MaxText/"
_IRONWOOD = _TPU + "ironwood"

ROWS = (
    Row("llama3.1-8b", _8B, "v6e:2x4", 24, 8192, _NO_OUTPUT, 3.443, _V6E_8B + "v6e-8", False),
    Row("llama3.1-8b", _8B, "v6e:4x4", 48, 8192, _NO_OUTPUT, 3.393, _V6E_8B + "v6e-16", True),
    Row("llama3.1-8b", _8B, "v6e:4x8", 96, 8192, _NO_OUTPUT, 3.495, _V6E_8B + "v6e-32", False),
    Row("llama3.1-8b", _8B, "v6e:8x8", 320, 8192, _NO_OUTPUT, 5.652, _V6E_8B + "v6e-64", True),
    Row("llama3.1-8b", _8B, "v6e:8x16", 512, 8192, _NO_OUTPUT, 4.602, _V6E_8B + "v6e-128", False),
    Row("llama3.1-8b", _8B, "v6e:16x16", 1024, 8192, _NO_OUTPUT, 4.546, _V6E_8B + "v6e-256", True),
    Row("llama3.1-70b", _70B, "v6e:4x8", 64, 8192, _NO_CONTEXT, 17.79, _V6E_70B + "v6e-32", False),
    Row("llama3.1-70b", _70B, "v6e:8x8", 128, 8192, _NO_CONTEXT, 18.688, _V6E_70B + "v6e-64", True),
    Row(
        "llama3.1-70b",
        _70B,
        "v6e:8x16",
        512,
        8192,
        _NO_CONTEXT,
        34.786,
        _V6E_70B + "v6e-128",
        False,
    ),
    Row(
        "llama3.1-70b",
        _70B,
        "v6e:16x16",
        1280,
        8192,
        _NO_CONTEXT,
        42.656,
        _V6E_70B + "v6e-256",
        True,
    ),
    Row(
        "llama2-70b",
        _LLAMA2,
        "v6e:16x16",
        512,
        4096,
        _NO_CONTEXT,
        9.052,
        _TPU + "trillium/Llama2-70B-MaxText",
        False,
    ),
    Row(
        "llama3.1-405b",
        _405B,
        "v6e:16x16*2",
        512,
        8192,
        _FULL,
        54.803,
        _TPU + "trillium/Llama3.1-405B-MaxText",
        True,
    ),
    Row(
        "mistral-7b",
        _zoo("mistral.py", "7b"),
        "v6e:2x4",
        48,
        8192,
        _NO_OUTPUT,
        6.32,
        _TPU + "trillium/Mistral-7B-MaxText",
        True,
    ),
    Row(
        "gpt3-175b",
        _zoo("gpt3.py", "175b"),
        "v6e:16x16",
        768,
        2048,
        _FULL,
        17.182,
        _TPU + "trillium/GPT3-175B-MaxText/bf16",
        False,
    ),
    Row(
        "gemma3-12b", _gemma3_12b, "v6e:16x16", 256, 32_768, _FULL, 7.318, _GEMMA + "v6e-256", False
    ),
    Row(
        "gemma3-12b",
        _gemma3_12b,
        "v6e:16x16*2",
        512,
        32_768,
        _FULL,
        7.793,
        _GEMMA + "2x-v6e-256",
        True,
        1,
        2,
    ),
    Row(
        "gemma3-12b",
        _gemma3_12b,
        "v6e:16x16*4",
        1024,
        32_768,
        _FULL,
        8.39,
        _GEMMA + "4x-v6e-256",
        True,
        1,
        4,
    ),
    Row(
        "llama3.1-70b",
        _70B,
        "tpu7x:4x4x4",
        256,
        8192,
        frozenset({"output", "mlp"}),
        12.2,
        _IRONWOOD,
        False,
    ),
    Row(
        "llama3.1-70b",
        _70B,
        "tpu7x:4x8x8",
        1024,
        8192,
        frozenset({"output", "mlp"}),
        12.27,
        _IRONWOOD,
        True,
    ),
    Row(
        "llama3.1-405b",
        _405B,
        "tpu7x:4x8x8",
        1536,
        8192,
        _FULL - {"key", "value"},
        98.34,
        _IRONWOOD,
        True,
    ),
    Row(
        "llama3.1-70b",
        _70B,
        "h200:256",
        512,
        8192,
        _IN_MLP,
        15.516,
        _GPU + "a3ultra/llama3-1-70b/maxtext-pretraining-gke",
        False,
        1,
        2,
    ),
    # 6,667 tokens a second and GPU; every second product is computed twice.
    Row(
        "llama3.1-8b",
        _8B,
        "h100:8",
        8,
        8192,
        frozenset({"query", "value", "mlp"}),
        8192 / 6667,
        _TORCHTITAN + "llama3_h100_202412_torchtitan.md",
        True,
    ),
)
"""The rows; of those of TPUs half are held out, whole groups of slices and models among them."""


def work_of_row(row: Row) -> Work:
    """The work of a published step in closed form, without a program to trace."""
    config, mesh = row.config(), row.mesh
    devices = parse_chips(row.chips).num_devices
    tokens = row.rows * row.length
    flops = config.flops({"inputs": row.length})
    parts = layer_products(config)
    products = 3 * flops.products + config.num_layers * 2 * sum(parts[name] for name in row.again)
    # MaxText's kernel computes both gradients in one pass: 5 products, and 2 in the forward pass.
    passes = 1 + 2.5 + ("attention" in row.again)
    tables = config.vocab_size * config.model_dim * (1 if config.tie_embeddings else 2)
    parameters = config.num_layers * sum(parts.values()) + tables
    sizes = {"parameters": parameters, "tokens": tokens, "gradient_bytes": 2}
    return Work(
        products=products * tokens / devices,
        attention=flops.causal_attention * passes * tokens / devices,
        state_bytes=32 * parameters / (mesh["fsdp"] * mesh["tensor"]),
        collectives=sent(config, mesh, **sizes),
        tokens=tokens,
        useful=flops.training(causal=True) * tokens,
    )
