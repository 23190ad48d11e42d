"""Every public function that has a derivative: an example of it, and the same in plain `jnp`."""

import math
from collections.abc import Callable
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
    """A function of a dictionary of arrays, a reference for it, and the arrays."""

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


def turned(p):
    """The angles of some distances, [T, F]."""
    return DISTANCES[:, None] * p["frequencies"]


def partial_sums(angles):
    real, imaginary = (jnp.cumsum(f(angles), axis=-1) for f in (jnp.cos, jnp.sin))
    return jnp.sqrt(real**2 + imaginary**2)


def plain_decay(p):
    return jnp.mean(partial_sums(turned(p)), axis=-1)


def plain_bound(p):
    a, b, c, d = p["query"][:, 0::2], p["query"][:, 1::2], p["key"][:, 0::2], p["key"][:, 1::2]
    parts = []
    for h in (a * c + b * d, b * c - a * d):
        parts.append(jnp.concatenate([h[:, 1:], jnp.zeros((3, 1))], axis=-1) - h)
    largest = jnp.max(jnp.sqrt(parts[0] ** 2 + parts[1] ** 2), axis=-1, keepdims=True)
    return largest * jnp.sum(partial_sums(turned(WAVES)), axis=-1)


def plain_share(p):
    centred = p["scores"] - jnp.mean(p["scores"])
    rest = 0.0
    for distance in range(-2, 4):
        along = jnp.diagonal(centred, distance)
        rest += jnp.sum((along - jnp.mean(along)) ** 2)
    return 1 - rest / jnp.sum(centred**2)


def plain_rotation(p):
    cos, sin = jnp.cos(turned(p)), jnp.sin(turned(p))
    zero = jnp.zeros(3)
    rows = [
        [cos[:, 0], -sin[:, 0], zero, zero],
        [sin[:, 0], cos[:, 0], zero, zero],
        [zero, zero, cos[:, 1], -sin[:, 1]],
        [zero, zero, sin[:, 1], cos[:, 1]],
    ]
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


def attention(p, allowed=ALLOWED, bias=0.0, softcap=None, sinks=None):
    """Attention as the paper writes it, with all heads repeated; an empty row gives zeros."""
    repeats = p["query"].shape[2] // p["key"].shape[2]
    key, value = (jnp.repeat(p[name], repeats, axis=2) for name in ("key", "value"))
    scores = jnp.einsum("btnh,bsnh->bnts", p["query"], key) / math.sqrt(key.shape[-1])
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


def attend(implementation, **options):
    mask = F.DenseMask(jnp.asarray(ALLOWED)[None])

    def function(p):
        arrays = {name: p[name] for name in ("query", "key", "value")}
        given = options | {name: p[name] for name in ("bias", "sinks") if name in p}
        return F.attention(**arrays, mask=mask, implementation=implementation, **given)

    return function


T5 = F.T5Bias(num_buckets=6, max_distance=8, bidirectional=True)
KEYS = np.arange(7)[None]


# Which vector each pair of a query and a key has, of those of all distances.
PAIRS = np.arange(7)[None, :] - np.arange(5)[:, None] + 4
VECTORS = {"of_keys": normal(11, 2, 4), "of_queries": normal(11, 6, 4)}


def distances(p):
    """What the distances add to the scores, with a vector for each pair."""
    (of_key, key), query = (jnp.repeat(x, 3, axis=-2) for x in (p["of_keys"], p["key"])), p["query"]
    first = jnp.einsum("btnh,tsnh->bnts", query, of_key[PAIRS])
    return first + jnp.einsum("bsnh,tsnh->bnts", key, p["of_queries"][PAIRS])


def distance_attention(p):
    terms = F.DistanceTerms(p["of_keys"], p["of_queries"], num_queries=5)
    arrays = (p["query"], p["key"], p["value"])
    return F.attention(*arrays, distances=terms, implementation="blockwise")


