"""Wrong arguments of every public function: one sentence that names the argument.

A case is a call that works and, for each argument, what must not. `test_ordinary_numbers_are_fine`
holds the other side: what is ordinary is not refused.
"""

import math
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer.functional as F
from jaxformer.errors import ArgumentError
from jaxformer.functional import assertions, feedforward, linear, masks, norms
from jaxformer.functional.linear import lookup
from jaxformer.functional.losses import cross_entropy as losses
from jaxformer.functional.losses.distillation import cosine_distance, soft_divergence
from jaxformer.functional.sampling.speculative import accept_by_chance, accept_greedily

NAN, INF = math.nan, math.inf


def floats(*shape):
    return jnp.ones(shape)


def ints(*shape):
    return jnp.zeros(shape, int)


def bools(*shape):
    return jnp.ones(shape, bool)


def keys(*shape):
    return jax.random.split(jax.random.key(0), shape)


# Values that are wrong for a kind of number.
SIZE = [0, -1, 2.5, True, "3", None, NAN]
POSITIVE = [0, -1.0, NAN, INF, True, "1", [1.0], floats(2)]
NOT_NEGATIVE = [-1e-6, NAN, INF, "1", True]
PROBABILITY = [-0.1, 1.1, NAN, "1", True, floats(2)]
RATE = [-0.1, 1, NAN, "0", True]
POSITIONS = [floats(1, 3), bools(1, 3), [[0, 1]], np.array([[2**32]]), np.array([[-(2**40)]])]
X = [ints(2, 3, 4), bools(2, 3, 4), [[[1.0]]], None, "x"]
LOGITS = [ints(2, 5), floats(), [[1.0]], floats(2, 0)]
NOT_BOOL = [floats(2, 5), ints(2, 5), bools(5, 2), bools(2)]

QUERY, KEY = floats(2, 3, 4, 8), floats(2, 5, 2, 8)
ATTENTION = {"query": QUERY, "key": KEY, "value": KEY}
NORM = {"x": floats(2, 3, 4), "scale": floats(4), "eps": 1e-6}
ROTATED = {
    "x": floats(2, 3, 4, 8), "positions": ints(1, 3), "inverse_frequencies": floats(4),
    "layout": "half",
}  # fmt: skip
FREQUENCIES = [floats(2, 2), ints(4), [1.0], None]
SCORED = {"content": floats(3, 8), "query_kernel": floats(8, 2), "key_kernel": floats(8, 2)}
PLACES = {"query_positions": ints(1, 3), "key_positions": ints(2, 5)}
HISTORY = {"logits": floats(2, 5), "tokens": ints(2, 7), "lengths": ints(2)}
PROPOSED = {"tokens": ints(2, 3), "count": ints(2), "target": floats(2, 4, 5)}
LOSS = {"logits": floats(2, 3, 5), "targets": ints(2, 3)}
CHUNKED = {
    "hidden": floats(2, 3, 4), "head": floats(4, 5), "targets": ints(2, 3), "chunk_size": 2,
}  # fmt: skip
LOGPS = ("chosen_logps", "rejected_logps", "ref_chosen_logps", "ref_rejected_logps")
PREFERENCES = dict.fromkeys(LOGPS, floats(2)) | {"beta": 0.1}
JUDGED = dict.fromkeys(("logps", "ref_logps", "other_logps", "ref_other_logps"), floats(2)) | {
    "desirable": bools(2), "beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.0,
}  # fmt: skip

CASES = [
    (F.attention, ATTENTION, {
        "query": [floats(2, 3, 4), floats(2, 3, 3, 8), ints(2, 3, 4, 8), floats(2, 3, 0, 8), None],
        "key": [floats(3, 5, 2, 8), floats(2, 5, 2, 6), ints(2, 5, 2, 8), [1.0]],
        "value": [floats(2, 4, 2, 8), floats(2, 5, 4, 8), ints(2, 5, 2, 8)],
        "mask": [
            floats(3, 5), np.where(np.tri(3, 5), 0, -INF), bools(5, 3), bools(2, 5), bools(3, 3, 5),
            bools(2, 4, 3, 5), np.full((3, 5), -10000), [[True]], "causal", 1, bools(5),
        ],
        "bias": [floats(3, 5), floats(2, 3, 3, 5), bools(1, 1, 3, 5), 1.0],
        "distances": [
            floats(7, 2, 8), F.DistanceTerms(floats(6, 2, 8), None, 3),
            F.DistanceTerms(None, floats(7, 2, 8), 3), F.DistanceTerms(floats(7, 2, 8), None, 4),
        ],
        "scale": [NAN, INF, "1", True, floats(2)],
        "softcap": POSITIVE,
        "dropout_rate": RATE,
        "implementation": ["flash", None, 1],
    }),
    (partial(F.attention, dropout_rate=0.5), ATTENTION, {"dropout_key": [0, keys(2), floats(2)]}),
    (F.dropout, {"x": floats(3), "rate": 0.5, "key": jax.random.key(0)}, {
        "x": [ints(3), [1.0]], "rate": RATE, "key": [0, keys(2), "key"],
    }),
    (F.linear, {"x": floats(2, 3), "kernel": floats(3, 4), "bias": floats(4)}, {
        "x": [ints(2, 3), 1.0, floats()], "kernel": [floats(4, 3), ints(3, 4), floats(4)],
        "bias": [floats(3), ints(4), 1.0], "contract": SIZE, "dtype": ["int8", bool],
    }),
    (F.feed_forward, {
        "x": floats(2, 3), "up": floats(3, 5), "down": floats(5, 3), "activation": jnp.tanh,
        "gate": floats(3, 5),
    }, {
        "x": [ints(2, 3), None], "up": [floats(5, 4), floats(3), ints(3, 5)],
        "down": [floats(3, 5), ints(5, 3)], "gate": [floats(3, 4), ints(3, 5)],
        "activation": ["gelu", None], "up_bias": [floats(3)], "gate_bias": [floats(3)],
        "down_bias": [floats(5)],
    }),
    (F.gelu, {"x": floats(2)}, {"x": [ints(2), [1.0]]}),
    (F.quick_gelu, {"x": floats(2)}, {"x": [ints(2), [1.0]]}),
    (F.activation, {}, {"activation": []}),
    (F.layer_norm, NORM | {"bias": floats(4)}, {
        "x": X, "scale": [floats(3), ints(4), 1.0, floats(1, 1, 2, 3, 4)], "bias": [floats(3, 3)],
        "eps": NOT_NEGATIVE,
    }),
    (F.rms_norm, NORM | {"unit_offset": False}, {
        "x": X, "scale": [floats(3), ints(4), 1.0], "eps": NOT_NEGATIVE, "unit_offset": ["no", 1],
    }),
    (lookup, {"table": floats(4, 3), "ids": ints(2)}, {
        "table": [floats(4), None],
        "ids": [floats(2), bools(2), [0], np.array([4]), np.array([-1]), np.array([2**32])],
    }),
    (F.learned_code, {"table": floats(4, 3), "positions": ints(1, 2)}, {
        "table": [floats(4), ints(4, 3)], "positions": [*POSITIONS, np.array([[4]])],
    }),
    (F.integer_code, {"positions": ints(1, 2), "max_length": 3}, {
        "positions": POSITIONS, "max_length": SIZE,
    }),
    (F.binary_code, {"positions": ints(1, 2), "num_bits": 3}, {
        "positions": POSITIONS, "num_bits": [*SIZE, 32],
    }),
    (F.sinusoidal_code, {
        "positions": ints(1, 2), "model_dim": 4, "theta": 1e4, "layout": "half",
    }, {
        "positions": POSITIONS, "model_dim": [*SIZE, 3], "theta": POSITIVE[:-2],
        "layout": ["both", None], "endpoint": [1, "no"],
    }),
    (F.sinusoidal_grid_code, {
        "rows": ints(1, 2), "columns": ints(1, 2), "model_dim": 4, "theta": 1e4,
    }, {
        "rows": POSITIONS, "columns": [ints(1, 3), floats(1, 2)], "model_dim": [*SIZE, 6],
        "theta": POSITIVE[:-2],
    }),
    (F.inverse_frequencies, {"theta": 1e4, "rotary_dim": 4}, {
        "theta": POSITIVE[:-2], "rotary_dim": [*SIZE, 3],
    }),
    (F.patch_angles,
     {"positions": ints(1, 3), "grid": (2, 1), "prefix": 1, "theta": 100.0, "head_dim": 8}, {
        "positions": [floats(1, 3), ints(3)], "theta": POSITIVE, "head_dim": [0, 6, 8.0, "8"],
        "prefix": [-1, 1.0, "1"], "grid": [(2,), (0, 1), 2, "ab", (2.0, 1)],
    }),
    (F.rotary_angles, {"positions": ints(1, 3), "inverse_frequencies": floats(4)}, {
        "positions": POSITIONS, "inverse_frequencies": [floats(2, 2), ints(4), [1.0]],
    }),
    (F.sinusoidal_frequencies, {"model_dim": 4, "theta": 1e4}, {
        "model_dim": [*SIZE, 3], "theta": POSITIVE[:-2], "endpoint": [1, "no"],
    }),
    (F.wavelengths, {"frequencies": floats(4)}, {"frequencies": FREQUENCIES}),
    (F.code_inner_products, {"frequencies": floats(4), "distances": ints(3)}, {
        "frequencies": FREQUENCIES, "distances": POSITIONS,
    }),
    (F.code_distance, {"frequencies": floats(4), "distances": ints(3)}, {
        "frequencies": FREQUENCIES, "distances": POSITIONS,
    }),
    (F.first_return, {"frequencies": np.ones(4), "tolerance": 0.1, "limit": 9}, {
        "frequencies": FREQUENCIES, "tolerance": [0, -1, NAN, "1"], "limit": SIZE,
    }),
    (F.rotation_matrix, {"positions": ints(3), "frequencies": floats(4), "layout": "half"}, {
        "positions": [*POSITIONS, ints(1, 3)], "frequencies": FREQUENCIES, "layout": [None],
    }),
    (F.rope_decay, {"frequencies": floats(4), "distances": ints(3)}, {
        "frequencies": FREQUENCIES, "distances": POSITIONS,
    }),
    (F.rope_score_bound, {
        "query": floats(2, 8), "key": floats(2, 8), "frequencies": floats(4), "distances": ints(3),
        "layout": "half",
    }, {
        "query": [floats(2, 6), ints(2, 8)], "key": [floats(8), ints(2, 8)],
        "frequencies": FREQUENCIES, "distances": [*POSITIONS, ints(1, 3)], "layout": ["both"],
    }),
    (F.score_terms, SCORED | {"code": floats(3, 8)}, {
        "content": [floats(3), ints(3, 8)], "code": [floats(4, 8), ints(3, 8)],
        "query_kernel": [floats(7, 2), ints(8, 2)], "key_kernel": [floats(8, 3), ints(8, 2)],
    }),
    (F.position_scores, {
        "scheme": F.RoPE(), "content": floats(3, 8), "query_kernel": floats(8, 2, 4),
        "key_kernel": floats(8, 2, 4),
    }, {
        "scheme": ["rope", None], "content": [floats(3), ints(3, 8)],
        "query_kernel": [floats(8, 2), ints(8, 2, 4)], "key_kernel": [floats(8, 3, 4)],
    }),
    (F.relative_share, {"scores": floats(2, 3, 4)}, {"scores": [ints(3, 3), floats(3), [[1.0]]]}),
    (F.step_sizes, {"codes": floats(3, 4)}, {"codes": [ints(3, 4), floats(3), None]}),
    (F.first_collision, {"codes": np.ones((3, 4)), "tolerance": 0}, {
        "codes": [ints(3, 4), floats(3), None], "tolerance": NOT_NEGATIVE,
    }),
    (F.apply_rope, ROTATED, {
        "x": [floats(2, 3, 8), ints(2, 3, 4, 8)], "positions": [*POSITIONS, ints(3), ints(1, 4)],
        "inverse_frequencies": [floats(5), ints(4), floats(2, 2)], "layout": ["rotary", None],
        "attention_factor": [NAN, "1"],
    }),
    (F.alibi_slopes, {"num_heads": 3}, {"num_heads": SIZE}),
    (F.alibi_bias, {"slopes": floats(4)} | PLACES, {
        "slopes": [floats(2, 2), ints(4), [1.0]], "query_positions": POSITIONS,
        "key_positions": [*POSITIONS, ints(5)],
    }),
    (F.t5_bucket, {
        "relative_position": ints(3), "bidirectional": True, "num_buckets": 8, "max_distance": 20,
    }, {
        "relative_position": [floats(3), bools(3), np.array([2**33]), 3],
        "bidirectional": [1, "no"], "num_buckets": [*SIZE, 3], "max_distance": [*SIZE, 2],
    }),
    (F.log_bucket, {"distance": ints(3), "num_buckets": 8, "max_distance": 20}, {
        "distance": [floats(3), bools(3), np.array([2**33]), 3],
        "num_buckets": [*SIZE, 2, 7, 40], "max_distance": [*SIZE, 5],
    }),
    (F.distance_scores, {
        "query": floats(1, 3, 4, 8), "key": floats(1, 5, 2, 8),
        "position_keys": floats(7, 2, 8), "position_queries": floats(7, 4, 8),
    }, {
        "query": [floats(3, 4, 8), ints(1, 3, 4, 8)], "key": [floats(1, 5, 2, 4)],
        "position_keys": [floats(6, 2, 8), floats(7, 4, 8), ints(7, 2, 8)],
        "position_queries": [floats(7, 2, 8), floats(7, 4, 4), [1.0]],
    }),
    (F.t5_bias, {"table": floats(8, 4), "bidirectional": True, "max_distance": 20} | PLACES, {
        "table": [floats(8), ints(8, 4)], "query_positions": POSITIONS, "key_positions": POSITIONS,
        "bidirectional": [None], "max_distance": SIZE,
    }),
    (F.patch_bias, {"table": floats(18, 4), "grid": (2, 3), "prefix": 1} | PLACES, {
        "table": [floats(18), ints(18, 4), floats(15, 4)], "query_positions": POSITIONS,
        "key_positions": POSITIONS, "grid": [(3, 3), (2,), 6, (0, 3)], "prefix": [-1, 0.5, 0],
    }),
    (F.resize_offsets, {"table": floats(18, 3), "old_grid": (2, 3), "new_grid": (4, 3)}, {
        "table": [floats(14, 3), floats(18), ints(18, 3)], "old_grid": [(2,), (2, 0), 6],
        "new_grid": [(0, 3), "43"],
    }),
    (F.patches, {"images": floats(2, 4, 6, 3), "size": (2, 3)}, {
        "images": [floats(4, 6, 3), None], "size": [(3, 3), (2,), 2, (0, 3), (2.0, 3), "23"],
    }),
    (F.resize_positions, {
        "table": floats(7, 3), "old_grid": (2, 3), "new_grid": (4, 3), "prefix": 1,
    }, {
        "table": [floats(6, 3), floats(7), ints(7, 3)], "old_grid": [(2,), (2, 0), 6],
        "new_grid": [(0, 3), "43"], "prefix": [-1, 0.5],
    }),
    (F.positions_on_grids, {
        "table": floats(6, 3), "old_grid": (2, 3), "grids": ints(2, 2), "length": 4,
    }, {
        "table": [floats(7, 3), floats(6), ints(6, 3)], "old_grid": [(2,), (2, 0), 6],
        "grids": [floats(2, 2), ints(2), ints(2, 3)], "length": SIZE,
    }),
    (F.cross_entropy, LOSS, {
        "logits": [ints(2, 3, 5), floats()],
        "targets": [floats(2, 3), bools(2, 3), ints(2), ints(3, 2), np.full((2, 3), 5), [[0]]],
        "weights": [floats(2), keys(2, 3), 1.0],
        "label_smoothing": [2, -0.1, NAN, "0"], "z_loss": NOT_NEGATIVE,
    }),
    (F.chunked_cross_entropy, CHUNKED, {
        "hidden": [floats(2, 4), ints(2, 3, 4)], "head": [floats(5, 4), ints(4, 5)],
        "targets": [floats(2, 3), ints(2), np.full((2, 3), -1)], "chunk_size": SIZE,
        "bias": [floats(4), ints(5)], "softcap": POSITIVE[:-2], "label_smoothing": [2, NAN],
        "weights": [floats(3)],
    }),
    (soft_divergence, {"student": floats(2, 5), "teacher": floats(2, 5), "temperature": 2.0}, {
        "student": [ints(2, 5), None], "teacher": [floats(1, 5), ints(2, 5)],
        "temperature": POSITIVE,
    }),
    (cosine_distance, {"student": floats(2, 5), "teacher": floats(2, 5)}, {
        "student": [ints(2, 5)], "teacher": [floats(5), None],
    }),
    (F.dpo_loss, PREFERENCES, {
        **{name: [floats(2, 1), ints(2), None] for name in LOGPS}, "beta": POSITIVE,
        "loss_type": ["ipo", "dpo", None], "label_smoothing": [0.5, -0.1, NAN, "0", True],
    }),
    (F.kto_loss, JUDGED, {
        **{name: [floats(2, 1), ints(2), None] for name in JUDGED if name.endswith("logps")},
        "desirable": [floats(2), bools(3)], "valid": [floats(2)], "beta": POSITIVE,
        "desirable_weight": [-0.1, NAN, "0"], "undesirable_weight": [-0.1, NAN, True],
    }),
    (partial(F.dpo_loss, loss_type="ipo", rejected_lengths=ints(2)),
     PREFERENCES | {"chosen_lengths": ints(2)}, {
        "chosen_lengths": [None, ints(3), bools(2)],
    }),
    (F.greedy, {"logits": floats(2, 5)}, {"logits": LOGITS}),
    (F.scale_temperature, {"logits": floats(2, 5), "temperature": 0.7}, {
        "logits": LOGITS, "temperature": [*POSITIVE, 1e-45],
    }),
    (F.top_k_filter, {"logits": floats(2, 5), "top_k": 2}, {"logits": LOGITS, "top_k": SIZE}),
    *((function, {"logits": floats(2, 5), name: 0.5}, {"logits": LOGITS, name: PROBABILITY})
      for name, function in (("top_p", F.top_p_filter), ("min_p", F.min_p_filter),
                             ("typical_p", F.typical_filter), ("epsilon", F.epsilon_filter),
                             ("epsilon", F.eta_filter))),
    (F.ban_tokens, {"logits": floats(2, 5), "tokens": (1, 2)}, {
        "logits": LOGITS, "tokens": [(5,), (-1,), (1.0,), (True,), 3, "1", ("a",)],
    }),
    (F.force_token, {"logits": floats(2, 5), "token": 1}, {
        "logits": LOGITS, "token": [5, -1, 1.0, True, "1", None],
    }),
    (F.sample, {"keys": keys(2), "logits": floats(2, 5)}, {
        "logits": LOGITS, "keys": [jax.random.key(0), keys(5), floats(2), None],
    }),
    (F.token_log_probabilities, {"logits": floats(2, 5), "tokens": ints(2)}, {
        "logits": LOGITS, "tokens": [floats(2), ints(2, 1), bools(2), np.array([0, 5])],
    }),
    (F.token_counts, {"tokens": ints(2, 5), "counted": bools(2, 5), "vocab_size": 7}, {
        "tokens": [ints(5), floats(2, 5)], "counted": NOT_BOOL, "vocab_size": SIZE,
    }),
    (F.repetition_penalty, {"logits": floats(2, 5), "seen": bools(2, 5), "penalty": 1.2}, {
        "logits": [ints(2, 5), floats(5)], "seen": NOT_BOOL, "penalty": POSITIVE,
    }),
    (F.presence_penalty, {"logits": floats(2, 5), "seen": bools(2, 5), "penalty": -1.2}, {
        "logits": [ints(2, 5), floats(5)], "seen": NOT_BOOL, "penalty": [NAN, INF, "1"],
    }),
    (F.frequency_penalty, {"logits": floats(2, 5), "counts": ints(2, 5), "penalty": -1.2}, {
        "logits": [ints(2, 5), floats(5)], "counts": [floats(2, 5), ints(5)],
        "penalty": [NAN, INF, "1"],
    }),
    (F.no_repeat_ngram, HISTORY | {"ngram_size": 2}, {
        "logits": [ints(2, 5)], "tokens": [floats(2, 7), ints(7)], "lengths": [ints(3), floats(2)],
        "ngram_size": SIZE,
    }),
    (partial(F.no_repeat_ngram, ngram_size=2), HISTORY | {"source": ints(2, 3)}, {
        "source": [floats(2, 3), ints(3)],
    }),
    (F.bias_sequences, HISTORY | {"sequences": ((1, 2),), "biases": (0.5,)}, {
        "logits": [ints(2, 5)], "tokens": [floats(2, 7)], "lengths": [ints(2, 1)],
        "sequences": [((),), (1, 2), ((5,),), 3], "biases": [(), (0.5, 1.0), (NAN,), 0.5, ("a",)],
    }),
    (F.ban_sequences, HISTORY | {"sequences": ((1, 2),)}, {
        "logits": [ints(2, 5)], "tokens": [floats(2, 7)], "lengths": [ints(2, 1)],
        "sequences": [((),), (1, 2), ((5,),), ((1.5,),), 3, None],
    }),
    (accept_greedily, PROPOSED, {
        "tokens": [floats(2, 3), ints(2)], "count": [ints(3), floats(2)],
        "target": [floats(2, 3, 5), ints(2, 4, 5)],
    }),
    (accept_by_chance, PROPOSED | {"keys": keys(2, 4), "draft": floats(2, 3, 5)}, {
        "keys": [keys(2), keys(2, 3)], "draft": [floats(2, 4, 5), ints(2, 3, 5)],
    }),
    (F.sliding_window, {"size": 3}, {
        "size": [*SIZE, "a"], "query_offset": [2.0, True, "1", floats(2), ints(2, 2)],
    }),
    (F.block_sparse, {"length": 12, "block_size": 4}, {"length": SIZE, "block_size": SIZE}),
    (F.block_numbers, {"segments": ints(2, 5), "size": 2}, {
        "segments": [floats(2, 5), ints(5)], "size": SIZE,
    }),
    (F.block_sums, {"x": floats(2, 5, 3), "segments": ints(2, 5), "size": 2}, {
        "x": [ints(2, 5, 3), floats(2, 5)], "segments": [floats(2, 5), ints(3, 5)],
        "size": SIZE,
    }),
    (F.causal, {}, {"query_offset": [2.0, None, floats(2), ints(2, 2), np.array([2**32])]}),
    (F.Band, {}, {"before": [2.5, True, "3"], "after": [0.5, floats(2)]}),
    (F.Prefix, {"lengths": ints(2)}, {"lengths": [floats(2), bools(2), ints(2, 1), 3]}),
    (F.KeyPadding, {"valid": bools(2, 5)}, {
        "valid": [floats(2, 5), np.array([[0, -INF]]), np.array([[0, 2]]), bools(5), [[True]]],
    }),
    (F.DenseMask, {"allowed": bools(1, 3, 5)}, {
        "allowed": [floats(1, 3, 5), np.array([[[0, -INF]]]), bools(3, 5), bools(2, 1, 3, 5), [1]],
    }),
    (F.Segments, {"query": ints(2, 3), "key": ints(2, 5)}, {
        "query": [floats(2, 3), bools(2, 3), ints(3), None], "key": [ints(3, 5), floats(2, 5)],
    }),
    (F.add_loss, {"name": "a", "value": floats(), "weight": 0.1}, {
        "name": ["", 3, None], "value": [floats(2), ints(), 1], "weight": [NAN, INF, "1", None],
    }),
    (F.add_metric, {"name": "a", "value": floats()}, {
        "name": ["", 3, None], "value": [floats(2), ints(), 1],
    }),
]  # fmt: skip
WRONG = [
    pytest.param(
        function,
        good | {name: value},
        name,
        id=f"{getattr(function, '__name__', 'attention')}-{name}-{i}",
    )
    for function, good, wrong in CASES
    for name, values in wrong.items()
    for i, value in enumerate(values)
]


@pytest.mark.parametrize(("function", "arguments", "name"), WRONG)
def test_a_wrong_argument_is_named(function, arguments, name):
    with pytest.raises((ArgumentError, AssertionError)) as error:
        jax.block_until_ready(function(**arguments))
    message = str(error.value)
    assert message.splitlines() == [message], "one line"
    assert name in message, message
    assert "must be" in message or ": " in message


@pytest.mark.parametrize(("function", "arguments"), [case[:2] for case in CASES])
def test_the_arguments_are_right_otherwise(function, arguments):
    if function is not F.activation:
        jax.eval_shape(partial(_call, function, arguments))


def _call(function, arguments):
    function(**arguments)


def test_every_public_function_has_a_case():
    names = {name for name in F.__all__ if name[0].islower()}
    functions = {name for name in names if not name.startswith("assert_")}  # which refuse others
    functions -= {"per_device"}  # of a function and any arrays
    tried = {getattr(function, "__name__", "attention") for function, _, _ in CASES}
    assert functions <= tried


def test_ordinary_numbers_are_fine():
    """Scalars of NumPy and JAX, and those that are traced where nothing needs to know them."""
    for number in (np.float32, np.float64, jnp.float32):
        F.attention(**ATTENTION, scale=number(0.5), softcap=number(30), dropout_rate=number(0.5))
        F.rms_norm(**NORM | {"eps": number(1e-6)}, unit_offset=False)
        F.scale_temperature(floats(2, 5), number(0.7))
        F.top_p_filter(floats(2, 5), number(0.7))
    for integer in (int, np.int64, np.uint8, jnp.int32):
        assert F.sliding_window(integer(3)) == F.sliding_window(3)
        F.top_k_filter(floats(2, 5), integer(3))
        F.ban_tokens(floats(2, 5), [integer(3)])
        F.alibi_slopes(integer(3))

    @jax.jit
    def traced(number):
        x = F.scale_temperature(floats(2, 5), number)
        x = F.min_p_filter(F.top_p_filter(x, number), number)
        return F.layer_norm(x, None, None, eps=number)

    traced(0.5)
    F.rms_norm(floats(2, 3).astype(jnp.bfloat16), None, eps=0, unit_offset=False)


@pytest.mark.parametrize("implementation", ["auto", "reference", "blockwise"])
@pytest.mark.parametrize("sizes", [(0, 3, 5), (2, 0, 5), (2, 3, 0), (0, 0, 0)])
def test_nothing_to_attend_to_or_with(sizes, implementation):
    batch, length, num_keys = sizes
    query, key = floats(batch, length, 4, 8), floats(batch, num_keys, 2, 8)
    attend = partial(F.attention, mask=F.causal(), implementation=implementation)
    output, pull = jax.vjp(lambda *arrays: attend(*arrays), query, key, key)
    assert output.shape == query.shape
    assert not output.any()
    assert [x.shape for x in pull(output)] == [query.shape, key.shape, key.shape]


def test_an_array_of_bool_is_a_mask():
    allowed = np.tri(3, 5, 1, bool) & (np.arange(2) < 9)[:, None, None]
    expected = F.attention(**ATTENTION, mask=F.DenseMask(jnp.asarray(allowed)))
    for mask in (
        allowed,
        jnp.asarray(allowed),
        allowed[:, None],
        allowed[0],
        allowed[:1],
        1 * allowed,
    ):
        np.testing.assert_array_equal(F.attention(**ATTENTION, mask=mask), expected)


@pytest.mark.parametrize("other", [np.ones((1, 3, 5), bool), "causal", None])
def test_a_mask_is_combined_with_masks(other):
    with pytest.raises(ArgumentError, match=r"other = .*: must be a mask"):
        F.causal() & other
    if isinstance(other, np.ndarray):
        with pytest.raises(TypeError, match=r"'numpy.ndarray' and 'Band'"):
            other & F.causal()


@pytest.mark.parametrize("target", [-100, -1, 5, 2**20])
def test_a_target_beyond_the_vocabulary_is_no_loss(target):
    """Unless its weight is 0; a traced one cannot be refused."""
    logits, hidden, head = floats(1, 2, 5), floats(1, 2, 4), floats(4, 5)
    targets = jnp.array([[target, 1]])
    for weights, finite in ((None, False), (floats(1, 2), False), (jnp.array([[0.0, 1.0]]), True)):
        for loss in (
            partial(F.cross_entropy, logits),
            partial(F.chunked_cross_entropy, hidden, head, chunk_size=1),
        ):
            assert bool(jnp.isfinite(jax.jit(loss)(targets, weights).loss)) == finite


def masked_attention(query, key):
    return F.attention(query, key, key, mask=F.causal(2), softcap=30.0)


def loss_of_layer(x, up, down):
    hidden = F.feed_forward(x, up, down, activation=F.gelu)
    hidden = F.rms_norm(hidden, None, eps=1e-6, unit_offset=False)
    return F.chunked_cross_entropy(hidden, down, ints(2, 3), chunk_size=2).loss


@pytest.mark.parametrize(
    ("function", "arrays"),
    [
        (masked_attention, (QUERY, KEY)),
        (loss_of_layer, (floats(2, 3, 4), floats(4, 4), floats(4, 4))),
    ],
)
def test_nothing_is_added_to_what_is_compiled(function, arrays, monkeypatch):
    """Checks of shapes, dtypes and Python's numbers leave no trace in the program."""

    def lowered():
        jax.clear_caches()
        return jax.jit(jax.grad(lambda *a: jnp.sum(function(*a)))).lower(*arrays).as_text()

    expected = lowered()
    checks = [name for name in vars(assertions) if name.startswith("assert_")]
    modules = [
        sys.modules["jaxformer.functional.attention.api"],
        feedforward,
        linear,
        losses,
        masks,
        norms,
    ]
    for module in modules:
        for name in set(checks) & set(vars(module)) - {"assert_axes"}:
            monkeypatch.setattr(module, name, lambda *_, **__: None)
    monkeypatch.setattr(assertions.chex, "assert_shape", lambda *_, **__: None)
    assert lowered() == expected
