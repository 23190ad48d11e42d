"""GGUF files: what the package `gguf` reads back, what llama.cpp computes, what is refused."""

import json

import numpy as np
import pytest
from engine_exports import exported, receipt_of
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from jaxformer.engines.gguf import architectures
from jaxformer.engines.gguf.architectures import ARCHITECTURES, interleaved, llama3_factors, rope_of
from jaxformer.engines.gguf.vocabulary import write_vocabulary
from jaxformer.engines.gguf.writer import FILE, check_written, tensor_type
from jaxformer.engines.tiny import PLAIN
from jaxformer.errors import ConfigError, DataError

ROPE = {"rope_theta": 100.0}
LLAMA3 = ROPE | {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS = {
    "llama3": ("llama", {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "one key": ("llama", {"num_attention_heads": 8, "num_key_value_heads": 1}),
    "linear": ("llama", {"rope_parameters": ROPE | {"rope_type": "linear", "factor": 2.5}}),
    "yarn": (
        "qwen2",
        {
            "rope_parameters": ROPE
            | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 80}
        },
    ),
    "longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 512,
            "max_position_embeddings": 1024,
            "rope_parameters": ROPE
            | {
                "rope_type": "longrope",
                "short_factor": [1.0 + 0.1 * n for n in range(8)],
                "long_factor": [1.2 + 0.3 * n for n in range(8)],
            },
        },
    ),
    "sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "untied": ("t5", {"tie_word_embeddings": False}),
}
REFUSED = {
    "rope_type": ("llama", {"rope_parameters": ROPE | {"rope_type": "dynamic", "factor": 4.0}}),
    "sliding_window": ("mistral", {"sliding_window": 16}),
    "hidden_act": ("qwen3", {"hidden_act": "gelu"}),
    "query_pre_attn_scalar": ("gemma2", {"query_pre_attn_scalar": 20}),
    "qk_layernorm": ("stablelm", {"qk_layernorm": True}),
    "scale_attn_by_inverse_layer_idx": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
}


# What needs no package -------------------------------------------------------------------------


def test_halves_of_a_head_become_neighbours():
    rows = np.arange(8).reshape(8, 1)  # two heads of four channels
    assert interleaved(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_heads_of_keys_are_counted_apart():
    values = {"num_attention_heads": 4, "num_key_value_heads": 2}
    rows, llama = np.arange(8).reshape(8, 1), ARCHITECTURES["llama"]
    named = "model.layers.0.self_attn.{}_proj.weight"
    ((_, keys),) = llama.tensors(named.format("k"), rows, values)
    ((_, queries),) = llama.tensors(named.format("q"), rows, values)
    ((_, other),) = llama.tensors(named.format("v"), rows, values)
    assert keys[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert queries[:, 0].tolist() == other[:, 0].tolist() == list(range(8))


def test_llama_3_leaves_fast_channels_and_slows_slow_ones():
    factors = llama3_factors(LLAMA3 | {"rope_theta": 10000.0}, 16)
    assert factors[0] == 1
    assert factors[-1] == 4
    assert (np.diff(factors) >= 0).all()


def test_a_field_that_llama_cpp_lacks_is_named():
    values = PLAIN["mistral"] | {"model_type": "mistral", "sliding_window": 16}
    with pytest.raises(ConfigError, match="sliding_window = 16"):
        ARCHITECTURES["mistral"].check(values)
    ARCHITECTURES["mistral"].check(values | {"sliding_window": 4096})  # longer than any text


def test_both_spellings_of_rope():
    old = {"rope_theta": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    assert rope_of(old) == {"rope_theta": 50.0, "rope_type": "linear", "factor": 2.0}
    assert rope_of({"rope_parameters": ROPE}) == ROPE
    assert rope_of({"n_positions": 8}) == {}
    assert architectures.rope_of({"rope_theta": None}) == {}


# With the package `gguf` -----------------------------------------------------------------------


class Written(dict):
    """A writer that keeps what is added, by name."""

    def __getattr__(self, name):
        return lambda *values: self.__setitem__(name.removeprefix("add_"), *values)


def vocabulary(tmp_path, tokenizer, size=300):
    pytest.importorskip("gguf")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = Written()
    write_vocabulary(found, tmp_path, size)
    return found


def byte_level(*steps, merges=(("a", "b"),)):
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = ["".join(pair) for pair in merges]
    tokens = {word: n for n, word in enumerate([*words, *made])}
    tokenizer = Tokenizer(models.BPE(tokens, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    return tokenizer


@pytest.mark.torch
def test_how_texts_are_cut_is_recognised(tmp_path):
    level = pre_tokenizers.ByteLevel
    plain = byte_level(level(add_prefix_space=False))
    assert vocabulary(tmp_path, plain)["tokenizer_pre"] == "gpt-2"
    digits = pre_tokenizers.Digits(individual_digits=True)
    assert vocabulary(tmp_path, byte_level(digits, level(False)))["tokenizer_pre"] == "smollm"
    with pytest.raises(ConfigError, match="Whitespace and ByteLevel"):
        vocabulary(tmp_path, byte_level(pre_tokenizers.Whitespace(), level(False)))
    unmerged = byte_level(pre_tokenizers.Whitespace(), level(False), merges=())
    found = vocabulary(tmp_path, unmerged)
    assert found["tokenizer_pre"] == "gpt-2"
    assert len(found["token_merges"]) == 1


@pytest.mark.torch
def test_tokens_scores_and_kinds(tmp_path):
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("\u2581a", -1.5), ("b", -2.0)], 0))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC()])
    found = vocabulary(tmp_path, unigram, size=4)
    assert found["tokenizer_model"] == "t5"
    assert found["token_list"] == [b"<unk>", "\u2581a".encode(), b"b", b"[PAD3]"]
    assert found["token_scores"][1:3] == [-1.5, -2.0]
    assert found["token_types"] == [2, 1, 1, 5]
    assert found["add_space_prefix"] is True
    words = Tokenizer(models.WordPiece({"[UNK]": 0, "dog": 1, "##s": 2}, unk_token="[UNK]"))
    found = vocabulary(tmp_path, words, size=3)
    assert found["token_list"] == [b"[UNK]", "\u2581dog".encode(), b"s"]