def t5_attention(p):
    bias = T5.bias(jnp.asarray(POSITIONS), jnp.asarray(KEYS), num_heads=6, table=p["table"])
    arrays = (p["query"], p["key"], p["value"])
    return F.attention(*arrays, bias=bias, implementation="blockwise")


def t5_values(table, keys=KEYS):
    """The bias by a product with which bucket each distance has."""
    distance = keys[:, None, :] - POSITIONS[:, :, None]
    options = {"bidirectional": True, "num_buckets": 6, "max_distance": 8}
    buckets = F.t5_bucket(jnp.asarray(distance), **options)
    return jnp.einsum("btsc,cn->bnts", jnp.eye(6)[buckets], table)


def token_losses(logits, label_smoothing=0.1, z_loss=0.01):
    log_z = jnp.log(jnp.sum(jnp.exp(logits), axis=-1))
    picked = jnp.sum(np.eye(6)[TARGETS] * logits, axis=-1)
    attracted = (1 - label_smoothing) * picked + label_smoothing * jnp.mean(logits, axis=-1)
    return log_z - attracted + z_loss * log_z**2


def chunked(p):
    options = {"chunk_size": 2, "softcap": 4.0, "label_smoothing": 0.1, "z_loss": 0.01}
    arrays = (p["hidden"], p["head"], jnp.asarray(TARGETS), p["weights"])
    return F.chunked_cross_entropy(*arrays, bias=p["bias"], **options).loss


def plain_chunked(p):
    logits = 4.0 * jnp.tanh((p["hidden"] @ p["head"] + p["bias"]) / 4.0)
    return jnp.sum(token_losses(logits) * p["weights"])


def rotated(p):
    angles = POSITIONS[:, :, None, None] * p["frequencies"]
    (a, b), cos, sin = jnp.split(p["x"], 2, axis=-1), jnp.cos(angles), jnp.sin(angles)
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

    def kept(p):
        y = function(p["logits"], *arguments)
        return jnp.where(jnp.isfinite(y), y, 0.0)

    def plain(p):
        y = function(jax.lax.stop_gradient(p["logits"]), *arguments)
        return jnp.where(jnp.isfinite(y), p["logits"], 0.0)

    return Case(kept, plain, {"logits": normal(2, 6)})


def adapted(p):
    return F.linear(p["x"], Adapted(p["kernel"], p["a"], p["b"], None, scale=0.5))


def quantized(p):
    kernel = Quantized(jnp.asarray(np.arange(-7, 8).reshape(5, 3), jnp.int8), p["scales"])
    return F.linear(p["x"], kernel)


def dpo(p):
    pairs = (p["chosen"], p["rejected"], jnp.zeros(4), jnp.ones(4))
    return F.dpo_loss(*pairs, beta=0.3, label_smoothing=0.1).losses


def plain_dpo(p):
    margin = 0.3 * (p["chosen"] - p["rejected"] + 1.0)
    return 0.9 * jnp.log1p(jnp.exp(-margin)) + 0.1 * jnp.log1p(jnp.exp(margin))


def kto(p):
    judged = (p["own"], jnp.ones(4), jnp.arange(4) < 2, jnp.full(4, 1.5), jnp.ones(4))
    return F.kto_loss(*judged, beta=0.3, desirable_weight=1.0, undesirable_weight=2.0).losses


def plain_kto(p):
    signed = jnp.where(jnp.arange(4) < 2, 0.3, -0.3) * (p["own"] - 1.0 - 0.5)
    return jnp.where(jnp.arange(4) < 2, 1.0, 2.0) * (1 - 1 / (1 + jnp.exp(-signed)))


def plain_contrastive(p):
    own = jnp.diagonal(p["logits"])
    sides = [jnp.sum(jnp.log(jnp.sum(jnp.exp(p["logits"]), axis=axis)) - own) for axis in (0, 1)]
    return sum(sides) / 2


