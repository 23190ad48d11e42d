"""The hyperparameters and tensor layouts of each system in GGUF.

Tensor names come from the package `gguf`. Weights are adapted where llama.cpp computes differently
from transformers: rows of queries and keys are reordered (Llama), 1 is added to scales (Gemma),
kernels are transposed (GPT-2). https://github.com/ggml-org/llama.cpp/tree/master/conversion
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxformer.engines.gguf import library
from jaxformer.errors import ConfigError

Values = Mapping[str, Any]
_FIELDS = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "block_count": ("num_hidden_layers", "n_layer", "num_layers"),
    "feed_forward_length": ("intermediate_size", "n_inner", "d_ff"),
    "head_count": ("num_attention_heads", "n_head", "num_heads"),
    "head_count_kv": ("num_key_value_heads",),
    "layer_norm_rms_eps": ("rms_norm_eps",),
    "layer_norm_eps": ("layer_norm_eps", "layer_norm_epsilon"),
    "key_length": ("head_dim", "d_kv"),
    "value_length": ("head_dim", "d_kv"),
}
"""Hyperparameter of GGUF -> the fields of config.json with its value."""


class GGUFArchitecture:
    """The default for systems: RoPE on two halves, kernels as in PyTorch."""

    activations: tuple[str, ...] = ("silu", "swish")
    """The names in config.json of the activation that llama.cpp computes."""
    rope_types: tuple[str, ...] = ("default", "linear", "yarn")
    """The RoPE scalings that llama.cpp supports."""

    def __init__(self, arch: str):
        self.arch = arch
        """The name of the architecture, a member of `gguf.MODEL_ARCH`."""

    def check(self, values: Values) -> None:
        """Raises ConfigError if llama.cpp lacks a feature of a model."""
        self.check_activation(values)
        if _window(values) is not None:
            raise refused(values, "sliding_window", "null: llama.cpp reads no window here")
        self.check_rope(values, rope_of(values))

    def check_activation(self, values: Values) -> None:
        """Raises ConfigError if llama.cpp computes another activation."""
        for name in ("hidden_act", "hidden_activation", "activation_function"):
            if values.get(name) is not None and values[name] not in self.activations:
                raise refused(values, name, self.activations[0])

    def check_rope(self, values: Values, rope: Values) -> None:
        """Raises ConfigError if llama.cpp does not support the RoPE scaling."""
        kind, types = rope.get("rope_type", "default"), self.rope_types
        if kind not in types:
            expected = f"{', '.join(types[:-1])} or {types[-1]} here"
            raise refused(values, "rope_type", expected, kind)

    def block_count(self, values: Values) -> int:
        """Returns the number of layers."""
        return _first(values, _FIELDS["block_count"])

    def write_fields(self, writer: Any, values: Values) -> None:
        """Writes the hyperparameters."""
        for name, sources in _FIELDS.items():
            if (value := _first(values, sources)) is not None:
                getattr(writer, f"add_{name}")(value)
        rope = rope_of(values)
        if not rope:
            return
        turning = _head_dim(values) * rope.get("partial_rotary_factor", 1.0)
        writer.add_rope_dimension_count(int(turning))
        writer.add_rope_freq_base(float(rope["rope_theta"]))
        self.write_rope(writer, rope)

    def write_rope(self, writer: Any, rope: Values) -> None:
        """Writes the RoPE scaling beyond the training length."""
        kind, kinds = rope.get("rope_type", "default"), library().RopeScalingType
        if kind not in ("linear", "yarn"):
            return
        writer.add_rope_scaling_type(kinds[kind.upper()])
        writer.add_rope_scaling_factor(rope["factor"])
        if kind == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])

    def tensors(self, name: str, array: np.ndarray, values: Values) -> Iterator[tuple[str, Any]]:
        """Yields a tensor of PyTorch's file in llama.cpp's layout, or nothing if it is unused."""
        del values
        yield name, array

    def extra_tensors(self, values: Values) -> Iterator[tuple[str, np.ndarray]]:
        """Yields additional tensors that PyTorch's file lacks, by their names in GGUF."""
        del values
        yield from ()


class Llama(GGUFArchitecture):
    """RoPE on adjacent channels: reorders the rows of queries and keys."""

    rope_types = (*GGUFArchitecture.rope_types, "llama3")

    def tensors(self, name: str, array: np.ndarray, values: Values) -> Iterator[tuple[str, Any]]:
        counts = {"q_proj": values["num_attention_heads"], "k_proj": values["num_key_value_heads"]}
        heads = next((count for part, count in counts.items() if f"{part}." in name), None)
        yield name, array if heads is None else interleaved(array, heads)

    def extra_tensors(self, values: Values) -> Iterator[tuple[str, np.ndarray]]:
        """Yields Llama 3's divisors of the RoPE frequencies."""
        rope = rope_of(values)
        if rope.get("rope_type") == "llama3":
            yield "rope_freqs.weight", llama3_factors(rope, _head_dim(values))


class Gemma(GGUFArchitecture):
    """Norm scales are stored without 1 in PyTorch's file, and with it in GGUF."""

    # For Gemma, transformers uses the tanh form for "gelu" too.
    activations = ("gelu_pytorch_tanh", "gelu", "gelu_new")
    rope_types = ("default", "linear")

    def check(self, values: Values) -> None:
        """Raises ConfigError for unsupported scales of attention scores."""
        self.check_activation(values)
        head_dim, scalar = values["head_dim"], values.get("query_pre_attn_scalar")
        if scalar is not None and scalar != head_dim:
            raise refused(values, "query_pre_attn_scalar", f"{head_dim}, as head_dim")
        kinds = _rope_kinds(values)
        for rope in kinds.values():
            self.check_rope(values, rope)
        if self.arch != "GEMMA3" and len(kinds) > 1:
            raise refused(values, "rope_parameters", "the same for all layers")

    def write_fields(self, writer: Any, values: Values) -> None:
        super().write_fields(writer, values)
        if self.arch != "GEMMA":
            writer.add_sliding_window(values["sliding_window"])
        kinds = _rope_kinds(values)
        if "sliding_attention" in kinds:
            writer.add_rope_freq_base_swa(float(kinds["sliding_attention"]["rope_theta"]))
        caps = ("attn_logit_softcapping", "final_logit_softcapping")
        for name in caps if self.arch == "GEMMA2" else ():
            getattr(writer, f"add_{name}")(values[name])

    def tensors(self, name: str, array: np.ndarray, values: Values) -> Iterator[tuple[str, Any]]:
        """Yields a tensor, with 1 added to scales; the tied head is left out."""
        if name != "lm_head.weight":
            yield name, array + np.float32(1) if name.endswith("norm.weight") else array


