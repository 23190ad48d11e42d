"""Codes that are added to the embeddings: integer, binary, sinusoidal and learned."""

import jax.numpy as jnp
import numpy as np

from jaxformer.functional import (
    binary_code,
    first_collision,
    first_return,
    integer_code,
    sinusoidal_frequencies,
    wavelengths,
)
from jaxformer.lab.drawing import COLOURS, canvas, frame, heat_map
from jaxformer.lab.positions.compiled import (
    code_distance,
    code_inner_products,
    rotation_matrix,
    sinusoidal_code,
    step_sizes,
)
from jaxformer.lab.positions.section import Number, Picture, PositionsConfig, Section

_HALF_PRECISION = {"bfloat16": jnp.bfloat16, "float16": jnp.float16}


def integer_section(config: PositionsConfig) -> Section:
    """Describes the integer code: its steps, and where 16-bit neighbours become equal."""
    title = "Integer code: the index, divided by the longest length"
    figure, ((left, right),) = canvas(title, (9, 3.6), 1, 2)
    positions = np.arange(config.length)
    for colour, longest in zip(COLOURS, (config.length, 4 * config.length), strict=False):
        code = integer_code(jnp.asarray(positions), max_length=longest)[:, 0]
        left.plot(positions, code, color=colour, label=f"max_length = {longest}")
    frame(left, "The code", "position", "value added to the first channel")
    left.legend()
    near = np.arange(248, 273)
    rounded = 1024 * integer_code(jnp.asarray(near), max_length=1024)[:, 0].astype(jnp.bfloat16)
    right.plot(near, near, color="#555555", label="exact", linewidth=0.8)
    right.step(near, rounded, color=COLOURS[2], label="bfloat16", where="mid")
    frame(right, "After rounding, max_length = 1024", "position", "code x 1024")
    right.legend()
    numbers = [Number("integer", "step", f"max_length = {config.length}", 1 / config.length)]
    long = integer_code(jnp.arange(4096), max_length=4096)
    for name, dtype in _HALF_PRECISION.items():
        numbers.append(_collision("integer", name, first_collision(long.astype(dtype), 0)))
    caption = (
        "Left: the code of an index depends on max_length. Right: bfloat16 has 8 significant bits, "
        "so from 256 on neighbours share a code."
    )
    text = (
        "The index itself as one feature. Its value is not bounded: divided by the "
        "longest length it stays below 1, and the difference between neighbours becomes small."
    )
    return Section("Integer", [text], [Picture("integer", figure, caption)], numbers)


def binary_section(config: PositionsConfig) -> Section:
    """Describes the binary code: its digits, how many change per position, and the wraparound."""
    bits, length = config.num_bits, config.length
    codes = binary_code(jnp.arange(length), num_bits=bits)
    title = f"Binary code with {bits} digits: {2**bits} positions, then it starts again"
    options = {"sharex": True, "height_ratios": (1, 1.2)}
    figure, ((above,), (below,)) = canvas(title, (9, 4.6), 2, **options)
    heat_map(above, codes.T, "The grid (dark: 1)", "", "digit", cmap="Greys")
    above.set_yticks(range(bits), [f"{2**i}s" for i in range(bits)])
    changed = np.rint(np.square(step_sizes(codes)))
    below.bar(np.arange(1, length), changed, color=COLOURS[0])
    frame(below, "Digits that change from the position before", "position", "digits that change")
    for axis in (above, below):
        for wrap in range(2**bits, length, 2**bits):
            axis.axvline(wrap - 0.5, color=COLOURS[1], linewidth=1.5)
    whole = binary_code(jnp.arange(2**bits + 1), num_bits=bits)
    steps = np.square(step_sizes(whole[:-1]))
    setting = f"{bits} digits"
    numbers = [
        Number("binary", "distinct codes", setting, 2**bits),
        _collision("binary", setting, first_collision(whole, 0)),
        Number("binary", "digits that change, most", setting, round(float(steps.max()))),
        Number("binary", "digits that change, mean", setting, float(steps.mean())),
    ]
    caption = (
        "Columns are positions. The ones flip at every position, the highest digit once. Below: "
        f"neighbours are not equally far apart: the step from {2 ** (bits - 1) - 1} to "
        f"{2 ** (bits - 1)} changes all digits. Orange lines: the code starts again."
    )
    text = (
        "The digits of the index, least significant first, one channel each. Bounded, and distinct "
        "below 2^digits, but the distance of two codes hardly reflects that of the positions. "
        "A sinusoidal code is its smooth version: channels that alternate at different speeds."
    )
    return Section("Binary", [text], [Picture("binary", figure, caption)], numbers)


