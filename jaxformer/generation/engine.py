"""The generation engine: what runs on the host around the compiled programs."""

import copy
import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.distributed.sharding import check_rows
from jaxformer.errors import ConfigError
from jaxformer.functional.activations import Hooks
from jaxformer.functional.assertions import assert_axes
from jaxformer.generation.compiled import CompiledModel, available_bytes, num_bytes
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.beam import BeamSearch, Hypotheses
from jaxformer.generation.decode.loop import EncoderOutputs, SamplingParams, State
from jaxformer.generation.decode.processors import History
from jaxformer.generation.hooked import Weights
from jaxformer.generation.prompts import Prompts, are_real, bucket
from jaxformer.models import Parameters
from jaxformer.nn.cache import Cache, CacheShape, Storage

if TYPE_CHECKING:
    from jaxformer.pretrained.model import Pretrained


CHUNK = 512
"""The maximum number of prompt tokens that are read at once."""
_MIN_CAPACITY, _MIN_CHUNK = 64, 16


class Engine:
    """A model with its weights, in the layout that is read fastest for a few tokens.

    Programs are compiled for powers of two: of the cache's capacity (from 64), and of the prompt
    tokens that are read at once (from 16 to `CHUNK`). So for each number of rows and each
    `SamplingParams`, rows of up to S tokens need at most `log2(S / 64) + 1` programs for the loop,
    and six times as many for prompts.
    """

    def __init__(self, compiled: CompiledModel, parameters: Parameters):
        """Arranges the weights; the given ones may be deleted afterwards.

        Args:
            compiled: The model's programs.
            parameters: Its weights.
        """
        self.compiled = compiled
        self.config, self.mesh = compiled.config, compiled.mesh
        self.weights = Weights(compiled.arrange(parameters))
        self._storage = self.config.compute_dtype
        self._rereads = compiled.changes_at(np.zeros(1, np.int32)) is not None

    @property
    def max_length(self) -> int | None:
        """The maximum length of a row, prompt included; None: there is no limit."""
        return self.compiled.max_length

    def on_mesh(self) -> AbstractContextManager:
        """The context in which the programs run."""
        return self.compiled.on_mesh()

    def with_storage(self, storage: Storage) -> "Engine":
        """The same engine with another dtype of the cache than the compute dtype."""
        other = copy.copy(self)
        other._storage = storage
        return other

    def with_hooks(self, hooks: Hooks) -> "Engine":
        """The same engine, whose passes run with other values of some activations."""
        other = copy.copy(self)
        other.weights = replace(self.weights, hooks=hooks)
        return other

    def prefill(
        self,
        prompts: Prompts,
        max_new_tokens: int,
        *,
        keys: jax.Array,
        encoder_outputs: EncoderOutputs = (),
        keep_scores: bool = False,
        max_pending: int = CHUNK,
        num_beams: int = 1,
    ) -> State:
        """Prefills the cache, leaving the last chunk of the prompts for the first decode step.

        Args:
            prompts: The prompts.
            max_new_tokens: The maximum number of tokens to generate for each.
            keys: PRNG keys `[B]`.
            encoder_outputs: The encoder's output and its mask; arrays with a leading axis of B.
            keep_scores: Whether to keep the logits of every step.
            max_pending: The maximum number of prompt tokens to leave.
            num_beams: The number of beams of each row, for beam search.

        Returns:
            The state before the first new token.

        Raises:
            ConfigError: The rows would become longer than the model's positions allow or need more
                memory than there is, or the mesh does not divide their number.
        """
        assert_axes(
            prompts=(prompts.tokens, "B T"),
            lengths=(prompts.lengths, "B"),
            keys=(keys, "B"),
            **({"encoder_outputs": (encoder_outputs[0], "B S D")} if encoder_outputs else {}),
        )
        longest, rows = int(prompts.lengths.max()), len(prompts.lengths)
        check_rows(self.mesh, rows)
        scores = (max_new_tokens, rows, self.config.vocab_size) if keep_scores else None
        options = {"encoder_outputs": encoder_outputs, "scores": scores, "num_beams": num_beams}
        shape = self.checked_shape(rows, longest, max_new_tokens, **options)
        tokens = np.zeros((rows, shape.capacity), np.int32)
        tokens[:, : prompts.tokens.shape[1]] = prompts.tokens
        limits = prompts.lengths + max_new_tokens
        lengths = prompts.lengths
        history = History(tokens, lengths, lengths, limits, prompts.source)
        compiled, weights = self.compiled, self.weights
        with self.on_mesh():
            state = compiled.init_state(shape, scores, weights, history, keys, encoder_outputs)
            start = 0
            while longest - start > min(max_pending, shape.chunk):
                size = min(bucket(longest - 1 - start, _MIN_CHUNK), shape.chunk)
                cache = compiled.prefill(size, weights, state.cache, state.history, start)
                state, start = replace(state, cache=cache), start + size
        left = longest - start
        pending = min(bucket(left, _MIN_CHUNK), shape.chunk) if left > 1 else 1
        return replace(state, pending=pending)

    def decode(self, sampling: SamplingParams, state: State, steps: int) -> State:
        """Adds up to `steps` tokens to every active row; donates the state's cache."""
        with self.on_mesh():
            if state.pending > 1:
                cache, state = _split_cache(state)
                state = self.compiled.first_token(sampling, self.weights, cache, state)
                steps -= 1
            cache, state = _split_cache(state)
            return self.compiled.generate(sampling, self.weights, cache, state, steps)

    def beam_search(
        self, prompts: Prompts, config: GenerationConfig, *, encoder_outputs: EncoderOutputs = ()
    ) -> Hypotheses:
        """Searches for the most probable continuations of prompts.

        Args:
            prompts: B prompts.
            config: The options of beam search, with n = num_return_sequences.
            encoder_outputs: The encoder's output and its mask; arrays with a leading axis of B.

        Returns:
            n continuations of each prompt, best first and those of a prompt in a row: tokens
            `[B n, N]`, where N is the longest, lengths and scores `[B n]`; NumPy arrays.

        Raises:
            ConfigError: The rows would become longer than the model's positions allow.
        """
        keys = row_keys(0, np.arange(len(prompts.lengths)))  # Nothing is sampled.
        options = {"keys": keys, "encoder_outputs": encoder_outputs, "max_pending": 1}
        beams = config.num_beams
        state = self.prefill(prompts, config.max_new_tokens, num_beams=beams, **options)
        search = BeamSearch.of(config)
        with self.on_mesh():
            found = self.compiled.beam_search(search, self.weights, state.history, state.cache)
        best = jax.tree.map(
            lambda x: x[:, : config.num_return_sequences].reshape(-1, *x.shape[2:]),
            jax.device_get(found),
        )
        return best._replace(tokens=best.tokens[:, : best.lengths.max()])

    def checked_shape(
        self,
        rows: int,
        prompt: int,
        max_new_tokens: int,
        *,
        encoder_outputs: EncoderOutputs = (),
        scores: tuple[int, int, int] | None = None,
        num_beams: int = 1,
    ) -> CacheShape:
        """The size of the cache, checked before anything is allocated.

        Args:
            rows: B.
            prompt: The maximum length of a prompt.
            max_new_tokens: The maximum number of tokens to generate for each.
            encoder_outputs: Arrays with a leading axis of B, or their shapes.
            scores: The shape `[N, B, V]` of the logits to keep; None: they are not kept.
            num_beams: The number of beams of each row.

        Returns:
            The size of the cache.

        Raises:
            ConfigError: The model has too few positions, or the machine too little memory.
        """
        self._check_length(prompt, max_new_tokens)
        capacity = bucket(prompt + max_new_tokens, _MIN_CAPACITY)
        # A model that may read all tokens again reads them at once.
        chunk = capacity if self._rereads else min(CHUNK, capacity)
        shape = CacheShape(rows, capacity=capacity, chunk=chunk, storage=self._storage)
        with self.on_mesh():
            needed = self.compiled.num_bytes(
                shape, scores, self.weights, encoder_outputs, num_beams
            )
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
        return list(next(iter(self.weights.parameters.values())).devices())

    def _check_length(self, prompt: int, max_new_tokens: int):
        """Raises ConfigError unless the model has positions for a prompt and the new tokens."""
        if self.max_length is not None and prompt + max_new_tokens > self.max_length:
            raise ConfigError(
                f"max_new_tokens = {max_new_tokens}: with a prompt of {prompt} tokens that needs "
                f"{prompt + max_new_tokens} positions, and the model has {self.max_length}: ask "
                f"for {max(self.max_length - prompt, 0)} at most, shorten the prompt, or let the "
                "window slide"
            )


