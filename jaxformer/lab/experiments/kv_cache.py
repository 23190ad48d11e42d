"""The KV cache of a decoder: its size for fewer key/value heads, and the work that it saves."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from jaxformer.checks import check_argument
from jaxformer.errors import ConfigError
from jaxformer.lab.drawing import COLOURS, canvas, frame
from jaxformer.lab.experiments.report import Report
from jaxformer.models import AbstractModel, DecoderConfig
from jaxformer.nn.cache import CacheShape, Storage
from jaxformer.zoo.details import parameters_by_part


class CacheSizes(NamedTuple):
    """The size of one row's cache for a number of key/value heads."""

    num_kv_heads: int
    """Key/value heads (K)."""
    token_bytes: int
    """Bytes per token, in all layers."""
    num_bytes: np.ndarray
    """int64 `[lengths]`: bytes of the whole cache, which windows limit."""


def cache_sizes(config: DecoderConfig, lengths: Sequence[int], storage: Storage) -> CacheSizes:
    """Computes the size of the cache without allocating it.

        bytes of a token = 2 L K H bytes of a number

    for keys and values of one width and layers without windows.
    """
    model = AbstractModel(config.build)

    def size(length: int) -> int:
        shape = CacheShape(batch_size=1, capacity=length, chunk=1, storage=storage)
        arrays = jax.eval_shape(lambda p: model.module(p).init_cache(shape), model.shapes)
        wide = [x for x in jax.tree.leaves(arrays.layers) if x.ndim > 1]
        return sum(x.size * x.dtype.itemsize for x in wide)

    sizes = np.array([size(length) for length in lengths], np.int64)
    return CacheSizes(config.kv_heads, size(1), sizes)


def next_token_flops(config: DecoderConfig, length: int) -> tuple[float, float]:
    """Counts the FLOPs of the last token of a row of n tokens, with a cache and without.

    These are products + attention(n), and n (products + mean attention).
    """
    flops = config.flops({"inputs": length})
    return flops.products + flops.attention, length * (flops.products + flops.causal_attention)


def cache_report(
    config: DecoderConfig, name: str, lengths: Sequence[int] | None, storage: Storage
) -> Report:
    """Reports the cache size for decreasing numbers of key/value heads, and the work saved."""
    if not isinstance(config, DecoderConfig):
        raise ConfigError(
            f"{name}: must be a decoder, since only decoders have a KV cache; its model is a "
            f"{type(config).__name__}"
        )
    if lengths is None:
        longest = config.position.max_length or 65_536
        lengths = [longest // 4**power for power in range(4, -1, -1)]
        lengths = [length for length in lengths if length >= 16] or [1, longest]
    rising = list(lengths) == sorted(set(lengths)) and len(lengths) >= 2 and lengths[0] >= 1
    check_argument("lengths", tuple(lengths), rising, "two or more lengths in increasing order")
    config.position.validate_length(lengths[-1])
    heads = config.num_heads
    groups = {heads, heads // 4 if heads % 4 == 0 else heads, config.kv_heads, 1}
    sizes = [
        cache_sizes(replace(config, num_kv_heads=count), lengths, storage)
        for count in sorted(groups, reverse=True)
    ]
    work = np.array([next_token_flops(config, length) for length in lengths])
    weights = sum(parameters_by_part(config).values()) * config.dtype.itemsize
    header = ["K", "", "bytes a token", *(f"MB, n = {n:,}" for n in lengths), "of K = N"]
    rows = [
        [
            found.num_kv_heads,
            _kind(found.num_kv_heads, config),
            found.token_bytes,
            *(found.num_bytes / 1e6).tolist(),
            f"1/{sizes[0].token_bytes / found.token_bytes:.3g}",
        ]
        for found in sizes
    ]
    for label, flops in (("GFLOPs of token n, cached", 0), ("GFLOPs of token n, recomputed", 1)):
        rows.append(["", label, "", *(work[:, flops] / 1e9).tolist(), ""])
    each = ", ".join(f"{found.token_bytes:,} bytes with {found.num_kv_heads}" for found in sizes)
    own = next(found for found in sizes if found.num_kv_heads == config.kv_heads)
    return Report(
        name="cache",
        title=f"The cache of {name}",
        setting=(
            f"{config.num_layers} layers, N = {heads} query heads, K = {config.kv_heads} key/value "
            f"heads of width {config.head_width}; the cache of one row in {storage}, and the FLOPs "
            "of the next token: with the cache, and when recomputing the whole row."
        ),
        finding=(
            f"A token takes {each} key/value heads. At {lengths[-1]:,} tokens a row's cache has "
            f"{own.num_bytes[-1] / 1e6:,.0f} MB next to {weights / 1e6:,.0f} MB of weights, and "
            f"saves {work[-1, 1] / work[-1, 0]:,.0f} times the work of the next token."
        ),
        header=header,
        rows=rows,
        figure=_draw(name, sizes, work, weights, lengths, config),
    )


def _kind(num_kv_heads: int, config: DecoderConfig) -> str:
    names = {config.num_heads: "multi-head", 1: "multi-query"}
    own = ", as configured" if num_kv_heads == config.kv_heads else ""
    return names.get(num_kv_heads, "grouped") + own


def _draw(name, sizes: Sequence[CacheSizes], work, weights: int, lengths, config: DecoderConfig):
    figure, ((left, right),) = canvas(f"The cache of {name}", (11, 4.6), 1, 2)
    frame(left, "Cache of one row", "length n (tokens)", "MB")
    frame(right, "Work of the next token", "length n (tokens)", "GFLOPs")
    for colour, found in zip(COLOURS, sizes, strict=False):
        label = f"K = {found.num_kv_heads}: {_kind(found.num_kv_heads, config)}"
        left.plot(lengths, found.num_bytes / 1e6, color=colour, marker="o", label=label)
    left.axhline(weights / 1e6, color="#777777", linestyle="--", linewidth=1, label="the weights")
    for column, (label, style) in enumerate((("cached", "o-"), ("recomputed", "s--"))):
        right.plot(lengths, work[:, column] / 1e9, style, color=COLOURS[column], label=label)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axes.minorticks_off()
        axes.legend(fontsize=8)
    return figure
