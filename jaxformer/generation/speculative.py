"""Speculative decoding: two models that generate the texts of one of them, in fewer passes."""

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import between, check_fields
from jaxformer.errors import ConfigError
from jaxformer.functional.sampling.next_token import greedy, sample, token_log_probabilities
from jaxformer.functional.sampling.speculative import Verdict, accept_by_chance, accept_greedily
from jaxformer.generation.decode.loop import (
    EncoderOutputs,
    SamplingParams,
    State,
    decode_step,
    is_end,
    verify_step,
    while_active,
)
from jaxformer.generation.decode.processors import History, process
from jaxformer.generation.engine import CHUNK, Engine
from jaxformer.generation.inputs import Prompts
from jaxformer.models.decoder import GenerativeModel
from jaxformer.nn.cache import Cache

_TO_PROPOSE, _TO_VERIFY = 0, 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SpeculativeState(State):
    """The generation of B rows. The draft's cache lacks the last one or two tokens of each row."""

    draft_cache: Cache
    """The draft model's cache of the tokens."""
    proposed: jax.Array
    """int32 `[B]`: how many tokens the draft model has proposed."""
    accepted: jax.Array
    """int32 `[B]`: how many of these the target has accepted."""


class SpeculativeEngine:
    """An engine whose model needs fewer passes, because a smaller draft model proposes tokens.

    In each step the draft model proposes k tokens for each row, one after the other, and the target
    reads them in one pass. It accepts those that it agrees with and replaces the first that it does
    not agree with; if it accepts all, it adds one more token. The texts are those of the target:
    greedy ones token for token (except for rounding, where two tokens are equally probable),
    sampled ones in distribution. The draft model only affects the time.

    It has the interface of `Engine`. Rows advance independently, each by as many tokens as were
    accepted, and a row's samples depend only on its own key.

    References:
        Leviathan et al., Fast Inference from Transformers via Speculative Decoding
        (https://arxiv.org/abs/2211.17192); Chen et al., Accelerating Large Language Model Decoding
        with Speculative Sampling (https://arxiv.org/abs/2302.01318).
    """

    def __init__(self, target: Engine, draft: Engine, proposals: int):
        """Compiles nothing yet."""
        sizes = target.config.vocab_size, draft.config.vocab_size
        if sizes[0] != sizes[1]:
            raise ConfigError(
                f"draft: its vocabulary has {sizes[1]} tokens, and that of the target has "
                f"{sizes[0]}: both must have the same tokens"
            )
        if target.mesh != draft.mesh:
            raise ConfigError("draft: must be on the mesh of the target")
        self.target = target
        self.draft = draft
        self.proposals = proposals
        # A layer with a window can undo at most the tokens of one pass.
        check_fields(self, proposals=between(1, CHUNK - 1))
        self._speculate = jax.jit(self._speculated, static_argnums=0, donate_argnums=2)

    @property
    def max_length(self) -> int | None:
        """The maximum length of a row, prompt included; None without a limit."""
        limits = [model.max_length for model in (self.target, self.draft)]
        return min((limit for limit in limits if limit is not None), default=None)

    def prefill(
        self,
        prompts: Prompts,
        max_new_tokens: int,
        *,
        keys: jax.Array,
        encoder_outputs: EncoderOutputs = (),
        draft_encoder_outputs: EncoderOutputs = (),
        keep_scores: bool = False,
    ) -> SpeculativeState:
        """Prefills the caches of both models, see `Engine.prefill`.

        Raises:
            ConfigError: The rows would become longer than the positions of one of the models allow,
                or than a length that invalidates its cached keys (RoPE that is stretched beyond its
                original length); or one of the models has a recurrent state.
        """
        states = []
        for name, engine, outputs in (
            ("target", self.target, encoder_outputs),
            ("draft", self.draft, draft_encoder_outputs),
        ):
            _check_positions(name, engine, prompts, max_new_tokens, outputs)
            scored = keep_scores and name == "target"
            options = {"keys": keys, "keep_scores": scored, "max_pending": 1, "aligned": False}
            state = engine.prefill(prompts, max_new_tokens, encoder_outputs=outputs, **options)
            if not state.cache.can_undo:
                raise ConfigError(
                    f"{name}: has a sublayer with a recurrent state, which cannot undo the tokens "
                    "that speculative decoding rejects: generate without a draft"
                )
            states.append(state)
        state, draft = states
        nothing = jnp.zeros(len(prompts.lengths), jnp.int32)
        return SpeculativeState(
            **{field.name: getattr(state, field.name) for field in fields(State)},
            draft_cache=draft.cache,
            proposed=nothing,
            accepted=nothing,
        )

    def decode(
        self, sampling: SamplingParams, state: SpeculativeState, steps: int
    ) -> SpeculativeState:
        """Adds tokens to every active row, in up to `steps` passes of the target.

        A pass adds between 1 and `proposals + 1` tokens to each row. The caches are donated.
        """
        with self.target.on_mesh():
            caches = state.cache, state.draft_cache
            rest = replace(state, cache=None, draft_cache=None)
            weights = self.target.weights, self.draft.weights
            return self._speculate(sampling, weights, caches, rest, steps)

    def _speculated(self, sampling, weights, caches, state, steps) -> SpeculativeState:
        target, draft = (
            engine.module(own)
            for engine, own in zip((self.target, self.draft), weights, strict=True)
        )
        state = replace(state, cache=caches[0], draft_cache=caches[1])
        step = partial(_speculative_step, target, draft, sampling, self.proposals)
        return while_active(step, state, steps)


