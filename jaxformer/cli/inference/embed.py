"""``jaxformer embed DIR TEXT ...``: embeddings of texts, and scores of text pairs."""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.progress import track
from rich.text import Text

from jaxformer.cli.options import Dtype, ModelChoice, ModelDir
from jaxformer.data.files.lines import text_lines
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.io.console import console, plain_table
from jaxformer.io.files import replacing
from jaxformer.io.paths import any_path
from jaxformer.io.tables import check_output, write_table
from jaxformer.models.heads.base import number
from jaxformer.pretrained.embedding.api import (
    CrossEncoder,
    TextEmbedder,
    cross_encoder,
    open_model,
    reads_pairs,
    text_embedder,
)
from jaxformer.pretrained.model import with_stored_compute_dtype

Texts = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT [TEXT ...]]")]
_ENDINGS = (".npy", ".jsonl")
_OF_VECTORS = ("prompt_name", "prompt", "normalize", "truncate_dim")
_SHOWN = 6
_MOST_COMPARED = 50


@dataclass(frozen=True)
class Embed(ModelChoice):
    """Embeds texts like sentence-transformers, or scores pairs of texts with a cross-encoder.

    Pooling, dense layers, normalization, maximum length and prompts are read from the folder's
    modules.json. Several texts are compared with each other. A cross-encoder scores the first text
    with each of the others.
    """

    folder: ModelDir
    """The folder of a Hugging Face or sentence-transformers checkpoint or of a run, or a hub name,
    org/name or org/name@revision.
    """
    texts: Texts = ()
    """The texts."""
    file: Path | None = None
    """A file with further texts, one per line."""
    prompt_name: str | None = None
    """The name of the folder's prompt to prepend to each text, such as query (None: its default).
    """
    prompt: str | None = None
    """A literal prompt to prepend to each text."""
    normalize: bool = False
    """Normalize vectors to length 1, even if the folder does not."""
    truncate_dim: int | None = None
    """Truncate vectors to this many dimensions (None: as configured in the folder)."""
    max_length: int | None = None
    """Maximum tokens per text; longer ones are truncated (None: as configured in the folder)."""
    batch_size: int = 32
    """Texts per batch."""
    output: Path | None = None
    """The output file (None: the screen): .npy for an array [texts, dimensions], .jsonl for an
    object per line.
    """
    json: bool = False
    """Print one JSON object per text."""
    dtype: Dtype | None = None
    """The dtype of the weights and the computation (None: the dtype that the weights are saved in).
    """


def embed(options: Embed) -> None:
    """Prints or writes vectors of texts, or the scores of pairs."""
    output = None if options.output is None else any_path(options.output, "--output")
    if output is not None:
        check_output(output, "--output", _ENDINGS)
    texts = list(options.texts)
    if options.file is not None:
        texts += (line.rstrip("\r\n") for line in text_lines(any_path(options.file, "--file")))
    if not texts:
        raise ArgumentError('give texts ("..." "..."), or --file with one text per line')
    model = with_stored_compute_dtype(
        open_model(options.folder, dtype=options.dtype, **options.how)
    )
    keywords = {"max_length": options.max_length, "batch_size": options.batch_size}
    if reads_pairs(model):
        _score(cross_encoder(model, **keywords), texts, options, output)
    else:
        _embed(text_embedder(model, **keywords), texts, options, output)


def _embed(embedder: TextEmbedder, texts: list[str], options: Embed, output: Any) -> None:
    keywords = {name: getattr(options, name) for name in _OF_VECTORS}
    parts = _shown(embedder.stream(texts, **keywords), len(texts), embedder.chunk)
    vectors = np.concatenate(list(parts))
    if output is not None:
        _write(output, vectors, _objects(texts, vectors))
        print(f"written to {output}: {_size(vectors)}")
    elif options.json:
        _print_json(_objects(texts, vectors))
    else:
        _print_vectors(embedder, texts, vectors)
    _report_truncated(embedder)


def _score(scorer: CrossEncoder, texts: list[str], options: Embed, output: Any) -> None:
    given = [name for name in _OF_VECTORS if getattr(options, name) != getattr(Embed, name)]
    if given:
        raise ConfigError(
            f"--{given[0].replace('_', '-')}: not supported for {options.folder}, a cross-encoder, "
            "which computes scores instead of vectors: leave it out"
        )
    first, *others = texts
    if not others:
        raise ArgumentError(
            f"give at least two texts: {options.folder} is a cross-encoder, which scores the first "
            "with each of the others"
        )
    pairs = [(first, other) for other in others]
    scores = np.concatenate(list(_shown(scorer.stream(pairs), len(pairs), scorer.chunk)))
    scored = zip(pairs, scores, strict=True)
    rows = ({"pair": pair, "score": _numbers(score)} for pair, score in scored)
    if output is not None:
        _write(output, scores, rows)
        print(f"written to {output}: {len(scores):,} scores")
    elif options.json:
        _print_json(rows)
    else:
        print(f"scores with: {first}")
        shown = (" ".join(f"{x:.4f}" for x in np.atleast_1d(score)) for score in scores)
        rows = zip(shown, map(Text, others), strict=True)
        console().print(plain_table("score >", "text", rows=rows))
    _report_truncated(scorer)


def _size(vectors: np.ndarray) -> str:
    return f"{len(vectors):,} vector{'s' * (len(vectors) != 1)} of {vectors.shape[1]} values"


def _print_vectors(embedder: TextEmbedder, texts: list[str], vectors: np.ndarray) -> None:
    print(_size(vectors))
    table = plain_table("# >", "length >", "values", "text")
    for place, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
        values = " ".join(f"{value:7.4f}" for value in vector[:_SHOWN])
        values += " ..." if len(vector) > _SHOWN else ""
        length = f"{np.linalg.norm(vector):.4f}"
        table.add_row(str(place), length, values, Text(text))
    console().print(table)
    if not 1 < len(texts) <= _MOST_COMPARED:
        return
    print(f"\nsimilarities ({embedder.recipe.similarity})")
    similarities = enumerate(embedder.similarities(vectors, vectors))
    rows = [(str(place), *(f"{value:.4f}" for value in row)) for place, row in similarities]
    console().print(plain_table(">", *(f"{place} >" for place in range(len(texts))), rows=rows))


def _shown(parts: Iterator[np.ndarray], total: int, size: int) -> Iterable[np.ndarray]:
    """Yields the batches, with a progress bar in a terminal if there are several."""
    count, screen = -(-total // size), Console(stderr=True)
    off = count == 1 or not sys.stderr.isatty()
    return track(parts, "embedding", total=count, console=screen, transient=True, disable=off)


def _objects(texts: list[str], vectors: np.ndarray) -> Iterator[dict[str, Any]]:
    rows = zip(texts, vectors, strict=True)
    return ({"text": text, "embedding": _numbers(vector)} for text, vector in rows)


def _numbers(values: np.ndarray) -> float | list[float]:
    return [number(value) for value in values] if values.ndim else number(values)


def _print_json(rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))


def _write(output: Any, array: np.ndarray, rows: Iterable[dict[str, Any]]) -> None:
    """Writes a file atomically."""
    if output.suffix.lower() == ".jsonl":
        write_table(output, lambda: iter(rows))
        return
    with replacing(output) as aside, aside.open("wb") as file:
        np.save(file, array)


def _report_truncated(reader: TextEmbedder | CrossEncoder) -> None:
    if reader.cut:
        length = reader.reader.max_length
        print(f"{reader.cut:,} longer than {length} tokens were truncated", file=sys.stderr)
