"""Small models with the features of published ones, for measuring engines."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from jaxformer.data.tasks.images.pixels import PREPROCESSOR
from jaxformer.data.tasks.sounds.features import LogMel
from jaxformer.data.tokenizers.files import write_tokenizer
from jaxformer.engines.gguf.vocabulary import QWEN2
from jaxformer.engines.reference import TEXT
from jaxformer.io.model_files import GENERATION
from jaxformer.parity.reference import save_random
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.export.serving_files import write_json
from jaxformer.zoo import FORMATS

_VOCABULARY = 320
_END, _PAD = "<|endoftext|>", "<|pad|>"
_TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
_SIZES = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 320,
    **_TOKENS,
}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
_HALF = {"rope_parameters": _ROPE["rope_parameters"] | {"partial_rotary_factor": 0.5}}
_GROUPED = _SIZES | _ROPE | {"num_key_value_heads": 2, "head_dim": 16}
_LLAMA = _GROUPED | {
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
_WINDOWS = {"num_hidden_layers": 4, "sliding_window": 16}
_GPT = {"vocab_size": _VOCABULARY, "n_positions": 320, "n_layer": 2, **_TOKENS}
_BART = {
    "vocab_size": _VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 320,
    "decoder_start_token_id": 0,
    "scale_embedding": False,
    **_TOKENS,
}
_T5 = {
    "vocab_size": _VOCABULARY,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "decoder_start_token_id": 1,
}
_BYTES = [*sorted(pre_tokenizers.ByteLevel.alphabet()), ""]
"""Whisper's text tokens; multilingual models have an empty one."""
_LANGUAGES, _TASKS = ("en", "de"), ("translate", "transcribe")
_OF_SPEECH = [
    f"<|{name}|>"
    for name in (
        "endoftext", "startoftranscript", *_LANGUAGES, *_TASKS, "startoflm", "startofprev",
        "nospeech", "notimestamps", *(f"{0.02 * step:.2f}" for step in range(51)),
    )
]  # fmt: skip
"""Whisper's special tokens, with timestamps for a window of one second."""
_SPEECH_IDS = {name[2:-2]: number for number, name in enumerate(_OF_SPEECH, start=len(_BYTES))}
_WHISPER = {
    "vocab_size": len(_BYTES) + len(_OF_SPEECH),
    "max_source_positions": 50,
    "max_target_positions": 320,
    "decoder_start_token_id": _SPEECH_IDS["startoftranscript"],
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), _SPEECH_IDS["endoftext"]),
}
PLAIN: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA | {"sliding_window": None},
    "qwen2": _GROUPED | {"use_sliding_window": False, "sliding_window": None},
    "qwen3": _LLAMA | {"use_sliding_window": False, "sliding_window": None},
    "gemma": _LLAMA | {"tie_word_embeddings": True},
    "gemma2": _LLAMA | _WINDOWS | {
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": _LLAMA | _WINDOWS | {
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    },
    "phi3": _GROUPED | {
        "sliding_window": None,
        "partial_rotary_factor": 1.0,
        "original_max_position_embeddings": 320,
    },
    "phi": _SIZES | _HALF | {"num_key_value_heads": 4, "qk_layernorm": False},
    "olmo2": _LLAMA,
    "stablelm": _GROUPED | _HALF | {"use_qkv_bias": True, "qk_layernorm": False},
    "smollm3": _LLAMA | {
        "num_hidden_layers": 4,
        "use_sliding_window": False,
        "sliding_window": None,
        "no_rope_layers": [1, 1, 1, 0],
        "layer_types": ["full_attention"] * 4,
    },
    "granite": _LLAMA,
    "glm4": _GROUPED | _HALF | {"attention_bias": True},
    "cohere": _GROUPED | {"attention_bias": False, "use_qk_norm": False, "logit_scale": 0.25},
    "starcoder2": _GROUPED | {"hidden_act": "gelu_pytorch_tanh", "sliding_window": None},
    "gpt2": _GPT | {
        "n_embd": 64,
        "n_head": 4,
        "n_inner": 256,
        "scale_attn_by_inverse_layer_idx": False,
    },
    "gptj": _GPT | {"n_embd": 64, "n_head": 4, "n_inner": 256, "rotary_dim": 8},
    "gpt_neox": _SIZES | _HALF | {"intermediate_size": 256},
    "opt": _SIZES | {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "bloom": {
        "vocab_size": _VOCABULARY, "hidden_size": 64, "n_head": 4, "n_layer": 2, **_TOKENS
    },
    "mpt": {
        "vocab_size": _VOCABULARY,
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 320,
        "attn_config": {"clip_qkv": None, "softmax_scale": None},
        **_TOKENS,
    },
    "falcon": _SIZES | {
        "num_attention_heads": 4,
        "ffn_hidden_size": 96,
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "num_kv_heads": 1,
        "bias": False,
        "alibi": False,
    },
    "bert": _SIZES | {"type_vocab_size": 2},
    "roberta": _SIZES | {"max_position_embeddings": 322, "type_vocab_size": 1},
    "xlm-roberta": _SIZES | {"max_position_embeddings": 322, "type_vocab_size": 1},
    "distilbert": {
        "vocab_size": _VOCABULARY,
        "dim": 64,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 96,
        "max_position_embeddings": 320,
        "activation": "gelu",
        "pad_token_id": 1,
    },
    "bart": _BART,
    "t5": _T5 | {"feed_forward_proj": "relu"},
    "whisper": _WHISPER,
}  # fmt: skip
"""Fields of config.json by model type."""
BODIES = ("bert", "roberta", "xlm-roberta", "distilbert")
"""The model types of encoders, which are measured without a head."""