def tokens_of(x):
    return np.asarray(x, np.int32)


GRIDS = np.array([[2, 3], [1, 5], [4, 1]])


def matrix_of(linear, rows):
    """The matrix of a linear map of a table, which a table of ones in different places gives."""
    with jax.ensure_compile_time_eval():
        return np.asarray(linear(jnp.eye(rows)), np.float64)


def resized():
    return matrix_of(lambda table: F.resize_positions(table, (2, 3), (3, 2), prefix=1), 7)


def on_grids():
    return matrix_of(lambda table: F.positions_on_grids(table, (2, 3), GRIDS, length=6), 6)


def resized_offsets():
    return matrix_of(lambda table: F.resize_offsets(table, (2, 3), (3, 2)), 18)


def offsets():
    """Which row of the table each pair of tokens has."""
    places = tokens_of(POSITIONS), tokens_of(KEYS)
    return matrix_of(lambda x: F.patch_bias(x, *places, grid=(2, 3), prefix=1), 18)


EXPERTS = np.array([[[0, 2], [1, 2], [0, 2], [2, 0]]])
FFN = {"x": normal(3, 5), "up": normal(5, 7), "gate": normal(5, 7), "down": normal(7, 5)}
X = {"x": normal(3, 5)}
SCORES = {"logits": normal(2, 5, 6)}
STATES = {"student": normal(3, 5)}
TEACHER = normal(3, 5)

