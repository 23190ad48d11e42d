"""Two models that generate the texts of one of them, in fewer passes of it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import between, check_fields
from jaxformer.errors import ConfigError
from jaxformer.generation.decode.loop import Method
from jaxformer.generation.decode.speculative import SpeculativeState, speculate
from jaxformer.generation.decode.state import EncoderOutputs, State
from jaxformer.generation.engine import CHUNK, Engine
from jaxformer.generation.prompts import Batch
from jaxformer.generation.streaming.stream import states_from


class SpeculativeEngine:
    """A generator that a smaller one, the draft, saves passes of its model.

    In each step the draft proposes k tokens for each row, one after the other, and the target reads
    them in one pass. Those that it agrees with stand; the first that it does not is replaced by a
    token of its own, and one more of its own follows if it agrees with all. The texts are the
    target's: greedy ones token for token (but for rounding, where two tokens are equally probable),
    drawn ones in distribution, whatever the draft is. Only the time depends on that.

    It is used as `Engine` is. Rows go on independently, each by as many tokens as were accepted,
    and what is drawn for a row depends on its key alone, not on the rows beside it.

    References:
        Leviathan et al., Fast Inference from Transformers via Speculative Decoding
        (https://arxiv.org/abs/2211.17192); Chen et al., Accelerating Large Language Model Decoding
        with Speculative Sampling (https://arxiv.org/abs/2302.01318).
    """

    def __init__(self, target: Engine, draft: Engine, proposals: int):
        """Compiles nothing yet.

        Args:
            target: Whose texts are generated.
            draft: Proposes them; best a model many times smaller, trained on similar texts.
            proposals: K, tokens that are proposed in a step, at least 1.

        Raises:
            ConfigError: The vocabularies differ in size, the models lie on different meshes, or
                there are too many proposals.
        """
        sizes = target.config.vocab_size, draft.config.vocab_size
        if sizes[0] != sizes[1]:
            raise ConfigError(
                f"draft: its vocabulary has {sizes[1]} tokens, and that of the target has "
                f"{sizes[0]}: both must have the same tokens"
            )
        if target.mesh != draft.mesh:
            raise ConfigError("draft: it must lie on the mesh of the target")
        self.target, self.draft, self.proposals = target, draft, proposals
        # A layer with a window keeps what is taken back only as far as one pass reads.
        check_fields(self, proposals=between(1, CHUNK - 1))
        self._speculate = jax.jit(self._speculated, static_argnums=0, donate_argnums=2)

    @property
    def max_length(self) -> int | None:
        """The most tokens of a row, prompt included; None: there is no limit."""
        limits = [model.max_length for model in (self.target, self.draft)]
        return min((limit for limit in limits if limit is not None), default=None)

    def on_mesh(self) -> AbstractContextManager:
        """Where the programs run."""
        return self.target.on_mesh()

    def start(
        self,
        prompts: Batch,
        max_new_tokens: int,
        *,
        keys: jax.Array,
        sources: EncoderOutputs = (),
        draft_sources: EncoderOutputs = (),
        keep_scores: bool = False,
    ) -> SpeculativeState:
        """Both models read prompts.

        Args:
            prompts: The rows.
            max_new_tokens: At most so many tokens are added to each.
            keys: Random keys `[B]`.
            sources: What the target's decoder reads besides.
            draft_sources: What the draft's reads.
            keep_scores: Whether to keep the target's logits of every token.

        Raises:
            ConfigError: The rows would become longer than the positions of one of the models allow,
                or than it reads in the same way (RoPE stretched beyond its trained length).
        """
        states = []
        for name, model, read in (
            ("target", self.target, sources),
            ("draft", self.draft, draft_sources),
        ):
            _check_positions(name, model, prompts, max_new_tokens, read)
            scored = keep_scores and name == "target"
            options = {"keys": keys, "sources": read, "keep_scores": scored, "most_lacking": 1}
            states.append(model.start(prompts, max_new_tokens, **options))
        state, draft = states
        nothing = jnp.zeros(len(prompts.lengths), jnp.int32)
        return SpeculativeState(
            **{field.name: getattr(state, field.name) for field in fields(State)},
            draft_cache=draft.cache,
            proposed=nothing,
            accepted=nothing,
        )

    def run(self, method: Method, state: SpeculativeState, steps: int) -> SpeculativeState:
        """Adds tokens to every row that is not over, in up to `steps` passes of the target.

        A pass adds between one token and `proposals + 1`, to each row its own number of them. The
        given caches are used up.
        """
        with self.on_mesh():
            caches = state.cache, state.draft_cache
            rest = replace(state, cache=None, draft_cache=None)
            parameters = self.target.parameters, self.draft.parameters
            return self._speculate(method, parameters, caches, rest, steps)

    def stream(
        self,
        method: Method,
        state: SpeculativeState,
        every: int,
        stopped: Callable[[], np.ndarray] | None = None,
    ) -> Iterator[SpeculativeState]:
        """Yields the state after every few passes, while the device is at those that follow.

        Args:
            method: How tokens are chosen.
            state: Where the rows stand; its caches are used up.
            every: How many passes of the target.
            stopped: Tells, each time, which rows bool `[B]` are over for other reasons.
        """
        return states_from(lambda state: self.run(method, state, every), state, stopped)

    def _speculated(self, method, parameters, caches, state, steps) -> SpeculativeState:
        target, draft = (
            model.programs.module(own)
            for model, own in zip((self.target, self.draft), parameters, strict=True)
        )
        state = replace(state, cache=caches[0], draft_cache=caches[1])
        return speculate(target, draft, method, self.proposals, state, steps)


def _check_positions(
    name: str, model: Engine, prompts: Batch, max_new_tokens: int, sources: EncoderOutputs
) -> None:
    """Raises ConfigError unless what a model keeps of a row is of use up to the row's end."""
    rows, longest = len(prompts.lengths), int(prompts.lengths.max())
    try:
        model.checked_shape(rows, longest, max_new_tokens, sources=sources)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    changes = model.programs.changes_at(prompts.lengths[:, None] + np.arange(1, max_new_tokens + 1))
    if changes is not None and changes.any():
        row, number = np.argwhere(changes)[0]
        raise ConfigError(
            f"{name}: with {prompts.lengths[row] + number + 1} tokens (row {row}) the positions of "
            "the model change, and with them all that was kept, which speculative decoding cannot "
            f"redo: ask for {number} new tokens at most, or generate without a draft"
        )