def sinusoidal_section(config: PositionsConfig) -> Section:
    """Describes the sinusoidal code: heat map, wavelengths, inner products and equal codes."""
    frequencies = sinusoidal_frequencies(config.model_dim, config.theta)
    text = (
        "Every pair of channels is a hand of a clock: pair i turns by w_i = theta^(-2i/D) radians "
        "per position. The code of position p + k is the code of p with every pair turned by "
        "k w_i, so that a linear map can shift positions, and the inner product of two codes is "
        "the sum of cos(w_i (m - n)): a function of their distance only.",
    )
    products = _inner_products(config, frequencies)
    pictures = [_heat_map(config), products, _waves(config), _returns(config)]
    return Section("Sinusoidal", text, pictures, _sinusoidal_numbers(config, frequencies))


def learned_section(config: PositionsConfig) -> Section:
    """Describes a learned table, which ends at its last row and starts without any order."""
    shape = (config.length, config.model_dim)
    tables = {
        "learned, before training": np.random.default_rng(config.seed).normal(size=shape),
        "sinusoidal": _code(config),
    }
    figure, (axes,) = canvas("Cosine similarity of the codes of two positions", (9, 4), 1, 2)
    for axis, (name, table) in zip(axes, tables.items(), strict=True):
        unit = table / np.linalg.norm(table, axis=-1, keepdims=True)
        options = {"cmap": "RdBu_r", "vmin": -1, "vmax": 1}
        image = heat_map(axis, unit @ unit.T, name, "position n", "position m", **options)
    figure.colorbar(image, ax=axes, label="cosine")
    caption = (
        "A table starts with random rows at about equal distances: unlike with sinusoids, the "
        "order of the positions has to be learned."
    )
    text = (
        "A row of a table for each position. Positions beyond the last row have no code, so a "
        "longer text is an error."
    )
    setting = f"max_length = {config.length}, D = {config.model_dim}"
    numbers = [Number("learned", "parameters", setting, config.length * config.model_dim)]
    return Section("Learned", [text], [Picture("learned", figure, caption)], numbers)


def _collision(scheme: str, setting: str, found: tuple[int, int] | None) -> Number:
    value = "none" if found is None else f"{found[0]:,} equals {found[1]:,}"
    return Number(scheme, "first equal codes", setting, value)


def _code(config: PositionsConfig) -> np.ndarray:
    options = {"model_dim": config.model_dim, "theta": config.theta, "layout": "interleaved"}
    return np.asarray(sinusoidal_code(jnp.arange(config.length), **options))


def _heat_map(config: PositionsConfig) -> Picture:
    title = f"Sinusoidal code, {config.length} positions x {config.model_dim} channels"
    figure, ((axes,),) = canvas(f"{title} (base {config.theta:,.0f})", (9, 4.4))
    options = {"bar": "value", "cmap": "RdBu_r", "vmin": -1, "vmax": 1}
    heat_map(axes, _code(config), "", "channel", "position", **options)
    caption = (
        "Sines at even channels, cosines at odd ones. The first channels turn every few positions; "
        "the last ones hardly move within this length (sine near 0, cosine near 1)."
    )
    return Picture("sinusoidal", figure, caption)


def _inner_products(config: PositionsConfig, frequencies: np.ndarray) -> Picture:
    setting = f"D = {config.model_dim}, base {config.theta:,.0f}"
    title = f"Inner products of sinusoidal codes ({setting})"
    figure, ((left, right),) = canvas(title, (9, 4), 1, 2)
    places = np.arange(config.length)
    matrix = code_inner_products(frequencies, places[:, None] - places[None, :])
    heat_map(left, matrix, "Between two positions", "n", "m", bar="<PE(m), PE(n)>")
    distances = np.arange(-4 * config.length, 4 * config.length + 1)
    for colour, base in zip(COLOURS, config.all_bases, strict=False):
        others = sinusoidal_frequencies(config.model_dim, base)
        products = code_inner_products(others, distances)
        right.plot(distances, products, color=colour, label=f"base {base:,.0f}", linewidth=1.2)
    frame(right, "By distance", "m - n", "sum of cos(w (m - n))")
    right.legend(fontsize=8)
    caption = (
        "The product is the same along every diagonal: it depends on the distance, is largest at "
        "distance 0 (D / 2), symmetric, and falls faster for a smaller base."
    )
    return Picture("sinusoidal-inner-products", figure, caption)


