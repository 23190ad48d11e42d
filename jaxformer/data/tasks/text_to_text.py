"""Text-to-text data: translations, summaries, answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from jaxformer.checks import at_least, check_fields
from jaxformer.data.dataset import Batch, ExampleSource
from jaxformer.data.objectives.base import teacher_forced
from jaxformer.data.rows import TaskData
from jaxformer.data.tasks.sequences import RowEncoder, SpecialTokens
from jaxformer.data.tasks.text_metrics import BLEU, TextMetric
from jaxformer.data.tokenizers.specs import TokenizerSpec, TrainTokenizer
from jaxformer.errors import ConfigError, DataError


class TextPair(NamedTuple):
    """A source, and the text that the model should write for it."""

    texts: tuple[str, str]
    places: tuple[str, str]
    """The position of each ("file:line"), for messages."""
    references: tuple[str, ...] | None = None
    """All correct texts, if there are several; empty: there is nothing to write."""
    group: str | None = None
    """Pairs with the same group are held out together; None: pairs with the same source."""

    @property
    def where(self) -> str:
        """The position of the source, for messages."""
        return self.places[0]

    def checked(self, *names: str) -> "TextPair | None":
        """Returns the pair if it has both texts; None if it has neither."""
        empty = [not text.strip() for text in self.texts]
        if any(empty) and not all(empty):
            place, name = (pair[empty.index(True)] for pair in (self.places, names))
            raise DataError(f"{place}: no text: {name} is empty; give one")
        return None if all(empty) else self


@dataclass(frozen=True)
class TextToText(TaskData[TextPair]):
    """Pairs of texts; the model writes the second; there is a subclass for each kind of file.

    A row of a batch has "inputs" int32 [S], the source and end-of-text; "decoder_inputs" int32 [T],
    the start token and the target; "targets" int32 [T], the target and end-of-text; "weights"
    float32 [T]; "segments" [S] and "decoder_segments" [T], 1 for tokens and 0 for padding.
    """

    tokenizer: TokenizerSpec = field(default=TrainTokenizer(), kw_only=True)
    """How text becomes tokens, on both sides."""

    start: Literal["pad", "end_of_text", "first"] = field(default="pad", kw_only=True)
    """The decoder's first input: the padding token (T5, Marian), end-of-text (BART), or the "first"
    that the tokenizer puts before a text (bert2bert: [CLS])."""

    special_tokens: Literal["end_of_text", "tokenizer"] = field(default="end_of_text", kw_only=True)
    """The special tokens around a text: "end_of_text" alone after it, or those that the "tokenizer"
    itself adds (BART: <s> text </s>).
    """

    source_length: int = field(default=64, kw_only=True)
    """The maximum number of tokens of a source, with special tokens."""

    target_length: int = field(default=64, kw_only=True)
    """The maximum number of tokens of a target, with special tokens."""

    truncate: bool = field(default=False, kw_only=True)
    """Whether to cut longer texts; otherwise they are an error."""

    metric: TextMetric = field(default=BLEU(), kw_only=True)
    """The metric of the model's texts for the validation sources: BLEU, ROUGE or AnswerMatch."""

    product: ClassVar[tuple[str, str]] = ("translation", "translations")
    """What the model writes, in the singular and the plural."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(self, "data", source_length=at_least(2), target_length=at_least(2))

    @property
    def lengths(self) -> dict[str, int]:
        return {"inputs": self.source_length, "decoder_inputs": self.target_length}

    def side_of(self, row: TextPair) -> str:
        return row.texts[0] if row.group is None else row.group

    def texts(self, row: TextPair) -> tuple[str, str]:
        return row.texts

    def start_id(self, tokenizer):
        if self.start == "first":
            frame = tokenizer.frame(1)
            if frame is None or not frame.gaps[0]:
                raise ConfigError(
                    "data.start = 'first': must be 'pad' or 'end_of_text': the tokenizer puts no "
                    "token before a text"
                )
            return frame.gaps[0][0]
        return tokenizer.pad_id if self.start == "pad" else tokenizer.end_of_text_id

    def examples(self, rows, tokenizer, labels=()) -> "TextToTextExamples":
        special = SpecialTokens.around_text(tokenizer, own=self.special_tokens == "tokenizer")
        sides = []
        for side, name in enumerate(("source_length", "target_length")):
            options = {"field": f"data.{name}", "truncate": self.truncate}
            encoder = RowEncoder(tokenizer, special, getattr(self, name), **options)
            texts = [(pair.texts[side],) for pair in rows]
            encoded = encoder.encode(texts, [pair.places[side] for pair in rows])
            sides.append([text.ids for text in encoded])
        start = self.start_id(tokenizer)
        return TextToTextExamples(self, rows, *sides, start, tokenizer.pad_id)


class WritingExamples(ExampleSource):
    """Examples for which a model writes texts.

    Attributes:
        pairs: The source, or its name, and the target of each.
        references: All correct texts for each.
        config: The configuration of the data, with `product` and `metric`.
        given: The number of decoder inputs of a row that the model reads; it writes the others.
    """

    pairs: Sequence[tuple[str, str]]
    references: Sequence[tuple[str, ...]]
    config: Any
    given: int = 1


class TextToTextExamples(WritingExamples):
    """Tokenised pairs of texts."""

    def __init__(
        self,
        config: TextToText,
        pairs: Sequence[TextPair],
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        start: int,
        pad: int,
    ):
        self.config = config
        self.pairs = [pair.texts for pair in pairs]
        self.references = [
            (pair.texts[1],) if pair.references is None else pair.references for pair in pairs
        ]
        self._sources, self._targets = sources, targets
        self._start, self._pad = start, pad

    def __len__(self) -> int:
        return len(self.pairs)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        sides = self._sources[index], self._targets[index]
        return teacher_forced(*sides, self.config.lengths, self._pad, self._start)