def _check_positions(
    name: str,
    engine: Engine,
    prompts: Prompts,
    max_new_tokens: int,
    encoder_outputs: EncoderOutputs,
) -> None:
    """Raises ConfigError unless a model's cached keys stay valid up to the end of each row."""
    rows = len(prompts.lengths)
    longest = int(prompts.lengths.max())
    try:
        engine.checked_shape(rows, longest, max_new_tokens, encoder_outputs=encoder_outputs)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    lengths = prompts.lengths[:, None] + np.arange(1, max_new_tokens + 1)
    changes = engine.changes_at(lengths)
    if changes is not None and changes.any():
        row, number = np.argwhere(changes)[0]
        raise ConfigError(
            f"{name}: with {prompts.lengths[row] + number + 1} tokens (row {row}) the positions of "
            "the model change, which invalidates the cache, and speculative decoding cannot "
            f"recompute it: ask for {number} new tokens at most, or generate without a draft"
        )


class _Proposal(NamedTuple):
    """The tokens that a draft model adds to each row."""

    history: History
    """The tokens, the proposed ones included."""
    cache: Cache
    """The draft model's cache of all of them except the last."""
    ended: jax.Array
    """bool `[B]`: whether the last of them is an end token."""
    logits: jax.Array | None
    """float32 `[B, k, V]`: from which they were sampled; None: they are the most probable ones."""


def _speculative_step(target, draft, sampling, proposals, state) -> SpeculativeState:
    """Adds between 1 and `proposals + 1` tokens to every active row."""
    history, active = state.history, state.active
    proposal = _proposed(draft, sampling, proposals, state)
    count = proposal.history.lengths - history.lengths
    logits, cache = verify_step(target, proposal.history, state.cache, active, proposals + 1)
    # The positions of the tokens that are chosen from these logits.
    positions = history.lengths[:, None] + jnp.arange(proposals + 1)[None, :]
    processed = _processed(sampling, logits, proposal.history, positions)
    number = positions - history.prompt_lengths[:, None]
    verdict = _verdict(sampling, state.keys, proposal, count, processed, positions, number)
    # A row that ends with an accepted end token has no replacement.
    complete = proposal.ended & (verdict.accepted == count)
    replaces = active & ~complete
    lengths = history.lengths + verdict.accepted + replaces
    rows = jnp.arange(active.shape[0])
    nowhere = history.tokens.shape[1]
    at = jnp.where(replaces, history.lengths + verdict.accepted, nowhere)
    tokens = proposal.history.tokens.at[rows, at].set(verdict.replacement, mode="drop")
    log_probs = token_log_probabilities(logits, _tokens_at(tokens, positions))
    kept = positions < lengths[:, None]
    scores = state.scores
    if scores is not None:
        step = jnp.where(kept, number, scores.shape[0])
        scores = scores.at[step, rows[:, None]].set(processed, mode="drop")
    log_probs = state.log_probs.at[rows[:, None], jnp.where(kept, positions, nowhere)].set(
        log_probs, mode="drop"
    )
    ends = is_end(verdict.replacement, sampling.end_tokens)
    return replace(
        state,
        history=history._replace(tokens=tokens, lengths=lengths),
        cache=_truncated(cache, lengths),
        active=replaces & ~ends & (lengths < history.limits),
        log_probs=log_probs,
        scores=scores,
        draft_cache=_truncated(proposal.cache, lengths),
        proposed=state.proposed + count,
        accepted=state.accepted + verdict.accepted,
    )