def save_plain(model_type: str, folder: Path, **changes: Any) -> None:
    """Saves a random model with a BPE tokenizer; requires torch and transformers.

    A Whisper has a byte tokenizer, and files with its preprocessing and generation options.
    """
    own = FORMATS[model_type].architectures
    ending = "Model" if model_type in BODIES else ("CausalLM", "LMHeadModel", "Generation")
    name = next(each.name for each in own if each.name.endswith(ending))
    save_random(model_type, name, folder, **(values := PLAIN[model_type] | changes))
    if model_type == "whisper":
        _write_speech_files(folder, TINY[model_type] | values)
        return
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = byte_level
    if model_type == "qwen2":  # transformers always uses this pre-tokenization for Qwen 2
        cut = pre_tokenizers.Split(Regex(QWEN2), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, byte_level])
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_END, _PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    write_tokenizer(folder, tokenizer, _END, _PAD, "huggingface")


def _write_speech_files(folder: Path, values: Mapping[str, Any]) -> None:
    """Writes Whisper's tokenizer, preprocessor_config.json and generation_config.json."""
    tokenizer = Tokenizer(models.BPE({byte: number for number, byte in enumerate(_BYTES)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_OF_SPEECH)
    write_tokenizer(folder, tokenizer, _END, _END, "huggingface")
    bins, frames = values["num_mel_bins"], 2 * values["max_source_positions"]
    write_json(folder / PREPROCESSOR, LogMel(num_mel_bins=bins, num_frames=frames).preprocessor())
    tokens = {name: value for name, value in values.items() if name.endswith("_token_id")}
    generation = {
        "alignment_heads": [[0, 1], [1, 3]],
        "begin_suppress_tokens": [220, values["eos_token_id"]],
        "is_multilingual": True,
        "lang_to_id": {f"<|{name}|>": _SPEECH_IDS[name] for name in _LANGUAGES},
        "max_initial_timestamp_index": 50,
        "max_length": values["max_target_positions"],
        "no_timestamps_token_id": _SPEECH_IDS["notimestamps"],
        "prev_sot_token_id": _SPEECH_IDS["startofprev"],
        "return_timestamps": False,
        "suppress_tokens": [1, 2, 7, _SPEECH_IDS["startoftranscript"]],
        "task_to_id": {name: _SPEECH_IDS[name] for name in _TASKS},
    }
    write_json(folder / GENERATION, generation | tokens)
