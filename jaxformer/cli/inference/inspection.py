"""``jaxformer tokenize``, ``neighbours`` and ``fill-mask``: inspect a trained model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text

from jaxformer.cli.options import CheckpointChoice, ModelChoice, ModelDir
from jaxformer.data.files.lines import text_lines
from jaxformer.errors import ArgumentError
from jaxformer.io.console import console, plain_table
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.inspection.fill_mask import fill_mask as fill
from jaxformer.pretrained.inspection.neighbours import neighbours as nearest
from jaxformer.pretrained.inspection.tokens import Token, open_tokenizer

Words = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")]
Word = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORD")]


@dataclass(frozen=True)
class Tokenize:
    """Shows how a model's tokenizer splits a text.

    For each token: its piece as stored in the tokenizer, its id, its position in the text, and
    whether it is special. Does not read weights.
    """

    folder: ModelDir
    """The folder of a run or of a Hugging Face checkpoint, or a hub name, org/name or
    org/name@revision.
    """
    text: Words = None
    """The text."""
    file: Path | None = None
    """A file with one text per line."""
    json: bool = False
    """Print one JSON object per text."""


@dataclass(frozen=True)
class Neighbours(CheckpointChoice):
    """Shows the tokens whose input embeddings are most similar to that of a word, by cosine."""

    folder: ModelDir
    """The folder of a run or of a Hugging Face checkpoint, or a hub name, org/name or
    org/name@revision.
    """
    word: Word
    """A word that is a single token, or a piece as stored in the tokenizer."""
    k: int = 10
    """How many tokens to show."""
    json: bool = False
    """Print a JSON object."""


@dataclass(frozen=True)
class FillMask(ModelChoice):
    """Shows the most probable tokens at each mask of a text: "Paris is the [MASK] of France."."""

    folder: ModelDir
    """The folder of a run or of a Hugging Face checkpoint with a masked-language-model head, or a
    hub name, org/name or org/name@revision.
    """
    text: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")]
    """The text, with the model's mask token in place of each masked token."""
    k: int = 5
    """How many tokens to show for each mask."""
    json: bool = False
    """Print a JSON object."""


def tokenize(options: Tokenize) -> None:
    """Prints the tokens of a text, or of each line of a file."""
    if (options.text is None) == (options.file is None):
        raise ArgumentError('give either a text ("...") or --file with one text per line')
    tokenizer = open_tokenizer(options.folder)
    texts = [options.text]
    if options.file is not None:
        texts = (line.rstrip("\r\n") for line in text_lines(options.file))
    for text in texts:
        tokens = tokenizer.tokens(text)
        if options.json:
            rows = [token._asdict() for token in tokens]
            print(json.dumps({"text": text, "tokens": rows}, ensure_ascii=False))
        else:
            _print_tokens(text, tokens)


def neighbours(options: Neighbours) -> None:
    """Prints the neighbours of a word."""
    which = {"step": options.step, "best": options.best}
    token, found = nearest(options.folder, options.word, k=options.k, **which)
    if options.json:
        rows = [neighbour._asdict() for neighbour in found]
        print(json.dumps({"token": token._asdict(), "nearest": rows}, ensure_ascii=False))
        return
    print(f"nearest to {token.piece} (id {token.id}), by the cosine of the input embeddings")
    rows = [(f"{x.cosine:.4f}", str(x.id), Text(x.piece), Text(repr(x.text))) for x in found]
    console().print(plain_table("cosine >", "id >", "piece", "text", rows=rows))


def fill_mask(options: FillMask) -> None:
    """Prints predictions for the masks of a text."""
    pretrained = load(options.folder, **options.how)
    found = fill(pretrained, options.text, k=options.k)
    if options.json:
        rows = [[filled._asdict() for filled in mask] for mask in found]
        print(json.dumps({"text": options.text, "masks": rows}, ensure_ascii=False))
        return
    for number, mask in enumerate(found, start=1):
        if len(found) > 1:
            print(f"mask {number}")
        rows = [(f"{x.score:.4f}", str(x.token), Text(x.token_str), Text(x.sequence)) for x in mask]
        console().print(plain_table("score >", "id >", "token", "text", rows=rows))


def _print_tokens(text: str, tokens: Sequence[Token]) -> None:
    print(f"{len(tokens)} tokens: {text}")
    table = plain_table(">", "piece", "id >", "characters >", "text", "")
    for number, token in enumerate(tokens):
        place = "" if token.start is None else f"{token.start}-{token.end}"
        shown = "" if token.start is None else repr(text[token.start : token.end])
        special = "special" if token.special else ""
        table.add_row(str(number), Text(token.piece), str(token.id), place, Text(shown), special)
    console().print(table)