def _proposed(draft: GenerativeModel, sampling: SamplingParams, proposals: int, state) -> _Proposal:
    """Proposes up to `proposals` tokens for each row: to an end token, or one before the limit."""

    def propose(carry, _, pending=1):
        history, cache, going, ended = carry
        # The target fills the last position.
        going = going & (history.lengths < history.limits - 1)
        logits, cache = decode_step(draft, history, cache, going, pending)
        logits = process(sampling.processors, logits, history)
        if sampling.do_sample:
            number = history.lengths - history.prompt_lengths
            tokens = sample(_position_keys(state.keys, number)[:, _TO_PROPOSE], logits)
        else:
            tokens, logits = greedy(logits), None
        rows = jnp.arange(tokens.shape[0])
        positions = jnp.where(going, history.lengths, history.tokens.shape[1])
        ended = ended | (going & is_end(tokens, sampling.end_tokens))
        history = history._replace(
            tokens=history.tokens.at[rows, positions].set(tokens, mode="drop"),
            lengths=history.lengths + going,
        )
        return (history, cache, going & ~ended, ended), logits

    nowhere = jnp.zeros_like(state.active)
    carry = state.history, state.draft_cache, state.active, nowhere
    # If all tokens of the step before were accepted, the last of them is not in the cache either.
    carry, first = propose(carry, None, pending=2)
    carry, others = jax.lax.scan(propose, carry, length=proposals - 1)
    history, cache, _, ended = carry
    logits = None
    if sampling.do_sample:
        logits = jnp.concatenate([first[:, None], jnp.swapaxes(others, 0, 1)], axis=1)
    return _Proposal(history, cache, ended, logits)


def _verdict(sampling, row_keys, proposal, count, processed, positions, number) -> Verdict:
    tokens = _tokens_at(proposal.history.tokens, positions[:, :-1])
    if not sampling.do_sample:
        return accept_greedily(tokens, count, processed)
    keys = jax.vmap(partial(_position_keys, row_keys), 1, 1)(number)[..., _TO_VERIFY]
    return accept_by_chance(keys, tokens, count, proposal.logits, processed)


def _processed(sampling: SamplingParams, logits, history: History, positions):
    """Applies the processors to logits `[B, n, V]`, each with the history up to its position."""

    def at_position(logits, lengths):
        return process(sampling.processors, logits, history._replace(lengths=lengths))

    return jax.vmap(at_position, 1, 1)(logits, positions)


def _position_keys(row_keys, number):
    """PRNG keys `[B, 2]` for the n-th new token of each row: to propose it, and to verify it."""
    # A position may be proposed again with the same key: the first proposal was discarded because
    # of an earlier token, independently of the proposal itself.
    return jax.vmap(jax.random.split)(jax.vmap(jax.random.fold_in)(row_keys, number))


def _tokens_at(tokens, positions):
    """`tokens[b, positions[b, n]]`, `[B, n]`; clipped at the last position."""
    return jnp.take_along_axis(tokens, positions, axis=1, mode="clip")


def _truncated(cache: Cache, lengths) -> Cache:
    """Undoes tokens, so that the cache contains at most all tokens of each row except the last."""
    return replace(cache, lengths=jnp.minimum(cache.lengths, lengths - 1))
