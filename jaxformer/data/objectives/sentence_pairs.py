"""Sentence pairs: next-sentence prediction (BERT) and sentence order (ALBERT)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from jaxformer.checks import check_types
from jaxformer.data.dataset import Batch, ExampleSource, padded
from jaxformer.data.objectives.base import Objective
from jaxformer.data.objectives.masking import MaskedLM
from jaxformer.data.text.packing import TokenStream
from jaxformer.data.tokenizers.special_tokens import Role
from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.errors import DataError
from jaxformer.io.scratch import spilled


@dataclass(frozen=True)
class SentencePairs(Objective):
    """Predict how two pieces of text are related, and their masked tokens.

        inputs      = [CLS] a [SEP] b [SEP], some tokens masked
        token_types =   0   0   0   1   1

    A part of a document is cut in two at a random place. For "next_sentence" b is the second
    half (label 0) or, half of the time, as many tokens of another document (label 1); for
    "sentence_order" the halves are in order (0) or swapped (1).

    A batch has "<label>" int32 [B], "<label>_weights" float32 [B] and the arrays of masked language
    modelling. Documents are cut into stretches of `sequence_length` - 3 tokens and a rest, each a
    separate row.

    References:
        Devlin et al. 2018, section 3.1, https://arxiv.org/abs/1810.04805 (next sentence);
        Lan et al. 2019, section 3.1, https://arxiv.org/abs/1909.11942 (sentence order)
    """

    special_tokens: ClassVar[tuple[Role, ...]] = MaskedLM.special_tokens
    least_length: ClassVar[int] = 5
    takes_segments: ClassVar[bool] = False

    label: Literal["next_sentence", "sentence_order"] = "next_sentence"
    """The task: what is predicted about the pair."""

    masking: MaskedLM = MaskedLM()
    """How tokens are masked."""

    @property
    def head(self) -> str:
        return self.label

    def __post_init__(self):
        check_types(self)

    def raw_length(self, sequence_length):
        return sequence_length - 3

    def examples(self, stream, packing, sequence_length, tokenizer):
        return PairExamples(self, stream, sequence_length, tokenizer)


class PairExamples(ExampleSource):
    """Pairs made of parts of documents, which are cut into stretches `starts` to `ends`."""

    def __init__(
        self, objective: SentencePairs, stream: TokenStream, length: int, tokenizer: Tokenizer
    ):
        self.stream = stream
        self._objective = objective
        self._length = length
        self._mask = objective.masking.masker(tokenizer)
        self._cls, self._sep = (int(tokenizer.special_ids(role)[0]) for role in ("cls", "sep"))
        self._pad_id = tokenizer.pad_id
        size = objective.raw_length(length)
        # The end-of-text token before a document does not belong to it.
        sizes = np.diff(stream.offsets) - 1
        counts = -(-sizes // size)
        document = np.repeat(np.arange(len(sizes)), counts)
        number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = stream.offsets[document] + 1 + number * size
        ends = np.minimum(starts + size, stream.offsets[document + 1])
        pairs = ends - starts >= 2
        self.starts = spilled(starts[pairs])
        self.ends = spilled(ends[pairs])
        document = document[pairs]
        # Rows of a document are adjacent: those of row i's document are first[i] to last[i].
        self._first = spilled(np.searchsorted(document, document))
        self._last = spilled(np.searchsorted(document, document, side="right"))
        documents = len(np.unique(document))
        if documents < (2 if objective.label == "next_sentence" else 1):
            raise DataError(
                f"{objective.label} needs two documents of at least two tokens on either side of "
                f"the validation split, and {documents} of {len(sizes)} have them: give more"
            )

    def __len__(self) -> int:
        return len(self.starts)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        start, end = self.starts[index], self.ends[index]
        cut = int(rng.integers(start + 1, end))
        first = self.stream.tokens[start:cut]
        second = self.stream.tokens[cut:end]
        label = int(rng.random() < 0.5)
        if label and self._objective.label == "sentence_order":
            first, second = second, first
        elif label:
            second = self._of_another_document(index, len(second), rng)
        return self._example(first, second, label, rng)

    def blank(self) -> Batch:
        nothing = np.zeros(0, np.int32)
        example = self._example(nothing, nothing, 0, np.random.default_rng(0))
        size = self._length
        return {key: np.zeros_like(value) for key, value in example.items()} | {
            "inputs": padded(nothing, size, self._pad_id),
            "targets": padded(nothing, size, self._pad_id),
        }

    def _of_another_document(self, index: int, size: int, rng: np.random.Generator) -> np.ndarray:
        """A piece of `size` tokens of another document, or fewer if its row is shorter."""
        own_first = self._first[index]
        own_last = self._last[index]
        other = int(rng.integers(len(self) - (own_last - own_first)))
        other += own_last - own_first if other >= own_first else 0
        room = max(0, self.ends[other] - self.starts[other] - size)
        start = self.starts[other] + int(rng.integers(room + 1))
        return self.stream.tokens[start : min(start + size, self.ends[other])]

    def _example(self, first, second, label: int, rng: np.random.Generator) -> Batch:
        tokens = np.array([self._cls, *first, self._sep, *second, self._sep], np.int32)
        size, name = self._length, self._objective.label
        targets = padded(tokens, size, self._pad_id)
        segments = padded(np.ones_like(tokens), size, 0)
        types = (np.arange(size) >= len(first) + 2) & (segments > 0)
        inputs, weights = self._mask(targets, segments, rng)
        return {
            "inputs": inputs,
            "segments": segments,
            "token_types": types.astype(np.int32),
            "targets": targets,
            "weights": weights,
            name: np.asarray(label, np.int32),
            f"{name}_weights": np.asarray(1, np.float32),
        }