def _waves(config: PositionsConfig) -> Picture:
    title = "Wavelengths: positions in which a pair of channels turns once"
    figure, ((axis,),) = canvas(title, (9, 3.8))
    pairs = config.model_dim // 2
    for colour, base in zip(COLOURS, config.all_bases, strict=False):
        waves = wavelengths(sinusoidal_frequencies(config.model_dim, base))
        axis.plot(waves, color=colour, label=f"base {base:,.0f}")
        axis.hlines(2 * np.pi * base, 0.6 * pairs, pairs, colour, linewidth=1, linestyle=":")
    axis.set_yscale("log")
    frame(axis, "Dotted: 2 pi x base, which the next pair would have", "pair", "positions per turn")
    axis.axhline(config.length, color="#555555", linewidth=0.8, linestyle="--")
    above = {"xytext": (0, 3), "textcoords": "offset points", "horizontalalignment": "right"}
    axis.annotate(f"{config.length} positions", (pairs, config.length), fontsize=8, **above)
    axis.legend(fontsize=8)
    caption = (
        "From 2 pi at the first pair, geometrically to almost 2 pi x base at the last (20,000 pi "
        "for base 10,000). Pairs above the dashed line do not finish a turn within the length."
    )
    return Picture("sinusoidal-wavelengths", figure, caption)


def _returns(config: PositionsConfig) -> Picture:
    figure, ((axis,),) = canvas("How close the code of p + k comes to that of p", (9, 3.8))
    last = 100_000
    edges = np.unique(np.geomspace(1, last, 120).astype(int))[:-1]
    distances = np.arange(1, last + 1)
    for colour, dim in zip(COLOURS, _dims(config), strict=False):
        away = code_distance(sinusoidal_frequencies(dim, config.theta), distances)
        closest = np.minimum.reduceat(np.asarray(away), edges - 1)
        axis.plot(edges, closest, color=colour, label=f"D = {dim}", linewidth=1.2)
    axis.axhline(config.tolerance, color="#555555", linewidth=0.8, linestyle="--")
    axis.set_xscale("log")
    title = (
        f"The smallest in each range of k; dashed: {config.tolerance:g}, two codes count as equal"
    )
    frame(axis, title, "distance k", "relative distance of codes")
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    caption = (
        "With few channels the code comes close to itself again within a text; with many, some "
        "pair always differs. Relative to the length of a code: 0 is equal, 1.41 unrelated."
    )
    return Picture("sinusoidal-returns", figure, caption)


def _dims(config: PositionsConfig) -> list[int]:
    return sorted({4, 8, 16, config.model_dim})


def _sinusoidal_numbers(config: PositionsConfig, frequencies: np.ndarray) -> list[Number]:
    dim, theta = config.model_dim, config.theta
    setting = f"D = {dim}, base {theta:,.0f}"
    waves = wavelengths(frequencies)
    ended = wavelengths(sinusoidal_frequencies(dim, theta, endpoint=True))
    rotation = rotation_matrix(np.array([7]), frequencies, layout="half")
    options = {"model_dim": dim, "theta": theta, "layout": "half"}
    code = np.roll(np.asarray(sinusoidal_code(jnp.arange(10_000), **options)), dim // 2, axis=-1)
    error = float(np.abs((code @ np.asarray(rotation)[0].T)[:-7] - code[7:]).max())
    unfinished = int((waves > config.length).sum())
    near = float(code_distance(frequencies, np.array([1]))[0])
    numbers = [
        ("shortest wavelength", setting, float(waves[0])),
        ("longest wavelength", setting, float(waves[-1])),
        ("longest wavelength, with 1 / base as a frequency", setting, float(ended[-1])),
        ("limit of the wavelengths, 2 pi x base", f"base {theta:,.0f}", 2 * np.pi * theta),
        ("pairs that do not turn once", f"{config.length} positions", unfinished),
        ("relative distance of neighbours", setting, near),
        ("inner product at distance 0", setting, dim / 2),
    ]
    for distance in (1, 10, 100, 1000):
        product = float(code_inner_products(frequencies, np.array([distance]))[0])
        numbers.append((f"inner product at distance {distance}", setting, product))
    numbers.append(("largest error of PE(p + 7) = R_7 PE(p)", "p < 9,993", error))
    for few in _dims(config):
        found = first_return(sinusoidal_frequencies(few, theta), config.tolerance, config.limit)
        value = f"none up to {config.limit:,}" if found is None else found
        setting = f"D = {few}, within {config.tolerance:g}"
        numbers.append(("first distance at which codes are equal", setting, value))
    return [Number("sinusoidal", *number) for number in numbers]
