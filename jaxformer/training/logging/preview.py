"""A short text from the model in training: enough to see what it has learned."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.config.train import TrainConfig
from jaxformer.data import Tokenizer
from jaxformer.distributed.sharding import on_mesh, row_multiple
from jaxformer.functional.placement import place
from jaxformer.generation.decode.filters import Temperature
from jaxformer.generation.decode.loop import (
    SamplingParams,
    generate_token,
    generate_tokens,
    init_state,
)
from jaxformer.generation.decode.processors import History
from jaxformer.models import Parameters
from jaxformer.nn.cache import CacheShape
from jaxformer.training.step import TrainProgram


class Preview:
    """What continues a prompt with the weights of the moment, compiled once for all of a run."""

    def __init__(
        self, program: TrainProgram, tokenizer: Tokenizer, settings: TrainConfig, window: int
    ):
        """Compiles nothing yet.

        Args:
            program: The training program, which knows the model, a decoder, and the mesh.
            tokenizer: Encodes and decodes text.
            settings: The prompt (empty: the start of a document), how many tokens to add, the
                temperature (0: the likeliest token each time) and the seed.
            window: T, the tokens the model looks at, at most; the prompt and the text must fit.
        """
        self._program, self._tokenizer = program, tokenizer
        self._end, temperature = tokenizer.end_of_text_id, settings.sample_temperature
        prompt = np.concatenate([[self._end], tokenizer.encode(settings.sample_prompt)])
        self._prompt = prompt[:window].astype(np.int32)
        self._room = min(settings.sample_tokens, window - len(self._prompt))
        processors = () if temperature in (0, 1) else (Temperature(temperature),)
        sampling = SamplingParams(processors, temperature > 0, (self._end,))
        self._continued = jax.jit(partial(self._continue, sampling, settings.seed))

    def text(self, params: Parameters) -> str:
        """The prompt and its continuation, up to the end of the text."""
        if not self._room:
            return self._tokenizer.decode(self._prompt[1:])
        with on_mesh(self._program.mesh):
            tokens, length = jax.device_get(self._continued(params))
        written = tokens[len(self._prompt) : length]
        text = np.concatenate([self._prompt, written[written != self._end]])
        return self._tokenizer.decode(text[1:])

    def _continue(
        self, sampling: SamplingParams, seed: int, params: Parameters
    ) -> tuple[jax.Array, jax.Array]:
        """The tokens of the text, int `[S]`, and how many there are; the same on every process."""
        model = self._program.abstract_model.module(params)
        model.decoder_transformer.stack.unstack()
        # Every replica writes the same text.
        rows, length = row_multiple(self._program.mesh), len(self._prompt)
        capacity = length + self._room
        lengths = jnp.full(rows, length)
        tokens = jnp.zeros((rows, capacity), jnp.int32).at[:, :length].set(self._prompt)
        key = jax.random.fold_in(jax.random.key(seed), 0)
        state = init_state(
            model,
            CacheShape(rows, capacity=capacity, chunk=length, storage=model.dtype.name),
            History(tokens, lengths, lengths, lengths + self._room),
            keys=jnp.stack([key] * rows),
            pending=length,
        )
        state = generate_token(model, sampling, state)
        history = generate_tokens(model, sampling, state, self._room - 1).history
        return jax.tree.map(
            lambda x: place(x, PartitionSpec()), (history.tokens[0], history.lengths[0])
        )
