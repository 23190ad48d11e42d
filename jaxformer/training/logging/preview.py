"""A short text from the model in training: enough to see what it has learned."""

import numpy as np

from jaxformer.config.train import TrainConfig
from jaxformer.data import Tokenizer
from jaxformer.distributed.sharding import row_multiple
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.engine import Engine, row_keys
from jaxformer.generation.inputs import Prompts
from jaxformer.generation.tokens import new_tokens
from jaxformer.models import Parameters
from jaxformer.training.step import TrainProgram


class Preview:
    """What continues a prompt with the weights of the moment, compiled once for all of a run."""

    def __init__(
        self, program: TrainProgram, tokenizer: Tokenizer, settings: TrainConfig, window: int
    ):
        """Compiles nothing yet."""
        self.engine = Engine(program.model, program.abstract_model, mesh=program.mesh)
        self.tokenizer, self.settings, self.window = tokenizer, settings, window

    def text(self, params: Parameters) -> str:
        """The prompt and its continuation, up to the end of the text."""
        settings, tokenizer = self.settings, self.tokenizer
        end = tokenizer.end_of_text_id
        start = np.concatenate([[end], tokenizer.encode(settings.sample_prompt)])[: self.window]
        if not (room := min(settings.sample_tokens, self.window - len(start))):
            return tokenizer.decode(start[1:])
        # Every replica writes the same text.
        rows = row_multiple(self.engine.mesh)
        options = {
            "max_new_tokens": room,
            "eos_token_id": end,
            "temperature": settings.sample_temperature,
        }
        found = new_tokens(
            self.engine.with_parameters(params),
            Prompts.of_rows([start] * rows),
            GenerationConfig.of({}, options),
            row_keys(settings.seed, np.zeros(rows, int)),
        )
        written = found.tokens[0, : found.lengths[0]]
        return tokenizer.decode(np.concatenate([start, written[written != end]])[1:])
