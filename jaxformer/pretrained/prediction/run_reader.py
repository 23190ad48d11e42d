"""Reads texts as in the training data of a run."""

from dataclasses import replace

import numpy as np

from jaxformer.data import Data
from jaxformer.data.tasks.sequences import (
    EncodedText,
    RowEncoder,
    SequenceData,
    SpecialTokens,
    with_decoder,
)
from jaxformer.data.tasks.span_text import Question, SpanText
from jaxformer.data.tokenizers.specs import Tokenizer
from jaxformer.models.model import ModelConfig
from jaxformer.pretrained.prediction.reader import TextReader, Window, Words, joined_spans


class RunReader(TextReader):
    """Reads texts exactly as in the training data of a run."""

    def __init__(
        self,
        data: Data,
        tokenizer: Tokenizer,
        config: ModelConfig,
        head: str | None = None,
        max_length: int | None = None,
    ):
        """Prepares the encoder."""
        self._data = data
        self._tokenizer = tokenizer
        self._config = config
        self.head = head
        self.max_length = max_length or data.lengths["inputs"]
        special = SpecialTokens.of(tokenizer, getattr(data, "special_tokens", "bert"))
        self._encoder = RowEncoder(tokenizer, special, self.max_length)

    def encode(self, rows):
        return self._encoder.encode(rows)

    def encode_words(self, rows):
        # In training, each word except the first followed a space.
        given = [[" " * bool(n) + word for n, word in enumerate(words)] for words in rows]
        found = self._encoder.encode_words(given)
        return [Words(*each, joined_spans(words)) for each, words in zip(found, rows, strict=True)]

    def split_words(self, texts):
        found = []
        for text, words in zip(texts, self.encode_words([t.split() for t in texts]), strict=True):
            spans, end = [], 0
            for word in text.split():
                start = text.index(word, end)
                end = start + len(word)
                spans.append((start, end))
            found.append(words._replace(spans=spans))
        return found

    def windows(self, where, question, context):
        data = self._data if isinstance(self._data, SpanText) else SpanText()
        item = Question(where, question, context, (), None)
        examples = replace(data, truncate=True).examples([item], self._tokenizer)
        cut = len(self._tokenizer.encode(question)) > data.question_length
        return [_window(window, cut) for window in examples.windows]

    def arrays(self, rows, length):
        arrays = {
            "inputs": self.stacked([row.ids for row in rows], length, self._tokenizer.pad_id),
            "segments": self.stacked([np.ones_like(row.ids) for row in rows], length, 0),
            "token_types": self.stacked([row.types for row in rows], length, 0),
        }
        reads_row = isinstance(self._data, SequenceData)  # the decoder, if there is one
        start = self._data.start_id(self._tokenizer) if reads_row else None
        return with_decoder(arrays, start)

    def states(self, model, arrays):
        valid = arrays["segments"] > 0
        if self._config.is_encoder_decoder:
            return model.encode(arrays["inputs"], segments=arrays["segments"]), valid
        return model.outputs(arrays).hidden, valid


def _window(window, cut: bool) -> Window:
    text: EncodedText = window.text
    characters = np.full((len(text.ids), 2), -1, np.int32)
    characters[window.offset : window.offset + len(window.characters)] = window.characters
    return Window(text._replace(cut=cut), characters)