class Phi3(GGUFArchitecture):
    """Always writes a window; longrope has two tables of factors."""

    rope_types = ("default", "longrope")

    def write_fields(self, writer: Any, values: Values) -> None:
        super().write_fields(writer, values)
        name, rope = "original_max_position_embeddings", rope_of(values)
        original = rope.get(name) or values.get(name) or values["max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_sliding_window(0)
        longer = values["max_position_embeddings"] / original
        if rope.get("rope_type") == "longrope":
            scale = math.sqrt(1 + math.log(longer) / math.log(original)) if longer > 1 else 1.0
            writer.add_rope_scaling_attn_factors(scale)

    def extra_tensors(self, values: Values) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the factors for short and long texts."""
        rope = rope_of(values)
        for name in ("long", "short") if rope.get("rope_type") == "longrope" else ():
            yield f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32)


class GPT2(GGUFArchitecture):
    """Kernels are `[inputs, outputs]` in PyTorch's file."""

    activations = ("gelu_new", "gelu_pytorch_tanh")

    def check(self, values: Values) -> None:
        if values.get("scale_attn_by_inverse_layer_idx"):
            raise refused(values, "scale_attn_by_inverse_layer_idx", "false")
        self.check_activation(values)

    def write_fields(self, writer: Any, values: Values) -> None:
        inner = values.get("n_inner") or 4 * values["n_embd"]
        super().write_fields(writer, {**values, "n_inner": inner})

    def tensors(self, name: str, array: np.ndarray, values: Values) -> Iterator[tuple[str, Any]]:
        kernels = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
        if not name.endswith((".attn.bias", ".attn.masked_bias")):
            yield name, array.T if name.endswith(kernels) else array


class GPTNeoX(GGUFArchitecture):
    """Queries, keys and values are stored head by head in PyTorch's file."""

    activations = ("gelu",)

    def write_fields(self, writer: Any, values: Values) -> None:
        super().write_fields(writer, values)
        writer.add_parallel_residual(values.get("use_parallel_residual", True))

    def tensors(self, name: str, array: np.ndarray, values: Values) -> Iterator[tuple[str, Any]]:
        if "query_key_value" in name:
            parts = array.reshape(values["num_attention_heads"], 3, -1, *array.shape[1:])
            array = np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(array.shape)
        yield name, array


class StableLM(GGUFArchitecture):
    """Writes whether both sublayers read the same input."""

    def check(self, values: Values) -> None:
        """Raises ConfigError for norms of each head, whose tensors are separate in PyTorch."""
        if values.get("qk_layernorm"):
            raise refused(values, "qk_layernorm", "false")
        super().check(values)

    def write_fields(self, writer: Any, values: Values) -> None:
        super().write_fields(writer, values)
        writer.add_parallel_residual(values.get("use_parallel_residual", False))


class Bert(GGUFArchitecture):
    """An encoder without heads or pooler, which llama.cpp uses for embeddings."""

    activations = ("gelu",)

    def write_fields(self, writer: Any, values: Values) -> None:
        super().write_fields(writer, values)
        writer.add_causal_attention(False)
        writer.add_token_type_count(values["type_vocab_size"])

    def tensors(self, name: str, array: np.ndarray, values: Values) -> Iterator[tuple[str, Any]]:
        name = name.removeprefix("bert.")
        if not name.startswith(("pooler.", "cls.")) and not name.endswith("position_ids"):
            yield name, array


class T5(GGUFArchitecture):
    """An encoder-decoder with a shared embedding table."""

    def check(self, values: Values) -> None:
        if values.get("feed_forward_proj") not in ("relu", "gated-gelu"):
            raise refused(values, "feed_forward_proj", "relu or gated-gelu")

    def write_fields(self, writer: Any, values: Values) -> None:
        super().write_fields(writer, values)
        writer.add_context_length(values.get("n_positions") or 512)
        writer.add_layer_norm_rms_eps(values["layer_norm_epsilon"])
        writer.add_decoder_block_count(values.get("num_decoder_layers") or values["num_layers"])
        writer.add_relative_attn_buckets_count(values["relative_attention_num_buckets"])
        writer.add_decoder_start_token_id(values["decoder_start_token_id"])

    def tensors(self, name: str, array: np.ndarray, values: Values) -> Iterator[tuple[str, Any]]:
        """Yields a tensor; the embedding table only once, and a scaled copy for a tied head."""
        if name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
            return
        scale = values["d_model"] ** -0.5 if values.get("scale_decoder_outputs") else 1.0
        if name == "shared.weight":
            yield name, array
            if values.get("tie_word_embeddings", True):
                yield "lm_head.weight", array * np.float32(scale)
        else:
            yield name, array * np.float32(scale) if name == "lm_head.weight" else array


ARCHITECTURES: dict[str, GGUFArchitecture] = {
    "llama": Llama("LLAMA"),
    "mistral": Llama("LLAMA"),
    "qwen2": GGUFArchitecture("QWEN2"),
    "qwen3": GGUFArchitecture("QWEN3"),
    "olmo2": GGUFArchitecture("OLMO2"),
    "gemma": Gemma("GEMMA"),
    "gemma2": Gemma("GEMMA2"),
    "gemma3_text": Gemma("GEMMA3"),
    "phi3": Phi3("PHI3"),
    "gpt2": GPT2("GPT2"),
    "gpt_neox": GPTNeoX("GPTNEOX"),
    "stablelm": StableLM("STABLELM"),
    "bert": Bert("BERT"),
    "t5": T5("T5"),
}
"""The architectures by model type."""


def interleaved(array: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the rows of a kernel `[N H, D]` or bias `[N H]`: channel i next to channel i + H/2.

    transformers rotates the halves of a head, llama.cpp adjacent channels.
    """
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def llama3_factors(rope: Values, head_dim: int) -> np.ndarray:
    """Returns Llama 3's divisors of the RoPE frequencies, `[H/2]`."""
    frequencies = rope["rope_theta"] ** -(np.arange(0, head_dim, 2) / head_dim)
    wavelengths = 2 * np.pi / frequencies
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] / wavelengths
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def rope_of(values: Values) -> Values:
    """Returns the RoPE settings, of full attention if there are several; empty without RoPE."""
    kinds = _rope_kinds(values)
    return kinds.get("full_attention", next(iter(kinds.values()), {}))


def _rope_kinds(values: Values) -> dict[str, Values]:
    """Returns the RoPE settings by layer type."""
    rope = values.get("rope_parameters") or {}
    factor = values.get("partial_rotary_factor")
    own = {} if factor is None else {"partial_rotary_factor": factor}
    if any(isinstance(value, Mapping) for value in rope.values()):
        return {kind: {**own, **value} for kind, value in rope.items()}
    if not rope and values.get("rope_theta") is None:
        return {}
    scaling = values.get("rope_scaling") or {}
    return {"all": {**own, "rope_theta": values.get("rope_theta"), **scaling, **rope}}


def _window(values: Values) -> int | None:
    """Returns the window of a model, or None if it is unused or not below the maximum length."""
    window = values.get("sliding_window")
    if window is None or values.get("use_sliding_window") is False:
        return None
    return window if window < values["max_position_embeddings"] else None


def _head_dim(values: Values) -> int:
    width, heads = (_first(values, _FIELDS[name]) for name in ("embedding_length", "head_count"))
    return values.get("head_dim") or width // heads


def _first(values: Values, names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def refused(values: Values, name: str, expected: str, value: Any = None) -> ConfigError:
    """Returns the error for an unsupported field of config.json."""
    found = values.get(name) if value is None else value
    return ConfigError(
        f"--format gguf: {name} = {found!r}: must be {expected} for {values['model_type']!r}"
    )
