"""The compiled programs of a model that generates."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.distributed.sharding import on_mesh
from jaxformer.errors import ConfigError
from jaxformer.functional.placement import platform
from jaxformer.generation.decode.advance import Generative, extended
from jaxformer.generation.decode.beam import BeamSearch, Hypotheses, beam_search
from jaxformer.generation.decode.loop import Method, add_token, generate_tokens
from jaxformer.generation.decode.processors import History
from jaxformer.generation.decode.state import Sources, State, started
from jaxformer.generation.memory import num_bytes
from jaxformer.models import AbstractModel, EncoderDecoderConfig, Parameters
from jaxformer.models.cache import Cache
from jaxformer.models.model import ModelConfig
from jaxformer.nn.cache import CacheShape
from jaxformer.nn.transpose import transpose_kernels


def check_generates(config: ModelConfig) -> None:
    """Raises ConfigError unless a model predicts the next token."""
    if not config.predicts_next_token:
        raise ConfigError(
            "generate: the model has no head that predicts the next token; a decoder or an "
            "encoder-decoder with a language model's head has one"
        )


class Programs:
    """What is compiled for one model, to be run with any weights of it.

    `parameters` are always those that `arrange` returns, and the programs run `on_mesh`.
    """

    def __init__(
        self,
        config: ModelConfig,
        abstract_model: AbstractModel,
        mesh: jax.sharding.Mesh | None = None,
    ):
        """Compiles nothing yet.

        Args:
            config: Of the model.
            abstract_model: Its structure.
            mesh: Over which its weights lie; None: one device.

        Raises:
            ConfigError: The model does not predict the next token.
        """
        check_generates(config)
        self.config, self.mesh = config, mesh
        self._template = AbstractModel(lambda key: self._arranged(config.build(key)))
        self._arrange = jax.jit(
            lambda given: self._template.parameters(self._arranged(abstract_model.module(given)))
        )
        self.start = jax.jit(self._started, static_argnums=(0, 1))
        self.read = jax.jit(self._read, static_argnums=0, donate_argnums=2)
        self.first = jax.jit(self._with_first, static_argnums=0, donate_argnums=2)
        self.generate = jax.jit(self._generated, static_argnums=0, donate_argnums=2)
        self.search = jax.jit(self._searched)

    @property
    def max_length(self) -> int | None:
        """The most tokens of a row, prompt included; None: there is no limit."""
        encodes = isinstance(self.config, EncoderDecoderConfig)
        position = self.config.decoder_position if encodes else self.config.position
        return position.max_length

    def on_mesh(self) -> AbstractContextManager:
        """Where the programs run."""
        return on_mesh(self.mesh)

    def arrange(self, parameters: Parameters) -> Parameters:
        """The model's parameters as the programs read them; the given ones can be let go."""
        with self.on_mesh():
            return self._arrange(parameters)

    def module(self, parameters: Parameters) -> Generative:
        """The model, inside a compiled program that is given its `parameters`."""
        return self._template.module(parameters)

    def changes_at(self, lengths: np.ndarray) -> np.ndarray | None:
        """Whether a row of so many tokens is read in another way than one with one token less.

        Args:
            lengths: int, of any shape.

        Returns:
            bool of that shape; None: never. See `Transformer.changes_at`.
        """
        changes = self.module(self._template.shapes).reader.changes_at(lengths)
        return None if changes is None else np.asarray(changes)

    def num_bytes(
        self,
        shape: CacheShape,
        scores: tuple[int, int, int] | None,
        parameters: Parameters,
        sources: Sources,
        num_beams: int,
    ) -> int:
        """The memory that the rows of a cache need, besides the weights; allocates nothing.

        Args:
            shape: Of the cache.
            scores: The shape `[N, B, V]` of the logits that are to be kept; None: none are.
            parameters: The weights.
            sources: What the decoder reads besides; arrays with a leading axis of B, or their
                shapes.
            num_beams: The texts of each row.
        """
        rows = shape.batch_size

        def array(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype)

        history = History(array(rows, shape.capacity), *[array(rows)] * 3)
        keys = array(rows, dtype=jax.random.key(0).dtype)
        state = self.start.eval_shape(shape, scores, parameters, history, keys, sources)
        cache = state.cache
        if num_beams > 1:
            cache = jax.eval_shape(Cache.picked, cache, array(rows, num_beams))
        logits = array(rows, num_beams, self.config.vocab_size, dtype=jnp.float32)
        kept = num_bytes((cache, state.log_probs, state.scores, logits))
        return kept + num_beams * num_bytes(history)

    def _arranged(self, model: Generative) -> Generative:
        """A model with its weights as they are read fastest for a few tokens."""
        model.reader.stack.set_apart()
        # XLA's CPU backend reads kernels up to three times as fast with the contracted axis last.
        if self.mesh is None and platform() == "cpu":
            transpose_kernels(model)
        return model

    def _started(
        self,
        shape: CacheShape,
        scores: tuple[int, int, int] | None,
        parameters: Parameters,
        history: History,
        keys: jax.Array,
        sources: Sources,
    ) -> State:
        """Where rows stand before the model has read anything of them."""
        longest = history.tokens.shape[1]
        options = {"keys": keys, "longest": longest, "sources": sources, "scores": scores}
        return started(self.module(parameters), shape, history, **options)

    def _read(
        self, size: int, parameters: Parameters, cache: Cache, history: History, start: jax.Array
    ) -> Cache:
        """The cache after `size` tokens from `start` on; the last of a prompt is left out."""
        tokens = jax.lax.dynamic_slice_in_dim(history.tokens, start, size, axis=1)
        count = jnp.clip(history.lengths - 1 - start, 0, size)
        return extended(self.module(parameters), tokens, count, cache, history.lengths)[1]

    def _with_first(
        self, method: Method, parameters: Parameters, cache: Cache, state: State
    ) -> State:
        """The state after the first token, for which the rest of the prompts is read."""
        return add_token(self.module(parameters), method, replace(state, cache=cache))

    def _generated(
        self, method: Method, parameters: Parameters, cache: Cache, state: State, steps: jax.Array
    ) -> State:
        """The state after up to `steps` tokens more; the cache is given apart, and used up."""
        state = replace(state, cache=cache)
        return generate_tokens(self.module(parameters), method, state, steps)

    def _searched(
        self, search: BeamSearch, parameters: Parameters, history: History, cache: Cache
    ) -> Hypotheses:
        """The texts that are found."""
        return beam_search(self.module(parameters), search, history, cache)