@pytest.mark.torch
def test_a_tokenizer_of_whole_words_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="WordLevel"):
        vocabulary(tmp_path, Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))


@pytest.mark.torch
def test_a_model_without_a_tokenizer(tmp_path):
    pytest.importorskip("gguf")
    found = Written()
    write_vocabulary(found, tmp_path, 77)
    assert found == {"tokenizer_model": "none", "vocab_size": 77}


@pytest.mark.torch
def test_rows_that_blocks_do_not_divide(tmp_path):
    pytest.importorskip("gguf")
    with pytest.raises(ConfigError, match="rows of 48 values"):
        tensor_type("blk.0.attn_q.weight", np.zeros((8, 48)), "q8_0")
    assert tensor_type("blk.0.attn_norm.weight", np.zeros(48), "q8_0").name == "F32"


@pytest.mark.torch
def test_a_damaged_file_is_found(tmp_path):
    pytest.importorskip("gguf")
    model, out = exported("gpt2", tmp_path, "gguf")
    values = json.loads((tmp_path / "hf" / "config.json").read_text())
    check_written(out / FILE, model, ARCHITECTURES["gpt2"], values)
    data = bytearray((out / FILE).read_bytes())
    data[-9] ^= 1
    (out / FILE).write_bytes(data)
    with pytest.raises(DataError, match="is damaged"):
        check_written(out / FILE, model, ARCHITECTURES["gpt2"], values)


@pytest.mark.torch
@pytest.mark.quick("rope_type", "hidden_act")
@pytest.mark.parametrize("field", REFUSED)
def test_what_llama_cpp_lacks_is_refused(field, tmp_path):
    pytest.importorskip("gguf")
    kind, changes = REFUSED[field]
    with pytest.raises(ConfigError, match=field):
        exported(kind, tmp_path, "gguf", **changes)
    assert not (tmp_path / "out").exists()


# In llama.cpp ----------------------------------------------------------------------------------


def in_llama_cpp(kind, tmp_path, **options):
    """The receipt of a small model."""
    pytest.importorskip("gguf")
    out = exported(kind, tmp_path, "gguf", **options)[1]
    pytest.importorskip("llama_cpp")
    return receipt_of(out, "llama.cpp")


@pytest.mark.torch
@pytest.mark.quick("llama", "bert", "t5")
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_llama_cpp_computes_the_same(kind, tmp_path):
    receipt = in_llama_cpp(kind, tmp_path)
    assert not receipt.problems
    assert receipt.max_difference <= 1e-3 * max(1, receipt.largest)
    assert receipt.equal_greedy_tokens == receipt.greedy_tokens
    if kind != "bert":
        assert receipt.greedy_tokens == 256
        assert receipt.equal_tokens_of_text


@pytest.mark.torch
@pytest.mark.quick("llama3", "longrope")
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_in_llama_cpp(name, tmp_path):
    kind, changes = VARIANTS[name]
    assert not in_llama_cpp(kind, tmp_path, **changes).problems


@pytest.mark.torch
@pytest.mark.parametrize("how", [{"dtype": "float16"}, {"dtype": "bfloat16"}, {"quantise": "q8_0"}])
def test_smaller_types_are_near(how, tmp_path):
    receipt = in_llama_cpp("llama", tmp_path, **how)
    assert 0 < receipt.max_difference < 0.05 * receipt.largest
    assert receipt.limit == 0
