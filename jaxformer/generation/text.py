"""Text that a model adds to text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.generation.api import asked, generator_of, ids_of_text
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.state import EncoderOutputs
from jaxformer.generation.engine import row_keys
from jaxformer.generation.inputs import padded
from jaxformer.generation.prompts import Batch, batch_of, copies
from jaxformer.generation.streaming.text_stream import TextStream
from jaxformer.generation.streaming.token_stream import (
    READ_EVERY,
    Part,
    sliding_stream,
    token_stream,
)
from jaxformer.nn.cache import Storage
from jaxformer.pretrained.model import Pretrained, check_pretrained


@dataclass(frozen=True)
class GenerationOutput:
    """What was added to one prompt."""

    text: str
    num_tokens: int
    """How many were made, an end token included."""
    score: float
    """Their summed log-probability in the model's own distribution; of a beam its score."""
    ended_by: str
    """"length", "end" (an end token), or the stop string."""


class TextGenerator:
    """A model, its tokenizer, and how tokens are chosen."""

    def __init__(
        self,
        pretrained: Pretrained,
        decoding: GenerationConfig,
        *,
        slide: bool = False,
        draft: Pretrained | None = None,
        proposals: int = 4,
        storage: Storage | None = None,
    ):
        """Reads the tokenizer; the options are those of `generate`.

        Raises:
            DataError: The model has none.
            ConfigError: The options do not go together.
        """
        check_pretrained("pretrained", pretrained)
        if slide and (decoding.num_beams > 1 or decoding.stop_strings):
            raise ConfigError("slide = True: not with beams or stop strings")
        if decoding.stop_strings and decoding.num_beams > 1:
            raise ConfigError(
                f"stop_strings = {decoding.stop_strings}: not with num_beams = "
                f"{decoding.num_beams}, whose text is known at the end alone"
            )
        self.encoder = pretrained.prompt_encoder
        self.generator = generator_of(pretrained, decoding, draft, proposals, storage)
        self.pretrained, self.decoding, self.slide = pretrained, decoding, slide

    def ids(self, prompt: str) -> list[int]:
        """The tokens of a prompt, or of what an encoder reads."""
        return ids_of_text(self.pretrained, prompt)

    def stream(self, ids: Sequence[int]) -> Iterator[str]:
        """Yields what follows the tokens of one prompt, as soon as it may be shown.

        Raises:
            DataError: There are none.
            ConfigError: The model has too few positions.
        """
        batch, sources = self._read([ids])
        text = self._text()
        for (part,) in self._parts(batch, sources, np.zeros(1, int), 1, [text]):
            if shown := text.push(part.tokens):
                yield shown
            if text.finished:
                return
        if shown := text.flush():
            yield shown

    def write(
        self, prompts: Sequence[Sequence[int]], first: int = 0
    ) -> list[list[GenerationOutput]]:
        """Continues prompts together.

        Args:
            prompts: The tokens of each.
            first: The number of the first of them, which with the seed decides the random draws.

        Returns:
            `num_return_sequences` texts for each.

        Raises:
            DataError: A prompt is empty.
            ConfigError: The model has too few positions.
        """
        batch, sources = self._read(prompts)
        count = self.decoding.num_return_sequences
        if self.decoding.num_beams > 1:
            rows = self._best(batch, sources)
        else:
            batch, sources = copies((batch, sources), count)
            rows = self._chosen(batch, sources, count * first + np.arange(len(batch.lengths)))
        return [rows[n : n + count] for n in range(0, len(rows), count)]

    def _best(self, batch: Batch, sources: EncoderOutputs) -> list[GenerationOutput]:
        """By beam search."""
        found = self.generator.beams(batch, self.decoding, sources=sources)
        rows = []
        for tokens, length, score in zip(found.tokens, found.lengths, found.scores, strict=True):
            text = self._text()
            text.push(tokens[:length])
            rows.append(self._written(text, tokens[:length], float(score)))
        return rows

    def _chosen(
        self, batch: Batch, sources: EncoderOutputs, numbers: np.ndarray
    ) -> list[GenerationOutput]:
        """Token by token; `numbers` are those of the rows."""
        texts = [self._text() for _ in numbers]
        made: list[list[Part]] = [[] for _ in numbers]
        for parts in self._parts(batch, sources, numbers, READ_EVERY, texts):
            for text, row, part in zip(texts, made, parts, strict=True):
                text.push(part.tokens)
                row.append(part)
        rows = []
        for text, row in zip(texts, made, strict=True):
            tokens, log_probs = map(np.concatenate, zip(*row, strict=True))
            rows.append(self._written(text, tokens, float(log_probs.sum())))
        return rows

    def _written(self, text: TextStream, tokens: np.ndarray, score: float) -> GenerationOutput:
        text.flush()
        said_so = len(tokens) and tokens[-1] in self.decoding.end_tokens
        ended_by = text.stopped_by or ("end" if said_so else "length")
        return GenerationOutput(text.text, len(tokens), score, ended_by)

    def _text(self) -> TextStream:
        return TextStream(self.encoder.tokenizer, self.decoding.stop_strings)

    def _read(self, prompts: Sequence[Sequence[int]]) -> tuple[Batch, EncoderOutputs]:
        """What the decoder continues, and what it reads besides."""
        config = self.pretrained.config
        start, mask, sources = asked(self.pretrained, padded(prompts, 0, left=False))
        return batch_of(start, mask, config.vocab_size), sources

    def _parts(
        self,
        batch: Batch,
        sources: EncoderOutputs,
        numbers: np.ndarray,
        every: int,
        texts: Sequence[TextStream],
    ) -> Iterator[list[Part]]:
        generator, keys = self.generator, row_keys(self.decoding.seed, numbers)
        options = {"sources": sources, "every": every}
        if self.slide:
            return sliding_stream(generator, batch, self.decoding, keys, **options)
        options["stopped"] = lambda: np.array([text.finished for text in texts])
        return token_stream(generator, batch, self.decoding, keys, **options)
