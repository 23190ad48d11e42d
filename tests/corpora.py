"""Corpora as `DataConfig` makes them: the tokenizer of a run, and then the tokens."""

import json

import numpy as np

from jaxformer.data import JsonLines, TokenRow
from jaxformer.data.dataset import padded
from jaxformer.data.text.corpus import CorpusOptions, load_or_tokenise, training_texts
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer


def load_or_build(split, spec, folder, special_tokens=(), options=None):
    texts = training_texts([split])
    tokenizer = load_or_train_tokenizer(folder, spec, texts, special_tokens)
    return load_or_tokenise(split, tokenizer, folder, options or CorpusOptions())


def write_rows(path, rows):
    """Writes objects as JSON lines; returns the path as text."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def write_texts(path, texts):
    """Writes documents as JSON lines; returns their source."""
    return JsonLines(write_rows(path, [{"text": text} for text in texts]))


def token_row(tokens, size, pad_id=0):
    """A row of tokens and padding without segments, for objectives that read no successors."""
    row = padded(np.asarray(tokens, np.int32), size, pad_id)
    return TokenRow(row, row, np.arange(size) < len(tokens), None, None)


def documents(tokens, tokenizer):
    """The texts of one side of a corpus."""
    return [
        tokenizer.decode(shard.tokens[start + 1 : end])
        for shard in tokens.shards
        for start, end in zip(shard.offsets[:-1], shard.offsets[1:], strict=True)
    ]
