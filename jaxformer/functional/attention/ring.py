"""Ring attention: keys and values go around the devices that share a row.

Each device keeps its own queries, and the keys of one device at a time, so that no device holds all
keys of a row. Parts of the softmax are joined by their log-sum-exps. In the backward pass the keys
go around once more, with their gradients.

References:
    Liu et al., Ring Attention with Blockwise Transformers (https://arxiv.org/abs/2310.01889).
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from jaxformer.functional.attention import reference
from jaxformer.functional.attention.blockwise import (
    Layout,
    by_group,
    gradients_by,
    scaled,
    sinks_gradient,
    softmax_blocks,
    softmax_gradients,
    trained_array,
)
from jaxformer.functional.attention.devices import dealt, returned, starts_of
from jaxformer.functional.attention.reference import LOWEST, Request
from jaxformer.functional.derivatives import differentiable, pushed, reversed_by
from jaxformer.functional.positions.bias import DenseBias


def unsupported(query, key, value, request: Request) -> str | None:
    """Returns why keys cannot go around for a request, or None."""
    del query, key, value
    if isinstance(request.bias, DenseBias):
        return "it does not support a bias in an array"
    if request.distances is not None:
        return "it does not support distances"
    return None


def attend(query, key, value, request: Request, time) -> jax.Array:
    """Computes the outputs `[B, T / n, N, H']` of a device's queries, with all devices' keys."""
    # Under a causal mask each device computes an early and a late half of the queries and of the
    # keys, so that in each turn all devices compute as many pairs.
    query, request = scaled(query, request)
    parts = [dealt(x, time) for x in (query, key, value)]
    layout = Layout.of(parts[0][0], parts[1][0], request)
    query_parts = jnp.stack([layout.queries(x) for x in parts[0]])
    key_parts, value_parts = (jnp.stack([layout.keys(x) for x in each]) for each in parts[1:])
    output = _ring(query_parts, key_parts, value_parts, request, layout=layout, time=time)
    return returned([layout.outputs(x) for x in output], time)


def _value(query, key, value, request, *, layout, time):
    return _around(query, key, value, request, layout, time)[0]


def _linearize(moves, query, key, value, request, *, layout, time):
    output, log_total = _around(query, key, value, request, layout, time)
    trained = trained_array(request, moves[3])
    return output, (query, key, value, request, trained, output, log_total)


def _push(residuals, tangents, *, layout, time):
    return pushed(partial(_value, layout=layout, time=time), residuals[:4], tangents)


def _pull(residuals, cotangent, *, layout, time):
    plain = partial(_plain, layout=layout, time=time)
    return gradients_by(plain, partial(_gradients, layout, time), residuals, cotangent)


_ring = differentiable(_value, _linearize, _push, _pull)


def _around(query, key, value, request, layout, time):
    """Returns the outputs of the parts of the queries, and their log-sum-exps."""
    return reversed_by(
        lambda *inputs: (_plain(*inputs, layout, time), None),
        lambda *inputs: _softmax(*inputs, layout, time),
    )(query, key, value, request)


def _softmax(query, key, value, request, layout, time):
    accumulator = jnp.promote_types(query.dtype, jnp.float32)
    without_sinks = replace(request, sinks=None)

    def turn(carry, number):
        (key, value), found = carry
        for (i, j), pair in _pairs(query, key, without_sinks, number, layout, time):
            part = softmax_blocks(layout.blocks, query[i], key[j], value[j], pair)
            found = jax.tree.map(lambda x, y, i=i: x.at[i].set(y), found, _joined(found, part, i))
        return (_passed_on((key, value), time), found), None

    output = jnp.zeros((*query.shape[:-1], value.shape[-1]), accumulator)
    start = output, jnp.full(query.shape[:-1], LOWEST, accumulator)
    turns = jnp.arange(jax.lax.axis_size(time))
    (_, (output, log_total)), _ = jax.lax.scan(turn, ((key, value), start), turns)
    if request.sinks is not None:
        total = jnp.logaddexp(log_total, by_group(request.sinks, log_total.shape))
        output, log_total = output * jnp.exp(log_total - total)[..., None], total
    return output.astype(query.dtype), log_total


def _joined(found, part, i):
    """Returns part i of the outputs, joined with the softmax over further keys."""
    (output, log_total), (more, log_more) = (x[i] for x in found), part
    total = jnp.logaddexp(log_total, log_more)
    shares = jnp.exp(log_total - total)[..., None], jnp.exp(log_more - total)[..., None]
    return output * shares[0] + more * shares[1], total


def _gradients(layout, time, residuals, cotangent):
    query, key, value, request, trained, output, log_total = residuals
    accumulator = log_total.dtype
    without_sinks = replace(request, sinks=None)

    def turn(carry, number):
        (key, value, of_key, of_value), of_query, of_bias = carry
        for (i, j), pair in _pairs(query, key, without_sinks, number, layout, time):
            given = query[i], key[j], value[j], pair, trained, output[i], log_total[i]
            found = softmax_gradients(layout.blocks, given, cotangent[i])
            of_query = of_query.at[i].add(found[0])
            of_key, of_value = of_key.at[j].add(found[1]), of_value.at[j].add(found[2])
            of_bias = None if of_bias is None else of_bias + found[3]
        return (_passed_on((key, value, of_key, of_value), time), of_query, of_bias), None

    zeros = [jnp.zeros(x.shape, accumulator) for x in (key, value, query)]
    of_bias = None if trained is None else jnp.zeros(trained.shape, accumulator)
    start = (key, value, *zeros[:2]), zeros[2], of_bias
    turns = jnp.arange(jax.lax.axis_size(time))
    ((*_, of_key, of_value), of_query, of_bias), _ = jax.lax.scan(turn, start, turns)
    given = (query, key, value, trained)
    found = (of_query, of_key, of_value, of_bias)
    found = jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), found, given)
    delta = jnp.sum(output.astype(accumulator) * cotangent.astype(accumulator), axis=-1)
    return *found, None, sinks_gradient(request.sinks, log_total, delta)


def _pairs(query, key, request, number, layout, time):
    """Yields the parts of queries and keys of a turn, and the request of each pair of them."""
    device, size = jax.lax.axis_index(time), jax.lax.axis_size(time)
    lengths = layout.query_length, layout.key_length
    origins = device, (device - number) % size
    starts = [
        starts_of(origin, len(parts), length, time)
        for origin, parts, length in zip(origins, (query, key), lengths, strict=True)
    ]
    for i, query_start in enumerate(starts[0]):
        for j, key_start in enumerate(starts[1]):
            pair = request.block(query_start, lengths[0], key_start, lengths[1])
            yield (i, j), layout.padded(pair)


def _passed_on(arrays, time):
    size = jax.lax.axis_size(time)
    return jax.lax.ppermute(arrays, time, [(i, (i + 1) % size) for i in range(size)])


def _plain(query, key, value, request, layout, time):
    """Returns the outputs by the reference with all keys, for derivatives of any order."""
    device = jax.lax.axis_index(time)

    def whole(parts):
        own = [x[:, :, : layout.key_length].transpose(0, 2, 1, 3) for x in parts]
        return jax.lax.all_gather(returned(own, time), time, axis=1, tiled=True)

    key, value = whole(key), whole(value)
    length = layout.query_length
    outputs = []
    for part, start in zip(query, starts_of(device, len(query), length, time), strict=True):
        pair = request.block(start, length, 0, key.shape[1])
        outputs.append(layout.queries(reference.attend(layout.outputs(part), key, value, pair)))
    return jnp.stack(outputs)
