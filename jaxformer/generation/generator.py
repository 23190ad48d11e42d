"""A model that generates: what runs on the host around the compiled programs."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.functional.placement import place
from jaxformer.generation.advance import Generative
from jaxformer.generation.batch import Batch, bucket
from jaxformer.generation.beam import BeamSearch, Hypotheses, beam_search
from jaxformer.generation.loop import Method, generate_tokens
from jaxformer.generation.options import Decoding
from jaxformer.generation.processors import History
from jaxformer.generation.state import State
from jaxformer.generation.stream import states_from
from jaxformer.models import EncoderDecoderConfig, Parameters, Template
from jaxformer.models.build import ModelConfig, build_model
from jaxformer.models.cache import Cache
from jaxformer.nn.cache import CacheShape, Storage
from jaxformer.sharding import spec

CHUNK = 512
"""Tokens of a prompt that are read at once."""
_LEAST_ROOM, _LEAST_CHUNK = 64, 16

Sources = tuple[Any, ...]
"""An encoder's output `[B, S, D]` and its mask; nothing for a decoder alone."""


class Generator:
    """A model with its weights, each layer's apart, and the programs that generate.

    Programs are compiled for powers of two: of the room for a row's tokens (from 64), and of the
    tokens of a prompt that are read at once (from 16 to `CHUNK`). So for each number of rows and
    each way to choose, prompts and texts of up to S tokens need at most `log2(S / 64) + 1` programs
    for the loop, and six times as many, all of them small, for prompts.
    """

    def __init__(
        self,
        config: ModelConfig,
        template: Template,
        parameters: Parameters,
        *,
        mesh: jax.sharding.Mesh | None = None,
        storage: Storage | None = None,
    ):
        """Sets the layers' parameters apart; the given ones can be let go.

        Args:
          config: of the model.
          template: its structure.
          parameters: its weights.
          mesh: over which they lie; None: one device.
          storage: the type of the cache; None: that of the computation.

        Raises:
          ConfigError: the model does not predict the next token.
        """
        if "language_model" not in [head.name for head in getattr(config, "heads", ())]:
            raise ConfigError(
                "generate: the model has no head that predicts the next token; a decoder or an "
                "encoder-decoder with a language model's head has one"
            )
        self.config, self.mesh = config, mesh
        self.storage = config.compute_dtype if storage is None else storage
        self._template = Template(lambda key: _set_apart(build_model(key, config=config)))
        with self.on_mesh():
            self.parameters = jax.jit(
                lambda given: self._template.parameters(_set_apart(template.module(given)))
            )(parameters)
        self._rereads = self.changes_at(np.zeros(1, np.int32)) is not None
        self._start = jax.jit(self._started, static_argnums=0)
        self._read = jax.jit(self._prompt_read, static_argnums=0, donate_argnums=2)
        self._generate = jax.jit(self._generated, static_argnums=0, donate_argnums=2)
        self._beams = jax.jit(self._searched)

    @property
    def max_length(self) -> int | None:
        """The most tokens of a row, prompt included; None: there is no limit."""
        encodes = isinstance(self.config, EncoderDecoderConfig)
        position = self.config.decoder_position if encodes else self.config.position
        return position.max_length

    def on_mesh(self) -> AbstractContextManager:
        """Where the programs run."""
        return nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def start(
        self,
        prompts: Batch,
        max_new_tokens: int,
        *,
        keys: jax.Array,
        sources: Sources = (),
        keep_scores: bool = False,
    ) -> State:
        """Reads prompts.

        Args:
          prompts: the rows.
          max_new_tokens: at most so many tokens are added to each.
          keys: random keys `[B]`.
          sources: what the decoder reads besides; arrays with a leading axis of B.
          keep_scores: whether to keep the logits of every step.

        Raises:
          ConfigError: the rows would become longer than the model's positions allow, or there are
            not as many as the mesh cuts.
        """
        longest = int(prompts.lengths.max())
        self.check_length(longest, max_new_tokens)
        room = bucket(longest + max_new_tokens, _LEAST_ROOM)
        rows = len(prompts.lengths)
        self._check_rows(rows)
        shape = CacheShape(
            rows,
            capacity=room,
            # What reads all tokens again reads them at once.
            chunk=room if self._rereads else min(CHUNK, room),
            storage=self.storage,
        )
        tokens = np.zeros((rows, room), np.int32)
        tokens[:, : prompts.tokens.shape[1]] = prompts.tokens
        limits = prompts.lengths + max_new_tokens
        history = History(tokens, prompts.lengths, prompts.lengths, limits)
        scores = (max_new_tokens, rows, self.config.vocab_size) if keep_scores else None
        with self.on_mesh():
            state = self._start((shape, scores), self.parameters, history, keys, sources)
            start, end = 0, longest - 1  # the loop reads the last token
            while start < end:
                size = min(bucket(end - start, _LEAST_CHUNK), shape.chunk)
                cache = self._read(size, self.parameters, state.cache, state.history, start)
                state, start = replace(state, cache=cache), start + size
        return state

    def storing(self, storage: Storage) -> "Generator":
        """The same generator with a cache of another type."""
        other = copy.copy(self)
        other.storage = storage
        return other

    def _check_rows(self, rows: int):
        devices = 1 if self.mesh is None else self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        if rows % devices:
            raise ConfigError(
                f"{rows} rows cannot be cut over data x fsdp = {devices} devices: give a multiple"
            )

    def check_length(self, prompt: int, max_new_tokens: int):
        """Raises ConfigError unless the model has places for a prompt and what is added to it."""
        if self.max_length is not None and prompt + max_new_tokens > self.max_length:
            raise ConfigError(
                f"max_new_tokens = {max_new_tokens}: with a prompt of {prompt} tokens that needs "
                f"{prompt + max_new_tokens} places, and the model has {self.max_length}: ask for "
                f"{max(self.max_length - prompt, 0)} at most, shorten the prompt, or let the "
                "window slide"
            )

    def run(self, method: Method, state: State, steps: int) -> State:
        """Adds up to `steps` tokens to every row that is not over; the given cache is used up."""
        with self.on_mesh():
            rest = replace(state, cache=None)
            return self._generate(method, self.parameters, state.cache, rest, steps)

    def stream(
        self,
        method: Method,
        state: State,
        every: int,
        stopped: Callable[[], np.ndarray] | None = None,
    ) -> Iterator[State]:
        """Yields the state after every few tokens, while the device is at those that follow.

        Args:
          method: how tokens are chosen.
          state: where the rows stand; its cache is used up.
          every: how many tokens.
          stopped: tells, each time, which rows bool `[B]` are over for other reasons.
        """
        return states_from(lambda state: self.run(method, state, every), state, stopped)

    def beams(self, prompts: Batch, decoding: Decoding, *, sources: Sources = ()) -> Hypotheses:
        """Searches for the most probable continuations of prompts.

        Args:
          prompts: B rows.
          decoding: num_beams, num_return_sequences n, max_new_tokens, ...
          sources: what the decoder reads besides; arrays with a leading axis of B.

        Returns:
          n new texts for each prompt, best first and those of a prompt in a row: tokens
          `[B n, N]`, as many as the longest has, lengths and scores `[B n]`; in numpy.

        Raises:
          ConfigError: the rows would become longer than the model's positions allow.
        """
        keys = row_keys(0, np.arange(len(prompts.lengths)))  # Nothing is drawn.
        state = self.start(prompts, decoding.max_new_tokens, keys=keys, sources=sources)
        search = BeamSearch.of(decoding)
        with self.on_mesh():
            found = self._beams(search, self.parameters, state.history, state.cache)
        best = jax.tree.map(
            lambda x: x[:, : decoding.num_return_sequences].reshape(-1, *x.shape[2:]),
            jax.device_get(found),
        )
        return best._replace(tokens=best.tokens[:, : best.lengths.max()])

    def module(self, parameters: Parameters) -> Generative:
        """The model, inside a compiled program that is given the generator's `parameters`."""
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

    def _started(self, sizes, parameters, history, keys, sources) -> State:
        shape, scores = sizes
        heads = "kv_heads" if self.config.kv_heads > 1 else None
        shape = replace(shape, spec=spec("batch", None, heads, None))
        cache = self.module(parameters).start(shape, *_on_rows(sources))
        return State(
            history=history,
            cache=replace(cache, lengths=_on_rows(cache.lengths)),
            active=history.limits > history.lengths,
            keys=keys,
            log_probs=jnp.zeros(history.tokens.shape, jnp.float32),
            scores=None if scores is None else jnp.zeros(scores, jnp.float32),
        )

    def _prompt_read(self, size, parameters, cache: Cache, history: History, start) -> Cache:
        """The cache after `size` tokens from `start` on; the last of a prompt is left out."""
        tokens = jax.lax.dynamic_slice_in_dim(history.tokens, start, size, axis=1)
        count = jnp.clip(history.lengths - 1 - start, 0, size)
        tokens, count, lengths = _on_rows((tokens, count, history.lengths))
        return self.module(parameters).extend(tokens, cache, count=count, lengths=lengths)[1]

    def _generated(self, method, parameters, cache, state: State, steps) -> State:
        state = replace(state, cache=cache)
        return generate_tokens(self.module(parameters), method, state, steps)

    def _searched(self, search, parameters, history: History, cache: Cache) -> Hypotheses:
        return beam_search(self.module(parameters), search, history, cache)


def row_keys(seed: int, rows: np.ndarray) -> jax.Array:
    """Random keys `[B]` of rows by their numbers, whatever batch they are in."""
    return jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.asarray(rows))


def _on_rows(arrays: Any) -> Any:
    """A tree of arrays `[B, ...]`, each row where the model reads it."""
    return jax.tree.map(lambda x: place(x, spec("batch", *[None] * (x.ndim - 1))), arrays)


def _set_apart(model: Generative) -> Generative:
    model.reader.stack.set_apart()
    return model
