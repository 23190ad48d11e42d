"""A model that generates: what runs on the host around the compiled programs."""

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.distributed.sharding import check_rows
from jaxformer.errors import ConfigError
from jaxformer.functional.assertions import assert_axes
from jaxformer.generation.compiled import CompiledModel
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.beam import BeamSearch, Hypotheses
from jaxformer.generation.decode.loop import Method
from jaxformer.generation.decode.processors import History
from jaxformer.generation.decode.state import EncoderOutputs, State
from jaxformer.generation.memory import available_bytes
from jaxformer.generation.prompts import Batch, bucket
from jaxformer.generation.streaming.stream import states_from
from jaxformer.models import Parameters
from jaxformer.models.cache import Cache
from jaxformer.nn.cache import CacheShape, Storage
from jaxformer.pretrained.model import Pretrained

CHUNK = 512
"""Tokens of a prompt that are read at once."""
_LEAST_ROOM, _LEAST_CHUNK = 64, 16


class Engine:
    """A model with its weights, arranged as they are read fastest for few tokens.

    Programs are compiled for powers of two: of the room for a row's tokens (from 64), and of the
    tokens of a prompt that are read at once (from 16 to `CHUNK`). So for each number of rows and
    each way to choose, prompts and texts of up to S tokens need at most `log2(S / 64) + 1` programs
    for the loop, and six times as many for prompts.
    """

    def __init__(self, programs: CompiledModel, parameters: Parameters):
        """Arranges the parameters to be read for few tokens; the given ones can be let go.

        Args:
            programs: Of the model.
            parameters: Its weights.
        """
        self.programs = programs
        self.config, self.mesh = programs.config, programs.mesh
        self.parameters = programs.arrange(parameters)
        self._storage = self.config.compute_dtype
        self._rereads = programs.changes_at(np.zeros(1, np.int32)) is not None

    @property
    def max_length(self) -> int | None:
        """The most tokens of a row, prompt included; None: there is no limit."""
        return self.programs.max_length

    def on_mesh(self) -> AbstractContextManager:
        """Where the programs run."""
        return self.programs.on_mesh()

    def start(
        self,
        prompts: Batch,
        max_new_tokens: int,
        *,
        keys: jax.Array,
        sources: EncoderOutputs = (),
        keep_scores: bool = False,
        most_lacking: int = CHUNK,
        num_beams: int = 1,
    ) -> State:
        """Reads prompts, but for what is read together with the choice of the first token.

        Args:
            prompts: The rows.
            max_new_tokens: At most so many tokens are added to each.
            keys: Random keys `[B]`.
            sources: What the decoder reads besides; arrays with a leading axis of B.
            keep_scores: Whether to keep the logits of every step.
            most_lacking: At most so many tokens of a prompt are left for that.
            num_beams: The texts of each row that beam search will keep.

        Raises:
            ConfigError: The rows would become longer than the model's positions allow, need more
                memory than there is, or are not as many as the mesh cuts.
        """
        assert_axes(
            prompts=(prompts.tokens, "B T"),
            lengths=(prompts.lengths, "B"),
            keys=(keys, "B"),
            **({"sources": (sources[0], "B S D")} if sources else {}),
        )
        longest, rows = int(prompts.lengths.max()), len(prompts.lengths)
        check_rows(self.mesh, rows)
        scores = (max_new_tokens, rows, self.config.vocab_size) if keep_scores else None
        options = {"sources": sources, "scores": scores, "num_beams": num_beams}
        shape = self.checked_shape(rows, longest, max_new_tokens, **options)
        tokens = np.zeros((rows, shape.capacity), np.int32)
        tokens[:, : prompts.tokens.shape[1]] = prompts.tokens
        limits = prompts.lengths + max_new_tokens
        history = History(tokens, prompts.lengths, prompts.lengths, limits)
        with self.on_mesh():
            state = self.programs.start(shape, scores, self.parameters, history, keys, sources)
            start = 0
            while longest - start > min(most_lacking, shape.chunk):
                size = min(bucket(longest - 1 - start, _LEAST_CHUNK), shape.chunk)
                cache = self.programs.read(size, self.parameters, state.cache, state.history, start)
                state, start = replace(state, cache=cache), start + size
        left = longest - start
        lacking = min(bucket(left, _LEAST_CHUNK), shape.chunk) if left > 1 else 1
        return replace(state, lacking=lacking)

    def storing(self, storage: Storage) -> "Engine":
        """The same generator with a cache of another type than that of the computation."""
        other = copy.copy(self)
        other._storage = storage
        return other

    def checked_shape(
        self,
        rows: int,
        prompt: int,
        max_new_tokens: int,
        *,
        sources: EncoderOutputs = (),
        scores: tuple[int, int, int] | None = None,
        num_beams: int = 1,
    ) -> CacheShape:
        """How much is kept of rows, before anything is allocated.

        Args:
            rows: B.
            prompt: The most tokens of a prompt.
            max_new_tokens: At most so many tokens are added to each.
            sources: What the decoder reads besides; arrays with a leading axis of B, or their
                shapes.
            scores: The shape `[N, B, V]` of the logits that are to be kept; None: none are.
            num_beams: The texts of each row.

        Raises:
            ConfigError: The model has too few positions, or the machine too little memory.
        """
        self._check_length(prompt, max_new_tokens)
        room = bucket(prompt + max_new_tokens, _LEAST_ROOM)
        # What reads all tokens again reads them at once.
        chunk = room if self._rereads else min(CHUNK, room)
        shape = CacheShape(rows, capacity=room, chunk=chunk, storage=self._storage)
        with self.on_mesh():
            needed = self.programs.num_bytes(shape, scores, self.parameters, sources, num_beams)
        available = available_bytes(self._devices)
        if needed > available:
            beams = f" with {num_beams} beams" if num_beams > 1 else ""
            raise ConfigError(
                f"max_new_tokens = {max_new_tokens}: {rows} rows{beams} of {prompt} + "
                f"{max_new_tokens} tokens need {needed / 1e9:,.1f} GB of memory, and there are "
                f"{available / 1e9:,.1f} GB: ask for fewer"
            )
        return shape

    @property
    def _devices(self) -> list[jax.Device]:
        if self.mesh is not None:
            return list(self.mesh.devices.flat)
        return list(next(iter(self.parameters.values())).devices())

    def _check_length(self, prompt: int, max_new_tokens: int):
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
            if state.lacking > 1:
                state = self.programs.first(method, self.parameters, *_apart(state))
                steps -= 1
            return self.programs.generate(method, self.parameters, *_apart(state), steps)

    def stream(
        self,
        method: Method,
        state: State,
        every: int,
        stopped: Callable[[], np.ndarray] | None = None,
    ) -> Iterator[State]:
        """Yields the state after every few tokens, while the device is at those that follow.

        Args:
            method: How tokens are chosen.
            state: Where the rows stand; its cache is used up.
            every: How many tokens.
            stopped: Tells, each time, which rows bool `[B]` are over for other reasons.
        """
        return states_from(lambda state: self.run(method, state, every), state, stopped)

    def beams(
        self, prompts: Batch, decoding: GenerationConfig, *, sources: EncoderOutputs = ()
    ) -> Hypotheses:
        """Searches for the most probable continuations of prompts.

        Args:
            prompts: B rows.
            decoding: Num_beams, num_return_sequences n, max_new_tokens, ...
            sources: What the decoder reads besides; arrays with a leading axis of B.

        Returns:
            N new texts for each prompt, best first and those of a prompt in a row: tokens
            `[B n, N]`, as many as the longest has, lengths and scores `[B n]`; in numpy.

        Raises:
            ConfigError: The rows would become longer than the model's positions allow.
        """
        keys = row_keys(0, np.arange(len(prompts.lengths)))  # Nothing is drawn.
        options = {"keys": keys, "sources": sources, "most_lacking": 1}
        beams = decoding.num_beams
        state = self.start(prompts, decoding.max_new_tokens, num_beams=beams, **options)
        search = BeamSearch.of(decoding)
        with self.on_mesh():
            found = self.programs.search(search, self.parameters, state.history, state.cache)
        best = jax.tree.map(
            lambda x: x[:, : decoding.num_return_sequences].reshape(-1, *x.shape[2:]),
            jax.device_get(found),
        )
        return best._replace(tokens=best.tokens[:, : best.lengths.max()])


def _apart(state: State) -> tuple[Cache, State]:
    """The cache, which a program uses up, and the rest of a state, which it does not."""
    return state.cache, replace(state, cache=None)


def row_keys(seed: int, rows: np.ndarray) -> jax.Array:
    """Random keys `[B]` of rows by their numbers, whatever batch they are in."""
    return jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.asarray(rows))


_GENERATORS: weakref.WeakKeyDictionary[Pretrained, Engine] = weakref.WeakKeyDictionary()


def engine_for(pretrained: Pretrained) -> Engine:
    """What generates with the weights of a model, kept with its programs as long as the model is.

    It holds a second copy of the weights, layer by layer.
    """
    if pretrained not in _GENERATORS:
        programs = CompiledModel(pretrained.config, pretrained.abstract_model, pretrained.mesh)
        _GENERATORS[pretrained] = Engine(programs, pretrained.parameters)
    return _GENERATORS[pretrained]
