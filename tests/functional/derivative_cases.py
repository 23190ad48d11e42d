"""Every public function that has a derivative: an example of it, and the same in plain `jnp`."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import functional as F
from jaxformer.functional import norms
from jaxformer.functional.attention import reference
from jaxformer.functional.audio.convolution import grouped_convolution
from jaxformer.functional.linear import Adapted, Quantized, dense, lookup, transposed
from jaxformer.functional.losses import contrastive, distillation
from jaxformer.functional.losses import cross_entropy as losses

# What computes in float32 whatever it is given.
FLOAT32 = 2e-5
FLOAT64 = 1e-10


class Case(NamedTuple):
    """A function of some arrays by their names, a reference for it, and the arrays."""

    function: Callable
    plain: Callable
    inputs: dict[str, np.ndarray]
    tolerance: float = FLOAT64


RANDOM = np.random.default_rng(0)
IDS = np.array([[2, 0, 5], [5, 5, 1]])
TARGETS = np.array([[2, 0, 5, 1, 3], [4, 4, 1, 0, 2]])
POSITIONS = np.array([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]])
FREQUENCIES = np.array([0.3, 0.01])
ALLOWED = np.tril(np.ones((5, 7), bool), 2) & (np.arange(7) > 0)
COUNTS = np.array([[0, 1, 0, 2, 0, 0], [3, 0, 0, 0, 1, 0]])
KEY = jax.random.key(3)
WAVES = {"frequencies": FREQUENCIES}
DISTANCES = np.array([1, 3, 7])


def normal(*shape):
    return RANDOM.normal(size=shape)


def turned(frequencies):
    """The angles of some distances, [T, F]."""
    return DISTANCES[:, None] * frequencies


def partial_sums(angles):
    real, imaginary = (jnp.cumsum(f(angles), axis=-1) for f in (jnp.cos, jnp.sin))
    return jnp.sqrt(real**2 + imaginary**2)


def plain_bound(query, key):
    a, b, c, d = query[:, 0::2], query[:, 1::2], key[:, 0::2], key[:, 1::2]
    parts = []
    for h in (a * c + b * d, b * c - a * d):
        parts.append(jnp.concatenate([h[:, 1:], jnp.zeros((3, 1))], axis=-1) - h)
    largest = jnp.max(jnp.sqrt(parts[0] ** 2 + parts[1] ** 2), axis=-1, keepdims=True)
    return largest * jnp.sum(partial_sums(turned(FREQUENCIES)), axis=-1)


def plain_share(scores):
    centred = scores - jnp.mean(scores)
    rest = 0.0
    for distance in range(-2, 4):
        along = jnp.diagonal(centred, distance)
        rest += jnp.sum((along - jnp.mean(along)) ** 2)
    return 1 - rest / jnp.sum(centred**2)


def plain_rotation(frequencies):
    cos, sin = jnp.cos(turned(frequencies)), jnp.sin(turned(frequencies))
    zero = jnp.zeros(3)
    rows = [
        [cos[:, 0], -sin[:, 0], zero, zero],
        [sin[:, 0], cos[:, 0], zero, zero],
        [zero, zero, cos[:, 1], -sin[:, 1]],
        [zero, zero, sin[:, 1], cos[:, 1]],
    ]
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


def attention(query, key, value, allowed=ALLOWED, bias=0.0, softcap=None, sinks=None):
    """Attention as the paper writes it, with all heads repeated; an empty row gives zeros."""
    key, value = (jnp.repeat(x, query.shape[2] // key.shape[2], axis=2) for x in (key, value))
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) / math.sqrt(key.shape[-1])
    if softcap:
        scores = softcap * jnp.tanh(scores / softcap)
    scores = jnp.where(allowed, scores + bias, -1e30)
    if sinks is not None:
        shape = (*scores.shape[:3], 1)
        scores = jnp.append(scores, jnp.broadcast_to(sinks[None, :, None, None], shape), axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : key.shape[1]]
    return jnp.einsum("bnts,bsnh->btnh", jnp.where(allowed, weights, 0.0), value)


def qkv():
    return {"query": normal(2, 5, 6, 4), "key": normal(2, 7, 2, 4), "value": normal(2, 7, 2, 4)}


attend = partial(F.attention, mask=F.DenseMask(jnp.asarray(ALLOWED)[None]))
T5 = F.T5Bias(num_buckets=6, max_distance=8, bidirectional=True)
KEYS = np.arange(7)[None]
# Which vector each pair of a query and a key has, of those of all distances.
PAIRS = np.arange(7)[None, :] - np.arange(5)[:, None] + 4
VECTORS = {"position_keys": normal(11, 2, 4), "position_queries": normal(11, 6, 4)}


def distances(query, key, position_keys, position_queries):
    """What the distances add to the scores, with a vector for each pair."""
    of_key, key = (jnp.repeat(x, 3, axis=-2) for x in (position_keys, key))
    first = jnp.einsum("btnh,tsnh->bnts", query, of_key[PAIRS])
    return first + jnp.einsum("bsnh,tsnh->bnts", key, position_queries[PAIRS])


def distance_attention(query, key, value, position_keys, position_queries):
    terms = F.DistanceTerms(position_keys, position_queries, num_queries=5)
    return F.attention(query, key, value, distances=terms, implementation="blockwise")


def t5_attention(query, key, value, table):
    bias = T5.bias(jnp.asarray(POSITIONS), jnp.asarray(KEYS), num_heads=6, table=table)
    return F.attention(query, key, value, bias=bias, implementation="blockwise")


def t5_values(table):
    """The bias by a product with which bucket each distance has."""
    distance = jnp.asarray(KEYS[:, None, :] - POSITIONS[:, :, None])
    buckets = F.t5_bucket(distance, bidirectional=True, num_buckets=6, max_distance=8)
    return jnp.einsum("btsc,cn->bnts", jnp.eye(6)[buckets], table)


def token_losses(logits, label_smoothing=0.1, z_loss=0.01):
    log_z = jnp.log(jnp.sum(jnp.exp(logits), axis=-1))
    picked = jnp.sum(np.eye(6)[TARGETS] * logits, axis=-1)
    attracted = (1 - label_smoothing) * picked + label_smoothing * jnp.mean(logits, axis=-1)
    return log_z - attracted + z_loss * log_z**2


def chunked(**arrays):
    options = {"chunk_size": 2, "softcap": 4.0, "label_smoothing": 0.1, "z_loss": 0.01}
    return F.chunked_cross_entropy(**arrays, targets=jnp.asarray(TARGETS), **options).loss


def plain_chunked(hidden, head, bias, weights):
    logits = 4.0 * jnp.tanh((hidden @ head + bias) / 4.0)
    return jnp.sum(token_losses(logits) * weights)


def rotated(x, frequencies):
    angles = POSITIONS[:, :, None, None] * frequencies
    (a, b), cos, sin = jnp.split(x, 2, axis=-1), jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def normalised(x, centre):
    x = x - jnp.mean(x, axis=-1, keepdims=True) if centre else x
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-3)


def convolution_by_taps(x, kernel, groups):
    """A product for each tap and group."""
    size, narrow, _ = kernel.shape
    padded = jnp.pad(x, ((0, 0), (size // 2, size), (0, 0)))
    shifted = [padded[:, tap : tap + x.shape[1]] for tap in range(size)]
    owns = [slice(group * narrow, (group + 1) * narrow) for group in range(groups)]
    return jnp.concatenate(
        [
            sum(taps[..., own] @ kernel[tap, :, own] for tap, taps in enumerate(shifted))
            for own in owns
        ],
        axis=-1,
    )


def filtered(function, *arguments) -> Case:
    """A function that excludes tokens: the identity for the others."""

    def kept(logits):
        y = function(logits, *arguments)
        return jnp.where(jnp.isfinite(y), y, 0.0)

    def plain(logits):
        y = function(jax.lax.stop_gradient(logits), *arguments)
        return jnp.where(jnp.isfinite(y), logits, 0.0)

    return Case(kept, plain, {"logits": normal(2, 6)})


def quantized(x, scales):
    kernel = Quantized(jnp.asarray(np.arange(-7, 8).reshape(5, 3), jnp.int8), scales)
    return F.linear(x, kernel)


def dpo(chosen, rejected):
    pairs = (chosen, rejected, jnp.zeros(4), jnp.ones(4))
    return F.dpo_loss(*pairs, beta=0.3, label_smoothing=0.1).losses


def plain_dpo(chosen, rejected):
    margin = 0.3 * (chosen - rejected + 1.0)
    return 0.9 * jnp.log1p(jnp.exp(-margin)) + 0.1 * jnp.log1p(jnp.exp(margin))


def kto(own):
    judged = (own, jnp.ones(4), jnp.arange(4) < 2, jnp.full(4, 1.5), jnp.ones(4))
    return F.kto_loss(*judged, beta=0.3, desirable_weight=1.0, undesirable_weight=2.0).losses


def plain_kto(own):
    signed = jnp.where(jnp.arange(4) < 2, 0.3, -0.3) * (own - 1.0 - 0.5)
    return jnp.where(jnp.arange(4) < 2, 1.0, 2.0) * (1 - 1 / (1 + jnp.exp(-signed)))


def plain_contrastive(logits):
    own = jnp.diagonal(logits)
    sides = [jnp.sum(jnp.log(jnp.sum(jnp.exp(logits), axis=axis)) - own) for axis in (0, 1)]
    return sum(sides) / 2


def tokens_of(x):
    return np.asarray(x, np.int32)


GRIDS = np.array([[2, 3], [1, 5], [4, 1]])
PLACES = {"query_positions": tokens_of(POSITIONS), "key_positions": tokens_of(KEYS)}


def matrix_of(linear, rows):
    """The matrix of a linear map of a table, which a table of ones in different places gives."""
    with jax.ensure_compile_time_eval():
        return np.asarray(linear(jnp.eye(rows)), np.float64)


def of_a_table(linear, rows) -> Case:
    """A linear map of a table, beside the product with its matrix."""
    inputs = {"table": normal(rows, 4)}
    return Case(linear, lambda table: matrix_of(linear, rows) @ table, inputs, FLOAT32)


patch_bias = partial(F.patch_bias, **PLACES, grid=(2, 3), prefix=1)
EXPERTS = np.array([[[0, 2], [1, 2], [0, 2], [2, 0]]])
FFN = {"x": normal(3, 5), "up": normal(5, 7), "gate": normal(5, 7), "down": normal(7, 5)}
X = {"x": normal(3, 5)}
SCORES = {"logits": normal(2, 5, 6)}
STATES = {"student": normal(3, 5)}
TEACHER = normal(3, 5)
HISTORY = tokens_of([[1, 2, 1, 0], [4, 4, 4, 4]]), tokens_of([3, 4])

CASES = {
    "linear": Case(
        F.linear,
        lambda x, kernel, bias: x @ kernel + bias,
        {"x": normal(3, 5), "kernel": normal(5, 4), "bias": normal(4)},
    ),
    "linear adapted": Case(
        lambda x, kernel, a, b: F.linear(x, Adapted(kernel, a, b, None, scale=0.5)),
        lambda x, kernel, a, b: x @ (kernel + 0.5 * a @ b),
        {"x": normal(3, 5), "kernel": normal(5, 4), "a": normal(5, 2), "b": normal(2, 4)},
    ),
    "dense": Case(
        lambda kernel, a, b: dense(Adapted(kernel, a, b, None, 0.5), (5,)),
        lambda kernel, a, b: kernel + 0.5 * a @ b,
        {"kernel": normal(5, 4), "a": normal(5, 2), "b": normal(2, 4)},
    ),
    "linear quantized": Case(
        quantized,
        lambda x, scales: x @ np.arange(-7.0, 8.0).reshape(5, 3) * scales,
        {"x": normal(3, 5), "scales": normal(3)},
    ),
    "linear transposed": Case(
        lambda x, kernel: F.linear(x, transposed(kernel, (2, 2))),
        lambda x, kernel: (x @ kernel).reshape(3, 2, 2),
        {"x": normal(3, 5), "kernel": normal(5, 4)},
    ),
    "attention": Case(
        partial(attend, implementation="blockwise", softcap=3.0),
        partial(attention, softcap=3.0),
        qkv() | {"bias": normal(1, 6, 5, 7)},
    ),
    "attention sinks": Case(
        partial(attend, implementation="blockwise"), attention, qkv() | {"sinks": normal(6)}
    ),
    "attention t5": Case(
        t5_attention,
        lambda table, **arrays: attention(**arrays, allowed=True, bias=t5_values(table)),
        qkv() | {"table": normal(6, 6)},
        FLOAT32,
    ),
    "attention distances": Case(
        distance_attention,
        lambda query, key, value, **vectors: attention(
            query, key, value, allowed=True, bias=distances(query, key, **vectors) / 2.0
        ),
        qkv() | VECTORS,
    ),
    "distance_scores": Case(
        F.distance_scores,
        distances,
        {name: array for name, array in qkv().items() if name != "value"} | VECTORS,
    ),
    "attention reference": Case(partial(attend, implementation="reference"), attention, qkv()),
    "masked_softmax": Case(
        lambda x: reference.masked_softmax(x, jnp.asarray(ALLOWED)),
        lambda x: jnp.where(ALLOWED, jax.nn.softmax(jnp.where(ALLOWED, x, -1e30), axis=-1), 0.0),
        {"x": normal(5, 7)},
    ),
    "feed_forward": Case(
        partial(F.feed_forward, activation=F.activation("silu")),
        lambda x, up, gate, down: (jax.nn.silu(x @ gate) * (x @ up)) @ down,
        FFN,
    ),
    "grouped_linear": Case(
        lambda x, kernels: F.grouped_linear(x, kernels, np.array([1, 0, 2])),
        lambda x, kernels: jnp.stack(
            [*(x[row] @ kernels[own] for row, own in enumerate((0, 2, 2))), jnp.zeros(7)]
        ),
        {"x": normal(4, 5), "kernels": normal(3, 5, 7)},
    ),
    "expert_feed_forward": Case(
        partial(F.expert_feed_forward, experts=EXPERTS, activation=F.activation("silu")),
        lambda x, weights, up, gate, down: sum(
            jnp.where(e == EXPERTS, weights, 0.0).sum(-1, keepdims=True)
            * ((jax.nn.silu(x @ gate[e]) * (x @ up[e])) @ down[e])
            for e in range(3)
        ),
        {
            "x": normal(1, 4, 5),
            "weights": normal(1, 4, 2),
            "up": normal(3, 5, 7),
            "gate": normal(3, 5, 7),
            "down": normal(3, 7, 5),
        },
    ),
    "balance_loss": Case(
        lambda probabilities: F.balance_loss(F.expert_load(probabilities, EXPERTS)),
        lambda probabilities: (
            3 * jnp.sum(np.array([3, 1, 4]) / 4 * jnp.mean(probabilities, axis=(0, 1)))
        ),
        {"probabilities": normal(1, 4, 3)},
    ),
    "expert_load": Case(
        lambda probabilities: F.expert_load(probabilities, EXPERTS).probabilities,
        lambda probabilities: jnp.sum(probabilities, axis=(0, 1)),
        {"probabilities": normal(1, 4, 3)},
    ),
    "router_z_loss": Case(
        F.router_z_loss,
        lambda logits: jnp.mean(jnp.square(jax.nn.logsumexp(logits, axis=-1))),
        {"logits": normal(2, 3, 5)},
    ),
    "activation": Case(
        F.activation("gelu_tanh"),
        lambda x: 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        X,
    ),
    "gelu": Case(F.gelu, lambda x: x * jax.scipy.stats.norm.cdf(x), X),
    "quick_gelu": Case(F.quick_gelu, lambda x: x / (1 + jnp.exp(-1.702 * x)), X),
    "layer_norm": Case(
        partial(F.layer_norm, eps=1e-3),
        lambda x, scale, bias: normalised(x, centre=True) * scale + bias,
        {"x": normal(3, 5), "scale": normal(5), "bias": normal(5)},
    ),
    "rms_norm": Case(
        partial(F.rms_norm, eps=1e-3, unit_offset=True),
        lambda x, scale: normalised(x, centre=False) * (1 + scale),
        {"x": normal(3, 5), "scale": normal(5)},
    ),
    "wavelengths": Case(F.wavelengths, lambda frequencies: 2 * math.pi / frequencies, WAVES),
    "code_inner_products": Case(
        partial(F.code_inner_products, distances=DISTANCES),
        lambda frequencies: jnp.sum(jnp.cos(turned(frequencies)), axis=-1),
        WAVES,
        FLOAT32,
    ),
    "code_distance": Case(
        partial(F.code_distance, distances=DISTANCES),
        lambda frequencies: 2 * jnp.sqrt(jnp.mean(jnp.sin(turned(frequencies) / 2) ** 2, axis=-1)),
        WAVES,
        FLOAT32,
    ),
    "rope_decay": Case(
        partial(F.rope_decay, distances=DISTANCES),
        lambda frequencies: jnp.mean(partial_sums(turned(frequencies)), axis=-1),
        WAVES,
        FLOAT32,
    ),
    "rope_score_bound": Case(
        partial(F.rope_score_bound, **WAVES, distances=DISTANCES, layout="interleaved"),
        plain_bound,
        # Small bounds, whose sine a rounding changes little.
        {"query": 0.3 * normal(3, 4), "key": 0.3 * normal(3, 4)},
        FLOAT32,
    ),
    "rotation_matrix": Case(
        partial(F.rotation_matrix, DISTANCES, layout="interleaved"), plain_rotation, WAVES, FLOAT32
    ),
    "score_terms": Case(
        lambda **arrays: F.score_terms(**arrays).content_position,
        lambda content, code, query_kernel, key_kernel: (
            content @ query_kernel @ (code @ key_kernel).T
        ),
        {
            "content": normal(5, 3),
            "code": normal(5, 3),
            "query_kernel": normal(3, 2),
            "key_kernel": normal(3, 2),
        },
        FLOAT32,
    ),
    "step_sizes": Case(
        F.step_sizes,
        lambda codes: jnp.sqrt(jnp.sum((codes[1:] - codes[:-1]) ** 2, axis=-1)),
        {"codes": normal(4, 3)},
        FLOAT32,
    ),
    "relative_share": Case(F.relative_share, plain_share, {"scores": normal(3, 4)}, FLOAT32),
    "scaled": Case(
        norms.scaled, lambda x, scale: x * scale, {"x": normal(3, 5), "scale": normal(5)}
    ),
    "dropout": Case(
        partial(F.dropout, rate=0.4, key=KEY),
        lambda x: x * F.dropout(jnp.ones((3, 5)), 0.4, KEY),
        X,
    ),
    "lookup": Case(
        partial(lookup, ids=tokens_of(IDS)),
        lambda table: np.eye(6)[IDS] @ table,
        {"table": normal(6, 4)},
    ),
    "learned_code": Case(
        partial(F.learned_code, positions=tokens_of(POSITIONS)),
        lambda table: np.eye(8)[POSITIONS] @ table,
        {"table": normal(8, 4)},
    ),
    "cross_entropy": Case(
        lambda logits: (
            F.cross_entropy(logits, tokens_of(TARGETS), label_smoothing=0.1, z_loss=0.01).loss
        ),
        lambda logits: jnp.sum(token_losses(logits)),
        SCORES,
    ),
    "chunked_cross_entropy": Case(
        chunked,
        plain_chunked,
        {
            "hidden": normal(2, 5, 4),
            "head": normal(4, 6),
            "bias": normal(6),
            "weights": normal(2, 5) ** 2,
        },
    ),
    "grouped_convolution": Case(
        partial(grouped_convolution, groups=3),
        partial(convolution_by_taps, groups=3),
        {"x": normal(2, 7, 6), "kernel": normal(6, 2, 6)},
        FLOAT32,
    ),
    "map_chunks": Case(
        lambda x: losses.map_chunks(jnp.sin, x, chunk_size=2), lambda x: jnp.sin(x), X
    ),
    "token_log_probabilities": Case(
        partial(F.token_log_probabilities, tokens=tokens_of(TARGETS)),
        lambda logits: -token_losses(logits, 0.0, 0.0),
        SCORES,
        FLOAT32,
    ),
    "dpo_loss": Case(dpo, plain_dpo, {"chosen": normal(4), "rejected": normal(4)}, FLOAT32),
    "kto_loss": Case(kto, plain_kto, {"own": normal(4)}, FLOAT32),
    "contrastive_loss": Case(
        lambda logits: contrastive.contrastive_loss(logits).loss,
        plain_contrastive,
        {"logits": normal(5, 5)},
    ),
    "binary_cross_entropy": Case(
        lambda scores: losses.binary_cross_entropy(scores, np.eye(5)),
        lambda scores: -jnp.log(jax.nn.sigmoid(scores * (2 * np.eye(5) - 1))),
        {"scores": normal(5, 5)},
    ),
    "sigmoid_contrastive_loss": Case(
        lambda logits: contrastive.sigmoid_contrastive_loss(logits).loss,
        lambda logits: jnp.sum(jnp.log1p(jnp.exp(logits * (1 - 2 * np.eye(5))))),
        {"logits": normal(5, 5)},
    ),
    "block_sums": Case(
        lambda x: F.block_sums(x, jnp.ones((2, 7), jnp.int32), 3)[0],
        # The token after the last whole block belongs to it.
        lambda x: jnp.stack([x[:, :3].sum(1), x[:, 3:].sum(1)], axis=1),
        {"x": normal(2, 7, 4)},
    ),
    "soft_divergence": Case(
        partial(distillation.soft_divergence, teacher=jnp.asarray(TEACHER), temperature=2.0),
        lambda student: (
            4.0
            * jnp.sum(
                jax.nn.softmax(TEACHER / 2)
                * (jax.nn.log_softmax(TEACHER / 2) - jax.nn.log_softmax(student / 2)),
                axis=-1,
            )
        ),
        STATES,
        FLOAT32,
    ),
    "cosine_distance": Case(
        partial(distillation.cosine_distance, teacher=jnp.asarray(TEACHER)),
        lambda student: (
            1
            - jnp.sum(student * TEACHER, axis=-1)
            / jnp.linalg.norm(student, axis=-1)
            / np.linalg.norm(TEACHER, axis=-1)
        ),
        STATES,
        FLOAT32,
    ),
    "rotary_angles": Case(
        lambda frequencies: F.rotary_angles(tokens_of(POSITIONS), frequencies),
        lambda frequencies: POSITIONS[..., None] * frequencies,
        WAVES,
        FLOAT32,
    ),
    "apply_rope": Case(
        lambda x, frequencies: F.apply_rope(x, tokens_of(POSITIONS), frequencies, layout="half"),
        rotated,
        {"x": normal(2, 5, 3, 4), "frequencies": FREQUENCIES},
        FLOAT32,
    ),
    "alibi_bias": Case(
        partial(F.alibi_bias, **PLACES),
        lambda slopes: (
            -slopes[:, None, None] * np.abs(POSITIONS[:, :, None] - KEYS[:, None])[:, None]
        ),
        {"slopes": normal(3)},
        FLOAT32,
    ),
    "t5_bias": Case(
        partial(F.t5_bias, **PLACES, bidirectional=True, max_distance=8),
        t5_values,
        {"table": normal(6, 3)},
        FLOAT32,
    ),
    "patch_bias": Case(
        patch_bias,
        lambda table: jnp.einsum("brts,rn->bnts", matrix_of(patch_bias, 18), table),
        {"table": normal(18, 3)},
        FLOAT32,
    ),
    "resize_offsets": of_a_table(
        partial(F.resize_offsets, old_grid=(2, 3), new_grid=(3, 2)), rows=18
    ),
    "overlapping_patches": Case(
        partial(F.overlapping_patches, size=(2, 3), stride=(1, 2)),
        lambda images: jnp.stack(
            [
                images[:, row : row + 2, column : column + 3]
                for row in range(3)
                for column in (0, 2)
            ],
            axis=1,
        ),
        {"images": normal(2, 4, 6, 1)},
    ),
    "patches": Case(
        partial(F.patches, size=(2, 3)),
        lambda images: (
            images.reshape(2, 2, 2, 2, 3, 1).transpose(0, 1, 3, 2, 4, 5).reshape(2, 4, 2, 3, 1)
        ),
        {"images": normal(2, 4, 6, 1)},
    ),
    "resize_positions": of_a_table(
        partial(F.resize_positions, old_grid=(2, 3), new_grid=(3, 2), prefix=1), rows=7
    ),
    "positions_on_grids": of_a_table(
        partial(F.positions_on_grids, old_grid=(2, 3), grids=jnp.asarray(GRIDS), length=6), rows=6
    ),
    "scale_temperature": Case(
        partial(F.scale_temperature, temperature=0.7), lambda logits: logits / 0.7, SCORES
    ),
    "repetition_penalty": Case(
        partial(F.repetition_penalty, seen=jnp.asarray(COUNTS > 0), penalty=1.3),
        lambda logits: logits * jnp.where(COUNTS > 0, jnp.where(logits < 0, 1.3, 1 / 1.3), 1.0),
        {"logits": normal(2, 6)},
    ),
    "presence_penalty": Case(
        partial(F.presence_penalty, seen=jnp.asarray(COUNTS > 0), penalty=0.5),
        lambda logits: logits - 0.5 * (COUNTS > 0),
        {"logits": normal(2, 6)},
    ),
    "frequency_penalty": Case(
        partial(F.frequency_penalty, counts=tokens_of(COUNTS), penalty=0.5),
        lambda logits: logits - 0.5 * COUNTS,
        {"logits": normal(2, 6)},
    ),
    "top_k_filter": filtered(F.top_k_filter, 3),
    "top_p_filter": filtered(F.top_p_filter, 0.7),
    "min_p_filter": filtered(F.min_p_filter, 0.2),
    "typical_filter": filtered(F.typical_filter, 0.7),
    "epsilon_filter": filtered(F.epsilon_filter, 0.2),
    "eta_filter": filtered(F.eta_filter, 0.2),
    "bias_sequences": Case(
        lambda logits: F.bias_sequences(logits, *HISTORY, [[1, 3], [1]], [0.5, -2.0]),
        lambda logits: logits + np.array([[0, -2.0, 0, 0.5, 0, 0], [0, -2.0, 0, 0, 0, 0]]),
        {"logits": normal(2, 6)},
    ),
    "ban_tokens": filtered(F.ban_tokens, [1, 4]),
    "no_repeat_ngram": filtered(F.no_repeat_ngram, *HISTORY, 2),
    "ban_sequences": filtered(F.ban_sequences, *HISTORY, [[4, 3], [2]]),
}

# Integers come out or go in; constants are all it rounds; or other cases have what it calls.
WITHOUT_EXAMPLE = {
    "alibi_slopes",
    "binary_code",
    "block_numbers",
    "block_sparse",
    "causal",
    "first_collision",
    "first_return",
    "force_token",
    "greedy",
    "integer_code",
    "inverse_frequencies",
    "log_bucket",
    "patch_angles",
    "per_device",
    "position_scores",
    "sample",
    "sinusoidal_code",
    "sinusoidal_frequencies",
    "sinusoidal_grid_code",
    "sliding_window",
    "t5_bucket",
    "token_counts",
    "within_capacity",
}
