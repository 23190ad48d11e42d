"""The compiled programs of a model that generates, and the memory that they need."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.distributed.sharding import on_mesh
from jaxformer.errors import ConfigError
from jaxformer.functional.placement import platform
from jaxformer.generation.decode.beam import BeamSearch, Hypotheses, beam_search
from jaxformer.generation.decode.loop import (
    EncoderOutputs,
    GenerativeModel,
    SamplingParams,
    State,
    generate_token,
    generate_tokens,
    init_state,
    prefill,
)
from jaxformer.generation.decode.processors import History
from jaxformer.generation.hooked import HookedModel, Weights
from jaxformer.models import AbstractModel, Parameters
from jaxformer.models.model import ModelConfig
from jaxformer.nn.cache import Cache, CacheShape
from jaxformer.nn.layers import transpose_kernels


def check_generates(config: ModelConfig) -> None:
    """Raises ConfigError unless a model predicts the next token."""
    if not (config.causal or config.is_encoder_decoder):
        raise ConfigError(
            "generate: the model is an encoder: its tokens see what follows them, so it has not "
            "learned to predict what comes next; `jaxformer fill-mask` fills in its mask token, "
            "`jaxformer embed` makes vectors, and a decoder or an encoder-decoder generates"
        )
    if not config.predicts_next_token:
        raise ConfigError(
            "generate: the model has no head that predicts the next token; a decoder or an "
            "encoder-decoder with a language model's head has one"
        )


class CompiledModel:
    """The programs of one model, compiled once for any weights.

    `weights` hold the parameters that `arrange` returns, and the programs run in `on_mesh`. A
    program that takes the cache as an argument of its own donates it.
    """

    def __init__(
        self,
        config: ModelConfig,
        abstract_model: AbstractModel,
        mesh: jax.sharding.Mesh | None = None,
    ):
        """Compiles nothing yet.

        Args:
            config: The model's configuration.
            abstract_model: Its structure.
            mesh: The mesh of its weights; None: one device.

        Raises:
            ConfigError: The model does not predict the next token.
        """
        check_generates(config)
        self.config, self.mesh = config, mesh
        self._template = AbstractModel(lambda key: self._arranged(config.build(key)))
        plain = AbstractModel(config.build)
        self._arrange = jax.jit(
            lambda given: self._template.parameters(
                self._arranged(plain.module(abstract_model.merged(given)))
            )
        )
        self.init_state = jax.jit(self._init_state, static_argnums=(0, 1))
        self.prefill = jax.jit(self._prefill, static_argnums=0, donate_argnums=2)
        self.first_token = jax.jit(self._first_token, static_argnums=0, donate_argnums=2)
        self.generate = jax.jit(self._generate, static_argnums=0, donate_argnums=2)
        self.beam_search = jax.jit(self._beam_search)

    @property
    def max_length(self) -> int | None:
        """The maximum length of a row, prompt included; None: there is no limit."""
        config = self.config
        return (
            config.decoder_position if config.is_encoder_decoder else config.position
        ).max_length

    def on_mesh(self) -> AbstractContextManager:
        """The context in which the programs run."""
        return on_mesh(self.mesh)

    def arrange(self, parameters: Parameters) -> Parameters:
        """The parameters in the layout that the programs read; the given ones may be deleted."""
        with self.on_mesh():
            return self._arrange(parameters)

    def module(self, weights: Weights) -> GenerativeModel | HookedModel:
        """The model with these weights, inside a compiled program."""
        model = self._template.module(weights.parameters)
        return HookedModel(model, weights.hooks) if weights.hooks.patterns else model

    def changes_at(self, lengths: np.ndarray) -> np.ndarray | None:
        """Whether cached keys become invalid at these lengths, see `Transformer.changes_at`.

        Args:
            lengths: int, of any shape.

        Returns:
            bool of that shape; None if no length invalidates them.
        """
        changes = self._template.module(self._template.shapes).decoder_transformer.changes_at(
            lengths
        )
        return None if changes is None else np.asarray(changes)

    def num_bytes(
        self,
        shape: CacheShape,
        scores: tuple[int, int, int] | None,
        weights: Weights,
        encoder_outputs: EncoderOutputs,
        num_beams: int,
    ) -> int:
        """The memory that a generation needs besides the weights; allocates nothing.

        Args:
            shape: The size of the cache.
            scores: The shape `[N, B, V]` of the logits to keep; None: they are not kept.
            weights: The weights.
            encoder_outputs: Arrays with a leading axis of B, or their shapes.
            num_beams: The number of beams of each row.

        Returns:
            The number of bytes.
        """
        rows = shape.batch_size

        def array(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype)

        history = History(array(rows, shape.capacity), *[array(rows)] * 3)
        keys = array(rows, dtype=jax.random.key(0).dtype)
        state = self.init_state.eval_shape(shape, scores, weights, history, keys, encoder_outputs)
        cache = state.cache
        if num_beams > 1:
            cache = jax.eval_shape(Cache.reorder, cache, array(rows, num_beams))
        logits = array(rows, num_beams, self.config.vocab_size, dtype=jnp.float32)
        kept = num_bytes((cache, state.log_probs, state.scores, logits))
        return kept + num_beams * num_bytes(history)

    def _arranged(self, model: GenerativeModel) -> GenerativeModel:
        """A model with its weights in the layout that is read fastest for a few tokens."""
        model.decoder_transformer.stack.unstack()
        # XLA's CPU backend reads kernels up to three times as fast with the contracted axis last.
        if self.mesh is None and platform() == "cpu":
            transpose_kernels(model)
        return model

    def _init_state(
        self,
        shape: CacheShape,
        scores: tuple[int, int, int] | None,
        weights: Weights,
        history: History,
        keys: jax.Array,
        encoder_outputs: EncoderOutputs,
    ) -> State:
        return init_state(
            self.module(weights),
            shape,
            history,
            keys=keys,
            pending=history.tokens.shape[1],
            encoder_outputs=encoder_outputs,
            scores=scores,
        )

    def _prefill(
        self, size: int, weights: Weights, cache: Cache, history: History, start: jax.Array
    ) -> Cache:
        return prefill(self.module(weights), history, cache, start, size)

    def _first_token(
        self, sampling: SamplingParams, weights: Weights, cache: Cache, state: State
    ) -> State:
        return generate_token(self.module(weights), sampling, replace(state, cache=cache))

    def _generate(
        self,
        sampling: SamplingParams,
        weights: Weights,
        cache: Cache,
        state: State,
        steps: jax.Array,
    ) -> State:
        state = replace(state, cache=cache)
        return generate_tokens(self.module(weights), sampling, state, steps)

    def _beam_search(
        self, search: BeamSearch, weights: Weights, history: History, cache: Cache
    ) -> Hypotheses:
        return beam_search(self.module(weights), search, history, cache)


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
