"""The generation engine: a model's compiled programs, and the host's code around them."""

import copy
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.distributed.sharding import check_rows
from jaxformer.errors import ConfigError
from jaxformer.functional.activations import Hooks
from jaxformer.functional.arrays import assert_axes, on_mesh, platform
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.beam import BeamSearch, Hypotheses, beam_search
from jaxformer.generation.decode.loop import (
    EncoderOutputs,
    SamplingParams,
    State,
    generate_token,
    generate_tokens,
    init_state,
    prefill,
)
from jaxformer.generation.decode.processors import History
from jaxformer.generation.hooked import HookedModel, Weights
from jaxformer.generation.inputs import Prompts, bucket, check_generates
from jaxformer.models import AbstractModel, Parameters
from jaxformer.models.decoder import GenerativeModel
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import ArrangedModel
from jaxformer.nn.cache import Cache, CacheShape, Storage
from jaxformer.pretrained.model import KernelDtype, Pretrained

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

    def __init__(
        self,
        config: ModelConfig,
        abstract_model: AbstractModel,
        parameters: Parameters | None = None,
        mesh: jax.sharding.Mesh | None = None,
        weights: KernelDtype | None = None,
    ):
        """Arranges the weights; the given ones may be deleted afterwards. Compiles nothing yet.

        Without parameters, `with_parameters` must set them. `weights` is the dtype of kernels;
        None: that of the parameters.
        """
        check_generates(config)
        self.config = config
        self.mesh = mesh
        self._storage = config.compute_dtype
        # The programs hold no reference to the engine, so that its weights are freed with it.
        alone = mesh is None
        int8 = weights == "int8"
        model = ArrangedModel(
            config.build,
            config.compute_dtype,
            joined=alone,
            transposed=alone and platform() in ("cpu", "gpu"),
            int8=int8,
        )
        self._model, module = model, partial(_module, model)
        self._arrange = jax.jit(lambda given: model.arrange(abstract_model.merged(given)))
        self._init_state = jax.jit(
            lambda shape, scores, aligned, weights, history, keys, encoder_outputs: init_state(
                module(weights),
                shape,
                history,
                keys=keys,
                pending=history.tokens.shape[1],
                encoder_outputs=encoder_outputs,
                scores=scores,
                aligned=aligned,
            ),
            static_argnums=(0, 1, 2),
        )
        self._prefill = jax.jit(
            lambda size, weights, cache, history, start: prefill(
                module(weights), history, cache, start, size
            ),
            static_argnums=0,
            donate_argnums=2,
        )
        self._first_token = _decoding(module, generate_token)
        self._generate = _decoding(module, generate_tokens)
        self._beam_search = jax.jit(
            lambda search, weights, history, cache: beam_search(
                module(weights), search, history, cache
            )
        )
        self._rereads = self.changes_at(np.zeros(1, np.int32)) is not None
        self.weights = None
        if parameters is not None:
            self.weights = self.with_parameters(parameters).weights

    @property
    def max_length(self) -> int | None:
        """The maximum length of a row, prompt included; None without a limit."""
        config = self.config
        position = config.decoder_position if config.is_encoder_decoder else config.position
        return position.max_length

    def on_mesh(self) -> AbstractContextManager:
        """The context in which the programs run."""
        return on_mesh(self.mesh)

    def with_parameters(self, parameters: Parameters) -> "Engine":
        """The same engine with other weights; the given ones may be deleted afterwards."""
        other = copy.copy(self)
        with self.on_mesh():
            other.weights = Weights(self._arrange(parameters))
        return other

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
        aligned: bool = True,
    ) -> State:
        """Prefills the cache, leaving the last chunk of the prompts for the first decode step.

        At most `max_pending` tokens are left. `aligned` says whether all active rows get their new
        tokens in the same steps; the keys are `[B]`.

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
        longest = int(prompts.lengths.max())
        rows = len(prompts.lengths)
        check_rows(self.mesh, rows)
        scores = (max_new_tokens, rows, self.config.vocab_size) if keep_scores else None
        options = {"encoder_outputs": encoder_outputs, "scores": scores, "num_beams": num_beams}
        shape = self.checked_shape(rows, longest, max_new_tokens, **options)
        tokens = np.zeros((rows, shape.capacity), np.int32)
        tokens[:, : prompts.tokens.shape[1]] = prompts.tokens
        limits = prompts.lengths + max_new_tokens
        lengths = prompts.lengths
        history = History(tokens, lengths, lengths, limits, prompts.source)
        weights = self.weights
        with self.on_mesh():
            state = self._init_state(
                shape, scores, aligned, weights, history, keys, encoder_outputs
            )
            start = 0
            while longest - start > min(max_pending, shape.chunk):
                size = min(bucket(longest - 1 - start, _MIN_CHUNK), shape.chunk)
                cache = self._prefill(size, weights, state.cache, state.history, start)
                state = replace(state, cache=cache)
                start += size
        left = longest - start
        pending = min(bucket(left, _MIN_CHUNK), shape.chunk) if left > 1 else 1
        return replace(state, pending=pending)

    def decode(self, sampling: SamplingParams, state: State, steps: int) -> State:
        """Adds up to `steps` tokens to every active row; donates the state's cache."""
        with self.on_mesh():
            if state.pending > 1:
                cache, state = _split_cache(state)
                state = self._first_token(sampling, self.weights, cache, state)
                steps -= 1
            cache, state = _split_cache(state)
            return self._generate(sampling, self.weights, cache, state, steps)

    def beam_search(
        self, prompts: Prompts, config: GenerationConfig, *, encoder_outputs: EncoderOutputs = ()
    ) -> Hypotheses:
        """Searches for the n = num_return_sequences most probable continuations of each prompt.

        Grouped by prompt, best first: tokens `[B n, N]`, where N is the longest, lengths and scores
        `[B n]`; NumPy arrays.
        """
        keys = row_keys(0, np.arange(len(prompts.lengths)))  # Nothing is sampled.
        options = {"keys": keys, "encoder_outputs": encoder_outputs, "max_pending": 1}
        beams = config.num_beams
        state = self.prefill(prompts, config.max_new_tokens, num_beams=beams, **options)
        search = BeamSearch.of(config)
        with self.on_mesh():
            found = self._beam_search(search, self.weights, state.history, state.cache)
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
        """The size of the cache; ConfigError if positions or memory do not suffice for it."""
        total = prompt + max_new_tokens
        if self.max_length is not None and total > self.max_length:
            raise ConfigError(
                f"max_new_tokens = {max_new_tokens}: with a prompt of {prompt} tokens that needs "
                f"{total} positions, and the model has {self.max_length}: ask for "
                f"{max(self.max_length - prompt, 0)} at most, shorten the prompt, or let the "
                "window slide"
            )
        capacity = bucket(total, _MIN_CAPACITY)
        # A model that may read all tokens again reads them at once.
        chunk = capacity if self._rereads else min(CHUNK, capacity)
        shape = CacheShape(rows, capacity=capacity, chunk=chunk, storage=self._storage)
        with self.on_mesh():
            needed = self._num_bytes(shape, scores, encoder_outputs, num_beams)
        devices = jax.tree.leaves(self.weights.parameters)[0].devices()
        available = available_bytes(list(devices if self.mesh is None else self.mesh.devices.flat))
        if needed > available:
            beams = f" with {num_beams} beams" if num_beams > 1 else ""
            raise ConfigError(
                f"max_new_tokens = {max_new_tokens}: {rows} rows{beams} of {prompt} + "
                f"{max_new_tokens} tokens need {needed / 1e9:,.1f} GB of memory, and there are "
                f"{available / 1e9:,.1f} GB: ask for fewer"
            )
        return shape

    def module(self, weights: Weights) -> GenerativeModel | HookedModel:
        """The model with these weights, inside a compiled program."""
        return _module(self._model, weights)

    def changes_at(self, lengths: np.ndarray) -> np.ndarray | None:
        """Whether cached keys become invalid at some lengths; None if they never do."""
        model = self._model.plain.module(self._model.plain.shapes)
        changes = model.decoder_transformer.changes_at(lengths)
        return None if changes is None else np.asarray(changes)

    def _num_bytes(
        self,
        shape: CacheShape,
        scores: tuple[int, int, int] | None,
        encoder_outputs: EncoderOutputs,
        num_beams: int,
    ) -> int:
        """The memory that a generation needs in addition to the weights; allocates nothing."""
        rows = shape.batch_size

        def array(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype)

        history = History(array(rows, shape.capacity), *[array(rows)] * 3)
        keys = array(rows, dtype=jax.random.key(0).dtype)
        state = self._init_state.eval_shape(
            shape, scores, True, self.weights, history, keys, encoder_outputs
        )
        cache = state.cache
        if num_beams > 1:
            cache = jax.eval_shape(Cache.reorder, cache, array(rows, num_beams))
        logits = array(rows, num_beams, self.config.vocab_size, dtype=jnp.float32)
        kept = num_bytes((cache, state.log_probs, state.scores, logits))
        return kept + num_beams * num_bytes(history)


def _module(model: ArrangedModel, weights: Weights) -> GenerativeModel | HookedModel:
    module = model.module(weights.parameters)
    return HookedModel(module, weights.hooks) if weights.hooks.patterns else module


def _decoding(
    module: Callable[[Weights], GenerativeModel], function: Callable[..., State]
) -> Callable[..., State]:
    """A program that adds tokens to a state, whose cache is an argument that it donates."""

    def run(sampling, weights, cache, state, *steps):
        return function(module(weights), sampling, replace(state, cache=cache), *steps)

    return jax.jit(run, static_argnums=0, donate_argnums=2)


def _split_cache(state: State) -> tuple[Cache, State]:
    """The cache, which a program donates, and the rest of the state."""
    return state.cache, replace(state, cache=None)


def row_keys(seed: int, rows: np.ndarray) -> jax.Array:
    """PRNG keys `[B]` of rows by their numbers, independent of the batch they are in."""
    return jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.asarray(rows))


_ENGINES: weakref.WeakKeyDictionary[Pretrained, Engine] = weakref.WeakKeyDictionary()


def engine_for(pretrained: Pretrained) -> Engine:
    """The engine of a model, kept with its programs as long as the model is.

    It holds a second copy of the weights, layer by layer.
    """
    if pretrained not in _ENGINES:
        model = pretrained.config, pretrained.abstract_model, pretrained.parameters
        _ENGINES[pretrained] = Engine(*model, pretrained.mesh, pretrained.weights)
    return _ENGINES[pretrained]


def available_bytes(devices: Sequence[jax.Device]) -> int:
    """The total memory of devices, used or not; for CPUs the memory of the hosts."""
    own = next(device for device in devices if device.process_index == jax.process_index())
    found = (own.memory_stats() or {}).get("bytes_limit")
    if found is not None:
        return found * len(devices)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * jax.process_count()


def num_bytes(arrays: Any) -> int:
    """The size of a tree of arrays, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arrays))
