"""Unlabelled text: documents are tokenised once, packed into rows and turned into examples."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxformer.data.base import Data, Datasets
from jaxformer.data.dataset import Dataset, ExampleSource
from jaxformer.data.mixing import ConcatenatedExamples
from jaxformer.data.objectives.base import CausalLM, Objective, RowObjective
from jaxformer.data.split import Split
from jaxformer.data.text.corpus import (
    CorpusOptions,
    load_corpus,
    load_or_tokenise,
    tokenised,
    training_texts,
)
from jaxformer.data.text.packing import Cut, Joined, Packing, Tokens
from jaxformer.data.text.sources import StandardLibrary, TextSource
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, TrainTokenizer, load_tokenizer
from jaxformer.errors import DataError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataConfig(Data):
    """Unlabelled text, and how it is made into batches."""

    source: TextSource = StandardLibrary()
    """The source of the documents."""

    tokenizer: TokenizerSpec = TrainTokenizer()
    """How text becomes tokens."""

    packing: Packing = Joined()
    """How documents are arranged in rows."""

    objective: Objective | None = CausalLM()
    """What the model sees of a row, and what it predicts; None: the objective of the checkpoint:
    next tokens, masked tokens or removed spans."""

    sequence_length: int | None = 256
    """The tokens of a row; None: as in the checkpoint, at most 2048."""

    validation: TextSource | None = None
    """The source of the documents for validation; None holds out a share of `source`."""

    corpus: CorpusOptions = CorpusOptions()
    """How the documents are tokenised to disk, and where the tokens are kept."""

    def __post_init__(self):
        super().__post_init__()
        if None not in (self.objective, self.sequence_length):
            self.objective.validate(self.packing, self.sequence_length)

    @property
    def head(self) -> str:
        return self.objective.head

    @property
    def longest_row(self) -> int:
        return self.objective.longest_row

    @property
    def lengths(self) -> dict[str, int]:
        return self.objective.lengths(self.sequence_length)

    @property
    def takes_lengths(self) -> bool:
        return isinstance(self.objective, RowObjective)

    def start_id(self, tokenizer):
        return self.objective.start_id(tokenizer)

    def prepare(self, folder: str | os.PathLike) -> Datasets:
        """Reads, tokenises and packs the corpus, or loads the results of an earlier start.

        Raises:
            ConfigError: The tokenizer lacks a special token that the objective needs.
            DataError: The corpus is missing, empty, unreadable or shorter than one row.
        """
        fraction = self.validation_fraction if self.validation is None else None
        splits = [Split(source, fraction, self.split_seed) for source in self.source.mixed()]
        texts = training_texts(splits)
        special_tokens = self.objective.special_tokens
        tokenizer = load_or_train_tokenizer(folder, self.tokenizer, texts, special_tokens)
        begin = self.objective.before_documents(tokenizer)
        corpora = [
            load_or_tokenise(split, tokenizer, home, self.corpus, begin)
            for split, home in zip(splits, self._corpus_folders(folder), strict=True)
        ]
        for corpus in corpora:
            self._check_length(corpus.train)
        train = self._batches([corpus.train for corpus in corpora], tokenizer)
        held_out = [corpus.validation for corpus in corpora]
        data = self._with_validation(train, held_out, tokenizer)
        learned = sum(corpus.train.num_documents for corpus in corpora)
        self._check_documents(learned, sum(side.num_documents for side in held_out))
        texts = [_describe(corpus.train) for corpus in corpora]
        summary = [("training", texts[0])]
        if len(texts) > 1:
            shares = (f"{weight:.3g} of the rows" for weight in train.examples.weights)
            pairs = zip(texts, shares, strict=True)
            summary = [(f"source {n}", ", ".join(pair)) for n, pair in enumerate(pairs)]
        return replace(data, summary=(*summary, *data.summary))

    def prepare_validation(self, folder: str | os.PathLike) -> Datasets:
        if self.validation is not None:
            return self._with_validation(None, None, load_tokenizer(Path(folder, "tokenizer")))
        corpora = [load_corpus(home, folder) for home in self._corpus_folders(folder)]
        if None in corpora:
            return self.prepare(folder)
        held_out = [corpus.validation for corpus in corpora]
        return self._with_validation(None, held_out, corpora[0].tokenizer)

    def _corpus_folders(self, folder: str | os.PathLike) -> list[Path]:
        """The folders with the tokens of each source."""
        if len(sources := self.source.mixed()) == 1:
            return [Path(folder)]
        return [Path(folder, f"source-{number}") for number in range(len(sources))]

    def _with_validation(
        self, train: Dataset | None, held_out: Sequence[Tokens], tokenizer: Tokenizer
    ) -> Datasets:
        """The data with the validation side: separate documents, or the ones held out."""
        own = self.validation
        counts_all = self.objective.predicts_every_token
        sides = held_out
        if own is not None:
            sides = [tokenised(own, tokenizer, self.objective.before_documents(tokenizer))]
        targets = sum(s.num_targets for s in sides)
        size = sum(s.num_bytes for s in sides)
        return Datasets(
            train,
            self.dataset(self._examples(sides, tokenizer), "validation"),
            tokenizer,
            targets / size if counts_all else None,
            summary=tuple(
                (f"validation {n}" if len(sides) > 1 else "validation", _describe(side))
                for n, side in enumerate(sides)
            ),
        )

    def _batches(self, sides: Sequence[Tokens], tokenizer: Tokenizer) -> Dataset:
        """The batches of training; shorter rows are parts of the longest rows."""
        shorter = {phase.parts: phase.data for phase in self.phases if phase.parts > 1}
        if not shorter:
            sources = [self._examples([side], tokenizer) for side in sides]
            return self.dataset(self.source.mix(sources), "train")
        # Every part needs room for special tokens, so the longest rows may hold a bit less text.
        room = {n: n * d.objective.raw_length(d.sequence_length) for n, d in shorter.items()}
        size = min(self.objective.raw_length(self.sequence_length), *room.values())
        rows = Cut(self.packing, size)
        sources = [self._examples([side], tokenizer, rows) for side in sides]
        cut = {n: data._examples(sides, tokenizer, rows.into(n)) for n, data in shorter.items()}
        return self.dataset(self.source.mix(sources), "train", cut)

    def _examples(
        self, sides: Sequence[Tokens], tokenizer: Tokenizer, packing: Packing | None = None
    ) -> ExampleSource:
        """The examples of several corpora, one after the other."""
        packing = packing or self.packing
        streams = [stream for side in sides for stream in side.shards if stream.num_documents]
        found, refused = [], None
        for stream in streams:
            try:
                found.append(
                    self.objective.examples(stream, packing, self.sequence_length, tokenizer)
                )
            except DataError as error:  # a shard may be too small for the objective
                refused = error
        if not found:
            raise refused
        return found[0] if len(found) == 1 else ConcatenatedExamples(found)

    def _check_documents(self, learned: int, held_out: int) -> None:
        """Warns if the validation loss depends on a single document."""
        if self.validation is not None or held_out != 1:
            return
        problem = "the validation loss says little about other text"
        if learned == 1:
            _log.warning(
                "validation is the tail of the only document, so %s: give more documents (such "
                "as the paragraphs of a file, --data.source Files --data.source.sample-by "
                "paragraph), or others for validation with data.validation",
                problem,
            )
        else:
            _log.warning(
                "validation is a single document of %d, so %s: raise data.validation_fraction = "
                "%s, or give documents for validation with data.validation",
                learned + 1,
                problem,
                self.validation_fraction,
            )

    def _check_length(self, train: Tokens) -> None:
        needed = self.objective.raw_length(self.sequence_length) + 1
        if train.num_targets + 1 < needed:
            raise DataError(
                f"the training documents are shorter than one sequence: "
                f"{train.num_targets + 1} tokens, but sequence_length={self.sequence_length} "
                f"needs {needed}; give more text or a shorter sequence_length"
            )


def _describe(tokens: Tokens) -> str:
    count = tokens.num_documents
    documents = f"{count:,} document{'' if count == 1 else 's'}"
    return f"{documents}, {tokens.num_targets:,} tokens"
