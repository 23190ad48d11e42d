"""Small folders of sentence-transformers, with random weights."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from jaxformer.parity.reference import save_random

WORDS = (
    "[UNK]", "[PAD]", "[CLS]", "[SEP]", "a", "the", "cat", "dog", "The", "Cat", "sat", "on", "mat",
    "query", "passage", ":", "runs", "fast", "blue", "sky",
)  # fmt: skip
TEXTS = ("a cat", "the dog sat on the mat , fast : a blue sky , a cat", "", "The Cat runs", "sky")
WIDTH, LONGEST = 24, 16
_PACKAGE = "sentence_transformers.models"


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of words, which puts [CLS] and [SEP] around a text, or a pair."""
    tokenizer = Tokenizer(WordLevel({word: n for n, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(list(WORDS[:4]))
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **names,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def save_transformer(folder: Path, class_name: str = "BertModel", **fields) -> Path:
    """A small BERT of these words."""
    fields |= {"vocab_size": len(WORDS), "hidden_size": WIDTH, "num_attention_heads": 4}
    save_random("bert", class_name, folder, max_position_embeddings=LONGEST, **fields)
    save_tokenizer(folder)
    return folder


def add_modules(folder: Path, modules: dict[str, dict], transformer: str = "") -> Path:
    """modules.json, and the folders of modules with their config.json.

    Args:
        folder: The folder.
        modules: By the module's class: the values of its file.
        transformer: The folder of the model within the folder.
    """
    listed = [("Transformer", transformer)]
    for number, (kind, values) in enumerate(modules.items(), start=1):
        path = f"{number}_{kind}"
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(values))
        listed.append((kind, path))
    entries = [
        {"idx": n, "name": str(n), "path": path, "type": f"{_PACKAGE}.{kind}"}
        for n, (kind, path) in enumerate(listed)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


def add_tensors(folder: Path, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Random tensors of a module; "linear_weight" is linear.weight."""
    rng = np.random.default_rng(3)
    tensors = {
        name.replace("_", "."): rng.normal(scale=0.4, size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    return tensors


def save_whole(folder: Path) -> Path:
    """A folder with all that is supported: two poolings, a dense layer, norms and prompts."""
    save_transformer(folder)
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True}
    dense = {
        "in_features": 2 * WIDTH,
        "out_features": 10,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    modules = {
        "Pooling": pooling | {"pooling_mode_mean_tokens": True, "include_prompt": False},
        "Dense": dense,
        "LayerNorm": {"dimension": 10},
        "Normalize": {},
    }
    add_modules(folder, modules)
    add_tensors(folder / "2_Dense", linear_weight=(10, 2 * WIDTH), linear_bias=(10,))
    add_tensors(folder / "3_LayerNorm", norm_weight=(10,), norm_bias=(10,))
    settings = {"max_seq_length": 9, "do_lower_case": True}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    prompts = {"prompts": {"query": "query : ", "passage": "passage : "}}
    settings = prompts | {"default_prompt_name": "passage", "similarity_fn_name": "dot"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder
