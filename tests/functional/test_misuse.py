"""Wrong arguments of every public function: one sentence that names the argument.

`test_ordinary_numbers_are_fine` holds the other side: what is ordinary is not refused.
"""

import inspect
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import (
    INF,
    NAN,
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    RATE,
    SIZE,
    Row,
    bools,
    each_row,
    floats,
    ints,
    keys,
    refusal,
)

import jaxformer.functional as F
from jaxformer.functional import arrays as assertions
from jaxformer.functional import (
    feedforward,
    linear,
    masks,
    norms,
)
from jaxformer.functional.linear import lookup
from jaxformer.functional.losses import cross_entropy as losses
from jaxformer.functional.losses.distillation import cosine_distance, soft_divergence
from jaxformer.functional.sampling.speculative import accept_by_chance, accept_greedily

FAR = [np.array([[2**32]]), np.array([[-(2**40)]])]
"""Positions that int32 does not hold."""
GRID = [(2,), (0, 3), 6, (2.0, 3)]

QUERY, KEY = floats(2, 3, 4, 8), floats(2, 5, 2, 8)
ATTENTION = {"query": QUERY, "key": KEY, "value": KEY}
NORM = {"x": floats(2, 3, 4), "scale": floats(4), "eps": 1e-6}
FREQUENCIES = {"frequencies": floats(4)}
PLACES = {"query_positions": ints(1, 3), "key_positions": ints(2, 5)}
FAR_PLACES = dict.fromkeys(PLACES, FAR)
LOGITS = {"logits": floats(2, 5)}
NO_LOGITS = {"logits": [(), (2, 0)]}
HISTORY = LOGITS | {"tokens": ints(2, 7), "lengths": ints(2)}
NO_HISTORY = {"tokens": [(7,)], "lengths": [(3,), (2, 1)]}
PROPOSED = {"tokens": ints(2, 3), "count": ints(2), "target": floats(2, 4, 5)}
LOSS = {"targets": ints(2, 3), "weights": floats(2, 3), "label_smoothing": 0.1, "z_loss": 0.1}
NO_LOSS = {
    "targets": [(2,), (3, 2), np.full((2, 3), 5), bools(2, 3)], "weights": [(2,), keys(2, 3)],
    "label_smoothing": PROBABILITY, "z_loss": NOT_NEGATIVE,
}  # fmt: skip
LOGPS = ("chosen_logps", "rejected_logps", "ref_chosen_logps", "ref_rejected_logps")
JUDGED = ("logps", "ref_logps", "other_logps", "ref_other_logps")

ROWS = [
    Row(F.attention, ATTENTION | {
        "mask": bools(3, 5), "bias": floats(1, 1, 3, 5), "scale": 0.5, "softcap": 30.0,
        "sinks": floats(4), "dropout_rate": 0.5, "dropout_key": jax.random.key(0),
        "implementation": "reference",
    }, {
        "query": [(2, 3, 4), (2, 3, 3, 8), (2, 3, 0, 8)], "key": [(3, 5, 2, 8), (2, 5, 2, 6)],
        "value": [(2, 4, 2, 8), (2, 5, 4, 8)], "scale": [INF, floats(2)], "softcap": POSITIVE,
        "mask": [
            (5, 3), (2, 5), (3, 3, 5), (2, 4, 3, 5), (5,), 1, np.where(np.tri(3, 5), 0, -INF),
            np.full((3, 5), -10000),
        ],
        "bias": [
            (3, 5), (2, 3, 3, 5), (1, 1, 3, 1),
            F.ALiBi().bias(ints(1, 3), ints(1, 4), num_heads=4),
        ], "dropout_rate": RATE, "dropout_key": [keys(2)], "sinks": [(), (2,), (1, 4), keys(4)],
        "distances": [
            floats(7, 2, 8), F.DistanceTerms(floats(6, 2, 8), None, 3),
            F.DistanceTerms(None, floats(7, 2, 8), 3), F.DistanceTerms(floats(7, 2, 8), None, 4),
        ],
    }),
    Row(lambda allowed: F.attention(**ATTENTION, mask=F.DenseMask(allowed)), {
        "allowed": bools(1, 3, 5),
    }, {"allowed": [(1, 5, 3)]}, name="DenseMask"),
    Row(lambda valid: F.attention(**ATTENTION, mask=F.KeyPadding(valid)), {
        "valid": bools(2, 5),
    }, {"valid": [(2, 6)]}, name="KeyPadding"),
    Row(F.dropout, {"x": floats(3), "rate": 0.5, "key": jax.random.key(0)}, {
        "rate": RATE, "key": [keys(2)],
    }),
    Row(F.linear, {
        "x": floats(2, 3), "kernel": floats(3, 4), "bias": floats(4), "contract": 1,
    }, {"x": [()], "kernel": [(4, 3), (4,)], "bias": [(3,)], "contract": SIZE,
        "dtype": ["int8", bool]}),
    Row(F.feed_forward, {
        "x": floats(2, 3), "up": floats(3, 5), "down": floats(5, 3), "activation": jnp.tanh,
        "gate": floats(3, 5), "up_bias": floats(5), "gate_bias": floats(5), "down_bias": floats(3),
    }, {
        "up": [(5, 4), (3,)], "down": [(3, 5)], "gate": [(3, 4)], "activation": ["gelu", None],
        "up_bias": [(3,)], "gate_bias": [(3,)], "down_bias": [(5,)],
    }),
    Row(F.grouped_linear, {
        "x": floats(4, 3), "kernels": floats(2, 3, 5), "sizes": ints(2), "implementation": "ragged",
    }, {
        "x": [(4,)], "kernels": [(3, 5), (2, 4, 5)], "sizes": [(3,)], "implementation": ["gmm"],
    }),
    Row(F.expert_feed_forward, {
        "x": floats(1, 4, 3), "experts": ints(1, 4, 2), "weights": floats(1, 4, 2),
        "up": floats(5, 3, 6), "down": floats(5, 6, 3), "activation": jnp.tanh,
        "gate": floats(5, 3, 6), "up_bias": floats(5, 6), "gate_bias": floats(5, 6),
        "down_bias": floats(5, 3), "real": bools(1, 4), "implementation": "blocks",
    }, {
        "x": [(4, 3)], "experts": [(1, 3, 2), np.full((1, 4, 2), 5)], "weights": [(1, 4, 3)],
        "up": [(5, 4, 6), None], "down": [(5, 3, 6), None], "activation": ["gelu", None],
        "gate": [(3, 6)], "up_bias": [(6,)], "gate_bias": [(5, 3)], "down_bias": [(5, 6)],
        "real": [(4,)], "implementation": ["gmm"],
    }),
    Row(F.expert_load, {
        "probabilities": floats(2, 4, 5), "experts": ints(2, 4, 2), "real": bools(1, 4),
    }, {
        "probabilities": [(4, 5)], "experts": [(1, 4, 2), np.full((2, 4, 2), 5)], "real": [(2, 3)],
    }),
    Row(F.within_capacity, {
        "experts": ints(2, 4, 2), "num": 5, "capacity": 1.5, "real": bools(1, 4),
    }, {
        "experts": [(4, 2), np.full((2, 4, 2), 5)], "num": SIZE, "capacity": POSITIVE,
        "real": [(2, 3)],
    }),
    Row(F.balance_loss, {
        "load": F.expert_load(floats(2, 4, 5), ints(2, 4, 2)),
    }, {"load": [None, floats(5)]}, free=("load",)),
    Row(F.router_z_loss, {"logits": floats(2, 4, 5), "real": bools(2, 4)}, {
        "logits": [(4, 5)], "real": [(2, 3)],
    }),
    Row(F.add_product_loss, {
        "name": "a", "left": floats(3), "right": floats(3), "size": jnp.ones(()), "weight": 0.1,
    }, {
        "name": ["", 3, None], "left": [(4, 1)], "right": [(2, 3)], "size": [floats(2), ints(), 1],
        "weight": [INF, None],
    }, free=("name", "size")),
    Row(F.gelu, {"x": floats(2)}),
    Row(F.quick_gelu, {"x": floats(2)}),
    Row(F.layer_norm, NORM | {"bias": floats(4)}, {
        "x": [None], "scale": [(3,), (1, 1, 2, 3, 4)], "bias": [(3, 3)], "eps": NOT_NEGATIVE,
    }),
    Row(F.rms_norm, NORM | {"unit_offset": False}, {"scale": [(3,)], "eps": NOT_NEGATIVE}),
    Row(lookup, {"table": floats(4, 3), "ids": ints(2)}, {
        "table": [(4,), None], "ids": [np.array([4]), np.array([-1]), np.array([2**32])],
    }, free=("table",)),
    Row(F.learned_code, {"table": floats(4, 3), "positions": ints(1, 2)}, {
        "table": [(4,)], "positions": [*FAR, np.array([[4]])],
    }),
    Row(F.integer_code, {"positions": ints(1, 2), "max_length": 3}, {
        "positions": FAR, "max_length": SIZE,
    }),
    Row(F.binary_code, {"positions": ints(1, 2), "num_bits": 3}, {
        "positions": FAR, "num_bits": [*SIZE, 32],
    }),
    Row(F.sinusoidal_code, {
        "positions": ints(1, 2), "model_dim": 4, "theta": 1e4, "layout": "half", "endpoint": False,
    }, {"positions": FAR, "model_dim": [*SIZE, 3], "theta": POSITIVE}),
    Row(F.sinusoidal_grid_code, {
        "rows": ints(1, 2), "columns": ints(1, 2), "model_dim": 4, "theta": 1e4,
    }, {"rows": FAR, "columns": [(1, 3)], "model_dim": [*SIZE, 6], "theta": POSITIVE}),
    Row(F.inverse_frequencies, {"theta": 1e4, "rotary_dim": 4}, {
        "theta": POSITIVE, "rotary_dim": [*SIZE, 3],
    }),
    Row(F.patch_angles, {
        "positions": ints(1, 3), "grid": (2, 1), "prefix": 1, "theta": 100.0, "head_dim": 8,
    }, {"positions": [(3,)], "theta": POSITIVE, "head_dim": [0, 6], "prefix": [-1], "grid": GRID}),
    Row(F.rotary_angles, {"positions": ints(1, 3), "inverse_frequencies": floats(4)}, {
        "positions": FAR, "inverse_frequencies": [(2, 2)],
    }),
    Row(F.sinusoidal_frequencies, {"model_dim": 4, "theta": 1e4, "endpoint": False}, {
        "model_dim": [*SIZE, 3], "theta": POSITIVE,
    }),
    Row(F.wavelengths, FREQUENCIES, {"frequencies": [(2, 2)]}),
    *(Row(function, FREQUENCIES | {"distances": ints(3)}, {
        "frequencies": [(2, 2), (0,), None], "distances": FAR,
    }) for function in (F.code_inner_products, F.code_distance, F.rope_decay)),
    Row(F.first_return, FREQUENCIES | {"tolerance": 0.1, "limit": 9}, {
        "frequencies": [(2, 2)], "tolerance": [0, -1], "limit": SIZE,
    }),
    Row(F.rotation_matrix, FREQUENCIES | {"positions": ints(3), "layout": "half"}, {
        "frequencies": [(2, 2)], "positions": [*FAR, (1, 3)],
    }),
    Row(F.rope_score_bound, FREQUENCIES | {
        "query": floats(2, 8), "key": floats(2, 8), "distances": ints(3), "layout": "half",
    }, {"query": [(2, 6)], "key": [(8,)], "distances": [(1, 3), *FAR]}),
    Row(F.score_terms, {
        "content": floats(3, 8), "code": floats(3, 8), "query_kernel": floats(8, 2),
        "key_kernel": floats(8, 2),
    }, {"content": [(3,)], "code": [(4, 8)], "query_kernel": [(7, 2)], "key_kernel": [(8, 3)]}),
    Row(F.position_scores, {
        "scheme": F.RoPE(), "content": floats(3, 8), "query_kernel": floats(8, 2, 4),
        "key_kernel": floats(8, 2, 4),
    }, {"content": [(3,)], "query_kernel": [(8, 2)], "key_kernel": [(8, 3, 4)]}),
    Row(partial(F.position_scores, F.Learned(4), floats(3, 8), floats(8, 2, 4), floats(8, 2, 4)), {
        "table": floats(4, 8),
    }, {"table": [None, (4, 7)]}, name="position_scores"),
    Row(F.relative_share, {"scores": floats(2, 3, 4)}, {"scores": [(3,)]}),
    Row(F.step_sizes, {"codes": floats(3, 4)}, {"codes": [(3,)]}),
    Row(F.first_collision, {"codes": floats(3, 4), "tolerance": 0.5}, {
        "codes": [(3,)], "tolerance": NOT_NEGATIVE,
    }),
    Row(F.apply_rope, {
        "x": floats(2, 3, 4, 8), "positions": ints(1, 3), "inverse_frequencies": floats(4),
        "layout": "half", "attention_factor": 1.0,
    }, {
        "x": [(2, 3, 8)], "positions": [*FAR, (3,), (1, 4)], "inverse_frequencies": [(5,), (2, 2)],
    }),
    Row(F.alibi_slopes, {"num_heads": 3, "max_exponent": 8.0}, {
        "num_heads": SIZE, "max_exponent": POSITIVE,
    }),
    Row(F.alibi_bias, {"slopes": floats(4)} | PLACES, {
        "slopes": [(2, 2)], "query_positions": FAR, "key_positions": [*FAR, (5,)],
    }),
    Row(F.t5_bucket, {
        "relative_position": ints(3), "bidirectional": True, "num_buckets": 8, "max_distance": 20,
    }, {
        "relative_position": [np.array([2**33])], "num_buckets": [*SIZE, 3],
        "max_distance": [*SIZE, 2],
    }),
    Row(F.log_bucket, {"distance": ints(3), "num_buckets": 8, "max_distance": 20}, {
        "distance": [np.array([2**33])], "num_buckets": [*SIZE, 2, 7, 40],
        "max_distance": [*SIZE, 5],
    }),
    Row(F.distance_scores, {
        "query": floats(1, 3, 4, 8), "key": floats(1, 5, 2, 8),
        "position_keys": floats(7, 2, 8), "position_queries": floats(7, 4, 8),
    }, {
        "query": [(3, 4, 8)], "key": [(1, 5, 2, 4)], "position_keys": [(6, 2, 8), (7, 4, 8)],
        "position_queries": [(7, 2, 8), (7, 4, 4)],
    }),
    Row(F.t5_bias, {"table": floats(8, 4), "bidirectional": True, "max_distance": 20} | PLACES,
        FAR_PLACES | {"table": [(8,)], "max_distance": SIZE}),
    Row(F.patch_bias, {"table": floats(18, 4), "grid": (2, 3), "prefix": 1} | PLACES,
        FAR_PLACES | {"table": [(18,), (15, 4)], "grid": [(3, 3), *GRID], "prefix": [-1, 0]}),
    Row(F.resize_offsets, {"table": floats(18, 3), "old_grid": (2, 3), "new_grid": (4, 3)}, {
        "table": [(14, 3), (18,)], "old_grid": GRID, "new_grid": GRID,
    }),
    Row(F.patches, {"images": floats(2, 4, 6, 3), "size": (2, 3)}, {
        "images": [(4, 6, 3), None, [[[[1]]]]], "size": [(3, 3), *GRID],
    }, free=("images",)),
    Row(F.overlapping_patches, {
        "images": floats(2, 4, 6, 3), "size": (2, 3), "stride": (1, 2),
    }, {
        "images": [(4, 6, 3), None], "size": [(5, 3), *GRID], "stride": GRID,
    }, free=("images",)),
    Row(F.resize_positions, {
        "table": floats(7, 3), "old_grid": (2, 3), "new_grid": (4, 3), "prefix": 1,
    }, {"table": [(6, 3), (7,)], "old_grid": GRID, "new_grid": GRID, "prefix": [-1]}),
    Row(F.positions_on_grids, {
        "table": floats(6, 3), "old_grid": (2, 3), "grids": ints(2, 2), "length": 4,
    }, {"table": [(7, 3), (6,)], "old_grid": GRID, "grids": [(2,), (2, 3)], "length": SIZE}),
    Row(F.cross_entropy, LOSS | {"logits": floats(2, 3, 5)}, NO_LOSS | {"logits": [()]},
        free=("weights",)),
    Row(F.chunked_cross_entropy, LOSS | {
        "hidden": floats(2, 3, 4), "head": floats(4, 5), "bias": floats(5), "chunk_size": 2,
        "softcap": 30.0,
    }, NO_LOSS | {
        "hidden": [(2, 4)], "head": [(5, 4)], "bias": [(4,)], "chunk_size": SIZE,
        "softcap": POSITIVE,
    }, free=("weights",)),
    Row(soft_divergence, {"student": floats(2, 5), "teacher": floats(2, 5), "temperature": 2.0}, {
        "teacher": [(1, 5)], "temperature": POSITIVE,
    }),
    Row(cosine_distance, {"student": floats(2, 5), "teacher": floats(2, 5)}, {"teacher": [(5,)]}),
    Row(F.dpo_loss, dict.fromkeys(LOGPS, floats(2)) | {
        "beta": 0.1, "loss_type": "sigmoid", "label_smoothing": 0.1,
    }, {name: [(2, 1), None] for name in LOGPS} | {
        "beta": POSITIVE, "label_smoothing": [0.5, -0.1],
    }),
    Row(partial(F.dpo_loss, loss_type="ipo"), dict.fromkeys(LOGPS, floats(2)) | {
        "beta": 0.1, "chosen_lengths": ints(2), "rejected_lengths": ints(2),
    }, {"chosen_lengths": [None, (3,)], "rejected_lengths": [None, (3,)]}, name="dpo_loss"),
    Row(F.kto_loss, dict.fromkeys(JUDGED, floats(2)) | {
        "desirable": bools(2), "valid": bools(2), "beta": 0.1, "desirable_weight": 1.0,
        "undesirable_weight": 1.0,
    }, {name: [(2, 1), None] for name in JUDGED} | {
        "desirable": [(3,)], "valid": [(3,)], "beta": POSITIVE, "desirable_weight": [-0.1],
        "undesirable_weight": [-0.1],
    }),
    Row(F.greedy, LOGITS, NO_LOGITS),
    Row(F.scale_temperature, LOGITS | {"temperature": 0.7}, NO_LOGITS | {
        "temperature": [*POSITIVE, 1e-45, [1.0], floats(2)],
    }),
    Row(F.top_k_filter, LOGITS | {"top_k": 2}, NO_LOGITS | {"top_k": SIZE}),
    *(Row(function, LOGITS | {name: 0.5}, NO_LOGITS | {name: [*PROBABILITY, floats(2)]})
      for name, function in (("top_p", F.top_p_filter), ("min_p", F.min_p_filter),
                             ("typical_p", F.typical_filter), ("epsilon", F.epsilon_filter),
                             ("epsilon", F.eta_filter))),
    Row(F.ban_tokens, LOGITS | {"tokens": (1, 2)}, NO_LOGITS | {
        "tokens": [(5,), (-1,), (1.0,), (True,), ("a",)],
    }),
    Row(F.force_token, LOGITS | {"token": 1}, NO_LOGITS | {"token": [5, -1]}),
    Row(F.sample, LOGITS | {"keys": keys(2)}, NO_LOGITS | {"keys": [keys(), keys(5), None]}),
    Row(F.token_log_probabilities, LOGITS | {"tokens": ints(2)}, NO_LOGITS | {
        "tokens": [(2, 1), bools(2), np.array([0, 5])],
    }),
    Row(F.token_counts, {"tokens": ints(2, 5), "counted": bools(2, 5), "vocab_size": 7}, {
        "tokens": [(5,)], "counted": [(5, 2), (2,)], "vocab_size": SIZE,
    }),
    *(Row(function, LOGITS | {name: array, "penalty": 1.2}, {
        "logits": [(5,)], name: [(5, 2), (2,)], "penalty": [*limits, INF],
    }) for function, name, array, limits in (
        (F.repetition_penalty, "seen", bools(2, 5), POSITIVE),
        (F.presence_penalty, "seen", bools(2, 5), ()),
        (F.frequency_penalty, "counts", ints(2, 5), ()),
    )),
    Row(F.no_repeat_ngram, HISTORY | {"ngram_size": 2, "source": ints(2, 3)}, NO_HISTORY | {
        "ngram_size": SIZE, "source": [(3,)],
    }),
    Row(F.bias_sequences, HISTORY | {"sequences": ((1, 2),), "biases": (0.5,)}, NO_HISTORY | {
        "sequences": [((),), (1, 2), ((5,),)], "biases": [(), (0.5, 1.0), (NAN,), ("a",)],
    }),
    Row(F.ban_sequences, HISTORY | {"sequences": ((1, 2),)}, NO_HISTORY | {
        "sequences": [((),), (1, 2), ((5,),), ((1.5,),), None],
    }),
    Row(accept_greedily, PROPOSED, {"tokens": [(2,)], "count": [(3,)], "target": [(2, 3, 5)]}),
    Row(accept_by_chance, PROPOSED | {"keys": keys(2, 4), "draft": floats(2, 3, 5)}, {
        "keys": [keys(2), keys(2, 3)], "draft": [(2, 4, 5)],
    }),
    Row(F.sliding_window, {"size": 3, "query_offset": 0}, {
        "size": SIZE, "query_offset": [floats(2), ints(2, 2)],
    }),
    Row(F.block_sparse, {"length": 12, "block_size": 4}, {"length": SIZE, "block_size": SIZE}),
    Row(F.block_numbers, {"segments": ints(2, 5), "size": 2}, {"segments": [(5,)], "size": SIZE}),
    Row(F.block_sums, {"x": floats(2, 5, 3), "segments": ints(2, 5), "size": 2}, {
        "x": [(2, 5)], "segments": [(3, 5)], "size": SIZE,
    }),
    Row(F.causal, {"query_offset": 0}, {
        "query_offset": [floats(2), ints(2, 2), np.array([2**32])],
    }),
    Row(F.Band, {}, {"before": [2.5, True, "3"], "after": [0.5, floats(2)]}),
    Row(F.Prefix, {"lengths": ints(2)}, {"lengths": [(2, 1), bools(2), 3]}),
    Row(F.KeyPadding, {"valid": bools(2, 5)}, {
        "valid": [(5,), np.array([[0, -INF]]), np.array([[0, 2]])],
    }),
    Row(F.DenseMask, {"allowed": bools(1, 3, 5)}, {
        "allowed": [(3, 5), (2, 1, 3, 5), np.array([[[0, -INF]]])],
    }),
    Row(F.Segments, {"query": ints(2, 3), "key": ints(2, 5)}, {
        "query": [(3,), bools(2, 3), None], "key": [(3, 5)],
    }),
    Row(F.add_loss, {"name": "a", "value": jnp.ones(()), "weight": 0.1}, {
        "name": ["", 3, None], "value": [floats(2), ints(), 1], "weight": [INF, None],
    }, free=("name", "value")),
    Row(F.add_metric, {"name": "a", "value": jnp.ones(())}, {
        "name": ["", 3, None], "value": [floats(2), ints(), 1],
    }, free=("name", "value")),
]  # fmt: skip


@each_row(ROWS)
def test_a_wrong_argument_is_named(row):
    row.check()


def test_every_argument_of_every_public_function_is_tried():
    functions = {name: getattr(F, name) for name in F.__all__ if name[0].islower()}
    tried = {name: set() for name in functions}
    for row in ROWS:
        tried.setdefault(str(row), set()).update(name for name, _ in row.values())
    del functions["per_device"]  # of a function and any arrays
    del functions["activation"]  # of a field: test_refusals.py
    functions = {name: x for name, x in functions.items() if ".audio." not in x.__module__}
    for name, function in functions.items():
        if not name.startswith("assert_"):  # which refuse others
            arguments = set(inspect.signature(function).parameters) - {"return_weights"}
            assert arguments <= tried[name], name


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
    refusal(lambda: F.causal() & other, "other")
    if isinstance(other, np.ndarray):
        with pytest.raises(TypeError, match="Band"):
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
