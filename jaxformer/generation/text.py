"""Generation of text from texts or images, with a model and its tokenizer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jaxformer.generation.api import build_engine, check_together
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.loop import EncoderOutputs
from jaxformer.generation.engine import row_keys
from jaxformer.generation.inputs import Prompts, prepare_inputs, reads_images, tokenize
from jaxformer.generation.text_stream import TextStream
from jaxformer.generation.tokens import continuations, stream_sliding, stream_tokens
from jaxformer.hub.inputs import padded_prompts
from jaxformer.nn.cache import Storage
from jaxformer.pretrained.model import Pretrained

Prompt = Sequence[int] | str
"""The tokens of a prompt; or the file of an image, for a model that reads images."""


@dataclass(frozen=True)
class GenerationOutput:
    """A text that was generated for a prompt."""

    text: str
    num_tokens: int
    """The number of tokens, an end token included."""
    score: float
    """The sum of the model's log-probabilities of the tokens; for a beam, its score."""
    ended_by: str
    """"length", "end" (an end token), or the stop string."""


class TextGenerator:
    """A model with its tokenizer and the options of generation."""

    def __init__(
        self,
        pretrained: Pretrained,
        config: GenerationConfig,
        *,
        slide: bool = False,
        draft: Pretrained | None = None,
        proposals: int = 4,
        storage: Storage | None = None,
    ):
        """Reads the tokenizer; see `generate` for the options."""
        check_together(config, slide)
        self.encoder = pretrained.prompt_encoder
        self.engine = build_engine(pretrained, config, draft, proposals, storage)
        self.pretrained = pretrained
        self.config = config
        self.slide = slide
        self.reads_images = reads_images(pretrained)

    def tokenize(self, prompt: str) -> Prompt:
        """The tokens of a prompt, or of an encoder's input; an image stays a file."""
        return prompt if self.reads_images else tokenize(self.pretrained, prompt)

    def stream(self, ids: Prompt, tokens: list[int] | None = None) -> Iterator[str]:
        """Yields the continuation of one prompt, piece by piece, as soon as it can be shown."""
        prompts, encoder_outputs = self._prepare([ids])
        text = self._new_text()
        config = self.config.for_width(prompts.tokens.shape[1])
        arguments = self.engine, prompts, config, row_keys(config.seed, np.zeros(1, int))
        stream = stream_sliding if self.slide else stream_tokens
        for (part,) in stream(*arguments, encoder_outputs=encoder_outputs):
            if tokens is not None:
                tokens += part.tokens.tolist()
            if shown := text.push(part.tokens):
                yield shown
            if text.finished:
                return
        if shown := text.flush():
            yield shown

    def generate(self, prompts: Sequence[Prompt], first: int = 0) -> list[list[GenerationOutput]]:
        """Continues several prompts in one batch."""
        prompts, encoder_outputs = self._prepare(prompts)
        config = self.config.for_width(prompts.tokens.shape[1])
        count = config.num_return_sequences
        found = continuations(
            self.engine,
            prompts,
            config,
            self.encoder.tokenizer,
            first=first,
            slide=self.slide,
            encoder_outputs=encoder_outputs,
        )
        scores = found.scores
        if config.num_beams == 1:
            rows = zip(found.log_probs, found.lengths, strict=True)
            scores = [log_probs[:n].sum() for log_probs, n in rows]
        rows = zip(found.tokens, scores, found.lengths, strict=True)
        outputs = [self._output(tokens[:n], float(score)) for tokens, score, n in rows]
        return [outputs[n : n + count] for n in range(0, len(outputs), count)]

    def _output(self, tokens: np.ndarray, score: float) -> GenerationOutput:
        text = self._new_text()
        text.push(tokens)
        text.flush()
        has_end = len(tokens) and tokens[-1] in self.config.end_tokens
        ended_by = text.stopped_by or ("end" if has_end else "length")
        return GenerationOutput(text.text, len(tokens), score, ended_by)

    def _new_text(self) -> TextStream:
        return TextStream(self.encoder.tokenizer, self.config.stop_strings)

    def _prepare(self, prompts: Sequence[Prompt]) -> tuple[Prompts, EncoderOutputs]:
        inputs = prompts if self.reads_images else padded_prompts(prompts, 0, left=False)
        _, prompts, encoder_outputs = prepare_inputs(self.pretrained, inputs)
        return prompts, encoder_outputs