def _split_cache(state: State) -> tuple[Cache, State]:
    """The cache, which a program donates, and the rest of the state."""
    return state.cache, replace(state, cache=None)


def row_keys(seed: int, rows: np.ndarray) -> jax.Array:
    """PRNG keys `[B]` of rows by their numbers, independent of the batch they are in."""
    return jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.asarray(rows))


_ENGINES: weakref.WeakKeyDictionary["Pretrained", Engine] = weakref.WeakKeyDictionary()


def engine_for(pretrained: "Pretrained") -> Engine:
    """The engine of a model, kept with its programs as long as the model is.

    It holds a second copy of the weights, layer by layer.

    Args:
        pretrained: The model.

    Returns:
        The engine.
    """
    if pretrained not in _ENGINES:
        compiled = CompiledModel(pretrained.config, pretrained.abstract_model, pretrained.mesh)
        _ENGINES[pretrained] = Engine(compiled, pretrained.parameters)
    return _ENGINES[pretrained]


@dataclass(frozen=True)
class NewTokens:
    """The new tokens of B rows, in arrays as wide as the longest row (N)."""

    tokens: np.ndarray
    """int32 `[B, N]`, 0 beyond a row's length."""
    lengths: np.ndarray
    """int32 `[B]`: the number of new tokens of each row."""
    log_probs: np.ndarray
    """float32 `[B, N]`: the model's log-probabilities, 0 beyond a row's length."""
    scores: np.ndarray | None = None
    """float32 `[N, B, V]`: the logits from which the tokens were chosen."""

    @classmethod
    def of_stream(cls, parts: Iterable[Sequence[tuple[np.ndarray, np.ndarray]]]) -> "NewTokens":
        """Collects a stream of each row's tokens and log-probabilities."""
        rows = [
            [np.concatenate(each) for each in zip(*row, strict=True)]
            for row in zip(*parts, strict=True)
        ]
        tokens, lengths, _ = Prompts.of_rows([row[0] for row in rows])
        log_probs = np.zeros(tokens.shape, np.float32)
        for n, (_, values) in enumerate(rows):
            log_probs[n, : len(values)] = values
        return cls(tokens, lengths, log_probs)

    def up_to(self, lengths: np.ndarray) -> "NewTokens":
        """Returns the first tokens of each row, at most as many as it has."""
        longest = int(lengths.max())
        real = are_real(lengths, longest)
        return NewTokens(
            np.where(real, self.tokens[:, :longest], 0),
            lengths,
            np.where(real, self.log_probs[:, :longest], 0.0),
            None if self.scores is None else self.scores[:longest],
        )


