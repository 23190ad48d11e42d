"""Corpora as `DataConfig` makes them: the tokenizer of a run, and then the tokens; and tables."""

import gzip
import json

import numpy as np

from jaxformer.data import ExampleSource, JsonLines, TokenRow
from jaxformer.data.dataset import padded
from jaxformer.data.text.corpus import CorpusOptions, load_or_tokenise, training_texts
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer


def load_or_build(split, spec, folder, special_tokens=(), options=None):
    texts = training_texts([split])
    tokenizer = load_or_train_tokenizer(folder, spec, texts, special_tokens)
    return load_or_tokenise(split, tokenizer, folder, options or CorpusOptions())


def write_rows(path, rows):
    """Writes objects in the format of the ending, JSON lines by default; returns the path as text.

    An .arrow file is a stream, unless its name has "file" in it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".arrow", ".parquet"):
        _write_arrow(path, rows)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_bytes(compressed(text.encode(), path.name))
    return str(path)


def _write_arrow(path, rows):
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=2)
        return
    make = pyarrow.ipc.new_file if "file" in path.name else pyarrow.ipc.new_stream
    with make(str(path), table.schema) as out:
        out.write_table(table, max_chunksize=2)


def compressed(content, name):
    """Bytes as the ending of a file's name says."""
    if name.endswith(".zst"):
        import pyarrow

        return pyarrow.compress(content, "zstd", asbytes=True)
    return gzip.compress(content) if name.endswith(".gz") else content


def write_texts(path, texts):
    """Writes documents as JSON lines; returns their source."""
    return JsonLines(write_rows(path, [{"text": text} for text in texts]))


class Numbers(ExampleSource):
    """Rows that hold the number of their source, and their own."""

    def __init__(self, source, count, key="row"):
        self.source, self.count, self.key = source, count, key

    def __len__(self):
        return self.count

    def read(self, index, rng):
        return {self.key: np.array([self.source, index])}

    def blank(self):
        return {self.key: np.array([-1, -1])}


def all_rows(dataset):
    """Every row of a side once, in one batch."""
    (batch,) = dataset.epoch(batch_size=dataset.num_rows)
    return batch


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
