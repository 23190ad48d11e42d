"""Unlabelled text: documents are tokenised once, packed into rows and made into examples."""

import os
from dataclasses import dataclass
from pathlib import Path

from jaxformer.data.base import Data, Datasets
from jaxformer.data.dataset import Dataset, ExampleSource
from jaxformer.data.objectives.base import CausalLM, Objective
from jaxformer.data.split import Split
from jaxformer.data.text.corpus import load_corpus, load_or_build, tokenised
from jaxformer.data.text.packing import Joined, Packing, TokenStream
from jaxformer.data.text.sources import StandardLibrary, TextSource
from jaxformer.data.tokenizers.specs import Tokenizer, TokenizerSpec, TrainTokenizer, load_tokenizer
from jaxformer.errors import DataError


@dataclass(frozen=True)
class DataConfig(Data):
    """Unlabelled text, and how it becomes batches."""

    source: TextSource = StandardLibrary()
    """Where the documents come from."""

    tokenizer: TokenizerSpec = TrainTokenizer()
    """How text becomes tokens."""

    packing: Packing = Joined()
    """How documents become rows."""

    objective: Objective = CausalLM()
    """What the model sees of a row, and what it predicts."""

    sequence_length: int | None = 256
    """Tokens of a row; None: as many as the checkpoint takes, 2048 at most."""

    validation: TextSource | None = None
    """Where the documents for validation come from; None holds out a share of `source`."""

    longest_row = 2048

    def __post_init__(self):
        super().__post_init__()
        if self.sequence_length is not None:
            self.objective.validate(self.packing, self.sequence_length)

    @property
    def head(self) -> str:
        return self.objective.head

    @property
    def lengths(self) -> dict[str, int]:
        return self.objective.lengths(self.sequence_length)

    def start_id(self, tokenizer):
        return self.objective.start_id(tokenizer)

    def prepare(self, folder: str | os.PathLike) -> Datasets:
        """Reads, tokenises and packs the corpus, or loads what an earlier start saved.

        Args:
            folder: The run's folder, in which the tokenizer and the tokens are saved.

        Returns:
            Both sides of the corpus, with the tokenizer.

        Raises:
            ConfigError: The tokenizer lacks a special token that the objective needs.
            DataError: The corpus is missing, empty, unreadable or shorter than one row.
        """
        fraction = self.validation_fraction if self.validation is None else None
        split = Split(self.source, fraction, self.split_seed)
        special_tokens = self.objective.special_tokens
        corpus = load_or_build(split, self.tokenizer, folder, special_tokens)
        needed = self.objective.raw_length(self.sequence_length) + 1
        if len(corpus.train.tokens) < needed:
            raise DataError(
                f"the training documents are shorter than one sequence: "
                f"{len(corpus.train.tokens)} tokens, but sequence_length={self.sequence_length} "
                f"needs {needed}; give more text or a shorter sequence_length"
            )
        train = self.dataset(self._examples(corpus.train, corpus.tokenizer), "train")
        return self._beside(train, corpus.validation, corpus.tokenizer)

    def prepare_validation(self, folder: str | os.PathLike) -> Datasets:
        """Reads the documents for validation, or loads their tokens from the run's folder.

        Args:
            folder: The run's folder.

        Returns:
            The validation side, with the tokenizer.

        Raises:
            DataError: The documents are needed, and missing or unreadable.
        """
        if self.validation is not None:
            return self._beside(None, None, load_tokenizer(Path(folder, "tokenizer")))
        corpus = load_corpus(folder)
        if corpus is None:
            return self.prepare(folder)
        return self._beside(None, corpus.validation, corpus.tokenizer)

    def _beside(
        self, train: Dataset | None, held_out: TokenStream | None, tokenizer: Tokenizer
    ) -> Datasets:
        """The data with the validation side: documents of its own, or those held out."""
        own, counts_all = self.validation, self.objective.predicts_every_token
        stream = held_out if own is None else tokenised(own, tokenizer)
        return Datasets(
            train,
            self.dataset(self._examples(stream, tokenizer), "validation"),
            tokenizer,
            stream.num_targets / stream.num_bytes if counts_all else None,
        )

    def _examples(self, stream: TokenStream, tokenizer: Tokenizer) -> ExampleSource:
        return self.objective.examples(stream, self.packing, self.sequence_length, tokenizer)