CASES = {
    "linear": Case(
        lambda p: F.linear(p["x"], p["kernel"], p["bias"]),
        lambda p: p["x"] @ p["kernel"] + p["bias"],
        {"x": normal(3, 5), "kernel": normal(5, 4), "bias": normal(4)},
    ),
    "linear adapted": Case(
        adapted,
        lambda p: p["x"] @ (p["kernel"] + 0.5 * p["a"] @ p["b"]),
        {"x": normal(3, 5), "kernel": normal(5, 4), "a": normal(5, 2), "b": normal(2, 4)},
    ),
    "dense": Case(
        lambda p: dense(Adapted(p["kernel"], p["a"], p["b"], None, 0.5), (5,)),
        lambda p: p["kernel"] + 0.5 * p["a"] @ p["b"],
        {"kernel": normal(5, 4), "a": normal(5, 2), "b": normal(2, 4)},
    ),
    "linear quantized": Case(
        quantized,
        lambda p: p["x"] @ np.arange(-7.0, 8.0).reshape(5, 3) * p["scales"],
        {"x": normal(3, 5), "scales": normal(3)},
    ),
    "linear transposed": Case(
        lambda p: F.linear(p["x"], transposed(p["kernel"], (2, 2))),
        lambda p: (p["x"] @ p["kernel"]).reshape(3, 2, 2),
        {"x": normal(3, 5), "kernel": normal(5, 4)},
    ),
    "attention": Case(
        attend("blockwise", softcap=3.0),
        lambda p: attention(p, bias=p["bias"], softcap=3.0),
        qkv() | {"bias": normal(1, 6, 5, 7)},
    ),
    "attention sinks": Case(
        attend("blockwise"),
        lambda p: attention(p, sinks=p["sinks"]),
        qkv() | {"sinks": normal(6)},
    ),
    "attention t5": Case(
        t5_attention,
        lambda p: attention(p, allowed=True, bias=t5_values(p["table"])),
        qkv() | {"table": normal(6, 6)},
        FLOAT32,
    ),
    "attention distances": Case(
        distance_attention,
        lambda p: attention(p, allowed=True, bias=distances(p) / 2.0),
        qkv() | VECTORS,
    ),
    "distance_scores": Case(
        lambda p: F.distance_scores(p["query"], p["key"], p["of_keys"], p["of_queries"]),
        distances,
        {name: array for name, array in qkv().items() if name != "value"} | VECTORS,
    ),
    "attention reference": Case(attend("reference"), attention, qkv()),
    "masked_softmax": Case(
        lambda p: reference.masked_softmax(p["x"], jnp.asarray(ALLOWED)),
        lambda p: jnp.where(
            ALLOWED, jax.nn.softmax(jnp.where(ALLOWED, p["x"], -1e30), axis=-1), 0.0
        ),
        {"x": normal(5, 7)},
    ),
    "feed_forward": Case(
        lambda p: F.feed_forward(**p, activation=F.activation("silu")),
        lambda p: (jax.nn.silu(p["x"] @ p["gate"]) * (p["x"] @ p["up"])) @ p["down"],
        FFN,
    ),
    "grouped_linear": Case(
        lambda p: F.grouped_linear(p["x"], p["kernels"], np.array([1, 0, 2])),
        lambda p: jnp.stack(
            [
                p["x"][0] @ p["kernels"][0],
                p["x"][1] @ p["kernels"][2],
                p["x"][2] @ p["kernels"][2],
                jnp.zeros(7),
            ]
        ),
        {"x": normal(4, 5), "kernels": normal(3, 5, 7)},
    ),
    "expert_feed_forward": Case(
        lambda p: F.expert_feed_forward(
            p["x"],
            EXPERTS,
            p["weights"],
            *(p[name] for name in ("up", "down")),
            gate=p["gate"],
            activation=F.activation("silu"),
        ),
        lambda p: sum(
            jnp.where(e == EXPERTS, p["weights"], 0.0).sum(-1, keepdims=True)
            * ((jax.nn.silu(p["x"] @ p["gate"][e]) * (p["x"] @ p["up"][e])) @ p["down"][e])
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
        lambda p: F.balance_loss(F.expert_load(p["probabilities"], EXPERTS)),
        lambda p: 3 * jnp.sum(np.array([3, 1, 4]) / 4 * jnp.mean(p["probabilities"], axis=(0, 1))),
        {"probabilities": normal(1, 4, 3)},
    ),
    "expert_load": Case(
        lambda p: F.expert_load(p["probabilities"], EXPERTS).probabilities,
        lambda p: jnp.sum(p["probabilities"], axis=(0, 1)),
        {"probabilities": normal(1, 4, 3)},
    ),
    "router_z_loss": Case(
        lambda p: F.router_z_loss(p["logits"]),
        lambda p: jnp.mean(jnp.square(jax.nn.logsumexp(p["logits"], axis=-1))),
        {"logits": normal(2, 3, 5)},
    ),
    "activation": Case(
        lambda p: F.activation("gelu_tanh")(p["x"]),
        lambda p: (
            0.5
            * p["x"]
            * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (p["x"] + 0.044715 * p["x"] ** 3)))
        ),
        X,
    ),
    "gelu": Case(
        lambda p: F.gelu(p["x"]),
        lambda p: p["x"] * jax.scipy.stats.norm.cdf(p["x"]),
        X,
    ),
    "quick_gelu": Case(
        lambda p: F.quick_gelu(p["x"]), lambda p: p["x"] / (1 + jnp.exp(-1.702 * p["x"])), X
    ),
    "layer_norm": Case(
        lambda p: F.layer_norm(**p, eps=1e-3),
        lambda p: normalised(p["x"], centre=True) * p["scale"] + p["bias"],
        {"x": normal(3, 5), "scale": normal(5), "bias": normal(5)},
    ),
    "rms_norm": Case(
        lambda p: F.rms_norm(**p, eps=1e-3, unit_offset=True),
        lambda p: normalised(p["x"], centre=False) * (1 + p["scale"]),
        {"x": normal(3, 5), "scale": normal(5)},
    ),
    "wavelengths": Case(
        lambda p: F.wavelengths(p["frequencies"]),
        lambda p: 2 * math.pi / p["frequencies"],
        WAVES,
    ),
    "code_inner_products": Case(
        lambda p: F.code_inner_products(p["frequencies"], DISTANCES),
        lambda p: jnp.sum(jnp.cos(turned(p)), axis=-1),
        WAVES,
        FLOAT32,
    ),
    "code_distance": Case(
        lambda p: F.code_distance(p["frequencies"], DISTANCES),
        lambda p: 2 * jnp.sqrt(jnp.mean(jnp.sin(turned(p) / 2) ** 2, axis=-1)),
        WAVES,
        FLOAT32,
    ),
    "rope_decay": Case(
        lambda p: F.rope_decay(p["frequencies"], DISTANCES), plain_decay, WAVES, FLOAT32
    ),
    "rope_score_bound": Case(
        lambda p: F.rope_score_bound(
            p["query"], p["key"], FREQUENCIES, DISTANCES, layout="interleaved"
        ),
        plain_bound,
        # Small bounds, whose sine a rounding changes little.
        {"query": 0.3 * normal(3, 4), "key": 0.3 * normal(3, 4)},
        FLOAT32,
    ),
    "rotation_matrix": Case(
        lambda p: F.rotation_matrix(DISTANCES, p["frequencies"], layout="interleaved"),
        plain_rotation,
        WAVES,
        FLOAT32,
    ),
    "score_terms": Case(
        lambda p: F.score_terms(**p).content_position,
        lambda p: p["content"] @ p["query_kernel"] @ (p["code"] @ p["key_kernel"]).T,
        {
            "content": normal(5, 3),
            "code": normal(5, 3),
            "query_kernel": normal(3, 2),
            "key_kernel": normal(3, 2),
        },
        FLOAT32,
    ),
    "step_sizes": Case(
        lambda p: F.step_sizes(p["codes"]),
        lambda p: jnp.sqrt(jnp.sum((p["codes"][1:] - p["codes"][:-1]) ** 2, axis=-1)),
        {"codes": normal(4, 3)},
        FLOAT32,
    ),
    "relative_share": Case(
        lambda p: F.relative_share(p["scores"]), plain_share, {"scores": normal(3, 4)}, FLOAT32
    ),
    "scaled": Case(
        lambda p: norms.scaled(**p),
        lambda p: p["x"] * p["scale"],
        {"x": normal(3, 5), "scale": normal(5)},
    ),
    "dropout": Case(
        lambda p: F.dropout(p["x"], 0.4, KEY),
        lambda p: p["x"] * F.dropout(jnp.ones((3, 5)), 0.4, KEY),
        X,
    ),
    "lookup": Case(
        lambda p: lookup(p["table"], tokens_of(IDS)),
        lambda p: np.eye(6)[IDS] @ p["table"],
        {"table": normal(6, 4)},
    ),
    "learned_code": Case(
        lambda p: F.learned_code(p["table"], tokens_of(POSITIONS)),
        lambda p: np.eye(8)[POSITIONS] @ p["table"],
        {"table": normal(8, 4)},
    ),
    "cross_entropy": Case(
        lambda p: (
            F.cross_entropy(p["logits"], tokens_of(TARGETS), label_smoothing=0.1, z_loss=0.01).loss
        ),
        lambda p: jnp.sum(token_losses(p["logits"])),
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
        lambda p: grouped_convolution(p["x"], p["kernel"], groups=3),
        lambda p: convolution_by_taps(p["x"], p["kernel"], groups=3),
        {"x": normal(2, 7, 6), "kernel": normal(6, 2, 6)},
        FLOAT32,
    ),
    "map_chunks": Case(
        lambda p: losses.map_chunks(jnp.sin, p["x"], chunk_size=2), lambda p: jnp.sin(p["x"]), X
    ),
    "token_log_probabilities": Case(
        lambda p: F.token_log_probabilities(p["logits"], tokens_of(TARGETS)),
        lambda p: -token_losses(p["logits"], 0.0, 0.0),
        SCORES,
        FLOAT32,
    ),
    "dpo_loss": Case(dpo, plain_dpo, {"chosen": normal(4), "rejected": normal(4)}, FLOAT32),
    "kto_loss": Case(kto, plain_kto, {"own": normal(4)}, FLOAT32),
    "contrastive_loss": Case(
        lambda p: contrastive.contrastive_loss(p["logits"]).loss,
        plain_contrastive,
        {"logits": normal(5, 5)},
    ),
    "binary_cross_entropy": Case(
        lambda p: losses.binary_cross_entropy(p["scores"], np.eye(5)),
        lambda p: -jnp.log(jax.nn.sigmoid(p["scores"] * (2 * np.eye(5) - 1))),
        {"scores": normal(5, 5)},
    ),
    "sigmoid_contrastive_loss": Case(
        lambda p: contrastive.sigmoid_contrastive_loss(p["logits"]).loss,
        lambda p: jnp.sum(jnp.log1p(jnp.exp(p["logits"] * (1 - 2 * np.eye(5))))),
        {"logits": normal(5, 5)},
    ),
    "block_sums": Case(
        lambda p: F.block_sums(p["x"], jnp.ones((2, 7), jnp.int32), 3)[0],
        # The token after the last whole block belongs to it.
        lambda p: jnp.stack([p["x"][:, :3].sum(1), p["x"][:, 3:].sum(1)], axis=1),
        {"x": normal(2, 7, 4)},
    ),
    "soft_divergence": Case(
        lambda p: distillation.soft_divergence(p["student"], jnp.asarray(TEACHER), temperature=2.0),
        lambda p: (
            4.0
            * jnp.sum(
                jax.nn.softmax(TEACHER / 2)
                * (jax.nn.log_softmax(TEACHER / 2) - jax.nn.log_softmax(p["student"] / 2)),
                axis=-1,
            )
        ),
        STATES,
        FLOAT32,
    ),
    "cosine_distance": Case(
        lambda p: distillation.cosine_distance(p["student"], jnp.asarray(TEACHER)),
        lambda p: (
            1
            - jnp.sum(p["student"] * TEACHER, axis=-1)
            / jnp.linalg.norm(p["student"], axis=-1)
            / np.linalg.norm(TEACHER, axis=-1)
        ),
        STATES,
        FLOAT32,
    ),
    "rotary_angles": Case(
        lambda p: F.rotary_angles(tokens_of(POSITIONS), p["frequencies"]),
        lambda p: POSITIONS[..., None] * p["frequencies"],
        {"frequencies": FREQUENCIES},
        FLOAT32,
    ),
    "apply_rope": Case(
        lambda p: F.apply_rope(p["x"], tokens_of(POSITIONS), p["frequencies"], layout="half"),
        rotated,
        {"x": normal(2, 5, 3, 4), "frequencies": FREQUENCIES},
        FLOAT32,
    ),
    "alibi_bias": Case(
        lambda p: F.alibi_bias(p["slopes"], tokens_of(POSITIONS), tokens_of(KEYS)),
        lambda p: (
            -p["slopes"][:, None, None] * np.abs(POSITIONS[:, :, None] - KEYS[:, None])[:, None]
        ),
        {"slopes": normal(3)},
        FLOAT32,
    ),
    "t5_bias": Case(
        lambda p: F.t5_bias(
            p["table"], tokens_of(POSITIONS), tokens_of(KEYS), bidirectional=True, max_distance=8
        ),
        lambda p: t5_values(p["table"]),
        {"table": normal(6, 3)},
        FLOAT32,
    ),
    "patch_bias": Case(
        lambda p: F.patch_bias(
            p["table"], tokens_of(POSITIONS), tokens_of(KEYS), grid=(2, 3), prefix=1
        ),
        lambda p: jnp.einsum("brts,rn->bnts", offsets(), p["table"]),
        {"table": normal(18, 3)},
        FLOAT32,
    ),
    "resize_offsets": Case(
        lambda p: F.resize_offsets(p["table"], (2, 3), (3, 2)),
        lambda p: resized_offsets() @ p["table"],
        {"table": normal(18, 4)},
        FLOAT32,
    ),
    "overlapping_patches": Case(
        lambda p: F.overlapping_patches(p["images"], (2, 3), (1, 2)),
        lambda p: jnp.stack(
            [
                p["images"][:, row : row + 2, column : column + 3]
                for row in range(3)
                for column in (0, 2)
            ],
            axis=1,
        ),
        {"images": normal(2, 4, 6, 1)},
    ),
    "patches": Case(
        lambda p: F.patches(p["images"], (2, 3)),
        lambda p: (
            p["images"].reshape(2, 2, 2, 2, 3, 1).transpose(0, 1, 3, 2, 4, 5).reshape(2, 4, 2, 3, 1)
        ),
        {"images": normal(2, 4, 6, 1)},
    ),
    "resize_positions": Case(
        lambda p: F.resize_positions(p["table"], (2, 3), (3, 2), prefix=1),
        lambda p: resized() @ p["table"],
        {"table": normal(7, 4)},
        FLOAT32,
    ),
    "positions_on_grids": Case(
        lambda p: F.positions_on_grids(p["table"], (2, 3), jnp.asarray(GRIDS), length=6),
        lambda p: on_grids() @ p["table"],
        {"table": normal(6, 4)},
        FLOAT32,
    ),
    "scale_temperature": Case(
        lambda p: F.scale_temperature(p["logits"], 0.7), lambda p: p["logits"] / 0.7, SCORES
    ),
    "repetition_penalty": Case(
        lambda p: F.repetition_penalty(p["logits"], jnp.asarray(COUNTS > 0), 1.3),
        lambda p: (
            p["logits"] * jnp.where(COUNTS > 0, jnp.where(p["logits"] < 0, 1.3, 1 / 1.3), 1.0)
        ),
        {"logits": normal(2, 6)},
    ),
    "presence_penalty": Case(
        lambda p: F.presence_penalty(p["logits"], jnp.asarray(COUNTS > 0), 0.5),
        lambda p: p["logits"] - 0.5 * (COUNTS > 0),
        {"logits": normal(2, 6)},
    ),
    "frequency_penalty": Case(
        lambda p: F.frequency_penalty(p["logits"], tokens_of(COUNTS), 0.5),
        lambda p: p["logits"] - 0.5 * COUNTS,
        {"logits": normal(2, 6)},
    ),
    "top_k_filter": filtered(F.top_k_filter, 3),
    "top_p_filter": filtered(F.top_p_filter, 0.7),
    "min_p_filter": filtered(F.min_p_filter, 0.2),
    "typical_filter": filtered(F.typical_filter, 0.7),
    "epsilon_filter": filtered(F.epsilon_filter, 0.2),
    "eta_filter": filtered(F.eta_filter, 0.2),
    "bias_sequences": Case(
        lambda p: F.bias_sequences(
            p["logits"], tokens_of([[1, 2], [4, 4]]), tokens_of([2, 2]), [[2, 3], [1]], [0.5, -2.0]
        ),
        lambda p: p["logits"] + np.array([[0, -2.0, 0, 0.5, 0, 0], [0, -2.0, 0, 0, 0, 0]]),
        {"logits": normal(2, 6)},
    ),
    "ban_tokens": filtered(F.ban_tokens, [1, 4]),
    "no_repeat_ngram": filtered(
        F.no_repeat_ngram, tokens_of([[1, 2, 1, 0], [4, 4, 4, 4]]), tokens_of([3, 4]), 2
    ),
    "ban_sequences": filtered(
        F.ban_sequences, tokens_of([[1, 2, 1, 0], [4, 4, 4, 4]]), tokens_of([3, 4]), [[4, 3], [2]]
    ),
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
