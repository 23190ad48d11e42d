"""Short text samples from the model during training."""

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
    """Continues a prompt with the current parameters; compiled once per run."""

    def __init__(
        self, program: TrainProgram, tokenizer: Tokenizer, settings: TrainConfig, window: int
    ):
        """Stores the settings; compilation happens on first use."""
        self.engine = Engine(program.model, program.abstract_model, mesh=program.mesh)
        self.tokenizer = tokenizer
        self.settings = settings
        self.window = window

    def text(self, params: Parameters) -> str:
        """Returns the prompt and its continuation, up to the end of the text."""
        settings, tokenizer = self.settings, self.tokenizer
        end = tokenizer.end_of_text_id
        start = np.concatenate([[end], tokenizer.encode(settings.sample_prompt)])[: self.window]
        if not (room := min(settings.sample_tokens, self.window - len(start))):
            return tokenizer.decode(start[1:])
        # Every replica generates the same text.
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