def new_tokens(
    engine: Engine,
    prompts: Prompts,
    config: GenerationConfig,
    keys: jax.Array,
    *,
    encoder_outputs: EncoderOutputs = (),
    keep_scores: bool = False,
) -> NewTokens:
    """Continues prompts greedily or by sampling.

    Args:
        engine: The engine, speculative or not.
        prompts: The prompts.
        config: The options.
        keys: PRNG keys `[B]`.
        encoder_outputs: The encoder's output and its mask, for an encoder-decoder.
        keep_scores: Whether to keep the logits of every step.

    Returns:
        The new tokens.

    Raises:
        ConfigError: The model has too few positions.
    """
    most = config.max_new_tokens
    options = {"encoder_outputs": encoder_outputs, "keep_scores": keep_scores}
    state = engine.prefill(prompts, most, keys=keys, **options)
    state = engine.decode(config.sampling, state, most)
    history, log_probs, scores = jax.device_get((state.history, state.log_probs, state.scores))
    lengths = history.lengths - history.prompt_lengths
    longest = int(lengths.max())
    places = history.prompt_lengths[:, None] + np.arange(longest)[None, :]
    real = are_real(lengths, longest)
    places = np.where(real, places, 0)
    tokens, log_probs = (np.take_along_axis(x, places, 1) for x in (history.tokens, log_probs))
    return NewTokens(
        np.where(real, tokens, 0),
        lengths,
        np.where(real, log_probs, 0.0),
        None if scores is None else scores[:longest],
    )


def repeat_rows(arrays: Any, count: int) -> Any:
    """Repeats each row of a tree of arrays `[B, ...]`, as `[B count, ...]`.

    Args:
        arrays: The arrays.
        count: The number of copies of each row, which follow one another.

    Returns:
        The repeated arrays.

    Raises:
        ConfigError: They would need more memory than there is.
    """
    needed, available = count * num_bytes(arrays), available_bytes(jax.local_devices())
    if needed > available:
        raise ConfigError(
            f"num_return_sequences = {count}: the prompts alone need {needed / 1e9:,.1f} GB of "
            f"memory, and there are {available / 1e9:,.1f} GB: ask for fewer"
        )
    return jax.tree.map(partial(np.repeat, repeats=count, axis=0), arrays)
