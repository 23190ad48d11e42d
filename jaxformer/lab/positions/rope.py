"""RoPE: rotations, long-term decay by base, and frequency scaling methods."""

import jax.numpy as jnp
import numpy as np

from jaxformer.functional import (
    DynamicNTK,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    Scaling,
    YaRN,
    inverse_frequencies,
    rotary_angles,
    wavelengths,
)
from jaxformer.lab.drawing import COLOURS, canvas, frame
from jaxformer.lab.positions.compiled import code_inner_products, rope_decay, rotation_matrix
from jaxformer.lab.positions.section import Number, Picture, PositionsConfig, Section

_DISTANCES = (1, 10, 100, 1000, 10_000, 100_000)


def rope_section(config: PositionsConfig) -> Section:
    """Describes rotations of channel pairs, and how the bound on scores decays with distance."""
    text = (
        "Queries and keys are rotated instead of shifted: pair i of the query at position m turns "
        "by m w_i, that of the key at n by n w_i. Since R_m^T R_n = R_(n - m), their product "
        "depends only on the distance, in every layer and for every learned projection.",
        "The paper bounds the score by a product: the largest difference of neighbouring pairs, "
        "and the sum of |S_j| over the partial sums S_j of exp(i w (m - n)). The second factor "
        "falls with the distance; a larger base lets it fall later.",
    )
    pictures = [_rotations(config), _decay(config)]
    return Section("RoPE", text, pictures, _rope_numbers(config))


def scaling_section(config: PositionsConfig) -> Section:
    """Compares scaled frequencies with those of training."""
    text = (
        f"A model trained on {config.trained_length:,} positions, stretched to "
        f"{config.factor:g} times as many. Pairs that turned many times in training have seen all "
        "of their angles and may stay; pairs that did not finish a turn encounter new angles, "
        "unless they are slowed down. The methods differ in which pairs they slow down, and how.",
        "LongRoPE's divisors are the result of a search for each model; as an example they grow "
        "here from 1 to the factor with the square of the pair's number.",
    )
    stretched = _stretched(config)
    pictures = [_stretched_picture(config, stretched)]
    return Section("Stretched RoPE", text, pictures, _scaling_numbers(config, stretched))


def _scalings(config: PositionsConfig) -> dict[str, Scaling]:
    """Returns the methods to stretch RoPE by a factor."""
    factor = config.factor
    trained = config.trained_length
    pairs = config.head_dim // 2
    divisors = tuple((1 + (factor - 1) * np.linspace(0, 1, pairs) ** 2).tolist())
    llama = {"low_frequency_factor": 1.0, "high_frequency_factor": 4.0}
    long = {"short_factors": (1.0,) * pairs, "long_factors": divisors}
    return {
        "linear": LinearScaling(factor=factor),
        "NTK": DynamicNTK(factor=1.0, original_max_length=trained),
        "YaRN": YaRN(factor=factor, original_max_length=trained),
        "Llama 3": Llama3Scaling(factor=factor, original_max_length=trained, **llama),
        "LongRoPE (example)": LongRoPE(factor=factor, original_max_length=trained, **long),
    }


def _stretched(config: PositionsConfig) -> dict[str, tuple[np.ndarray, float]]:
    """Returns the stretched frequencies and the multiplier of cos and sin, by method."""
    length = round(config.factor * config.trained_length)
    found = {}
    for name, scaling in _scalings(config).items():
        frequencies, multiplier = scaling.frequencies(config.theta, config.head_dim, length)
        found[name] = np.asarray(frequencies), float(multiplier)
    return found


def _rotations(config: PositionsConfig) -> Picture:
    frequencies = inverse_frequencies(config.theta, config.head_dim)
    last = len(frequencies) - 1
    pairs = sorted({0, last // 4, last // 2, last})
    positions = np.arange(8)
    setting = f"{config.head_dim} channels, base {config.theta:,.0f}"
    title = f"RoPE turns each pair of channels at its own speed ({setting})"
    figure, (axes,) = canvas(title, (10, 2.9), 1, len(pairs))
    angles = np.asarray(rotary_angles(jnp.asarray(positions), frequencies))
    for axis, pair in zip(axes, pairs, strict=True):
        circle = np.linspace(0, 2 * np.pi, 200)
        axis.plot(np.cos(circle), np.sin(circle), color="#cccccc", linewidth=0.8)
        for position, angle in zip(positions, angles[:, pair], strict=True):
            shade = 0.25 + 0.75 * position / positions[-1]
            axis.plot([0, np.cos(angle)], [0, np.sin(angle)], color=COLOURS[0], alpha=shade)
            if pair == 0:
                place = 1.16 * np.cos(angle), 1.16 * np.sin(angle)
                axis.text(*place, position, fontsize=8, ha="center", va="center")
        wave = 2 * np.pi / frequencies[pair]
        axis.set_title(f"pair {pair}: a turn in\n{wave:,.0f} positions", fontsize=10)
        axis.set_aspect("equal")
        axis.set_xlim(-1.3, 1.3)
        axis.set_ylim(-1.3, 1.3)
        axis.set_axis_off()
    caption = (
        "The vector (1, 0) of a pair at the positions 0 (light) to 7 (dark); the first pair has "
        "the positions next to it. The slowest pairs hardly move."
    )
    return Picture("rope-rotation", figure, caption)


def _decay(config: PositionsConfig) -> Picture:
    title = f"RoPE's long-term decay ({config.head_dim} channels)"
    figure, axes = canvas(title, (10, 6.4), 2, 2, sharey="row")
    near = np.arange(257)
    far = np.unique(np.geomspace(1, 1e5, 500).astype(int))
    for colour, base in zip(COLOURS, config.all_bases, strict=False):
        frequencies = inverse_frequencies(base, config.head_dim)
        label = f"base {base:,.0f}"
        for column, distances in enumerate((near, far)):
            bound = rope_decay(frequencies, distances)
            score = code_inner_products(frequencies, distances) / len(frequencies)
            axes[0, column].plot(distances, bound, color=colour, label=label, linewidth=1)
            axes[1, column].plot(distances, score, color=colour, label=label, linewidth=0.8)
    for axis in axes[:, 1]:
        axis.set_xscale("log")
    rows = (
        ("The paper's bound: mean of |S_j|", "mean of |S_j|"),
        ("Score of equal query and key", "score / score at distance 0"),
    )
    for row, (title, y) in enumerate(rows):
        frame(axes[row, 0], title, "distance m - n", y)
        frame(axes[row, 1], "The same, far away", "distance m - n", "")
        axes[row, 0].legend(fontsize=8)
    caption = (
        "Above: the factor of the bound that depends on the distance, as in figure 2 of the paper. "
        "Below: a score itself, of a query and a key with (1, 0) in every pair; it lies within the "
        "bound, oscillates, and becomes negative. A larger base decays later."
    )
    return Picture("rope-decay", figure, caption)


def _rope_numbers(config: PositionsConfig) -> list[Number]:
    setting = f"{config.head_dim} channels, base {config.theta:,.0f}"
    frequencies = inverse_frequencies(config.theta, config.head_dim)
    positions = np.array([0, 1, 17, 1000, 123_457, 1_000_000])
    matrix = np.asarray(rotation_matrix(positions, frequencies, layout="half"))
    between = (positions[None, :] - positions[:, None]).ravel()
    expected = np.asarray(rotation_matrix(between, frequencies, layout="half"))
    products = np.einsum("mij,nik->mnjk", matrix, matrix).reshape(expected.shape)
    error = float(np.abs(products - expected).max())
    waves = wavelengths(frequencies)
    unfinished = int((waves > config.trained_length).sum())
    trained = f"{config.trained_length} positions"
    numbers = [
        Number("rope", "largest error of R_m^T R_n = R_(n - m)", "m, n up to 1,000,000", error),
        Number("rope", "longest wavelength", setting, float(waves[-1])),
        Number("rope", "pairs that do not turn once", trained, unfinished),
    ]
    for base in config.all_bases:
        decay = rope_decay(inverse_frequencies(base, config.head_dim), np.array([0, *_DISTANCES]))
        numbers += [
            Number("rope", f"bound at distance {distance:,} / at 0", f"base {base:,.0f}", share)
            for distance, share in zip(_DISTANCES, (decay[1:] / decay[0]).tolist(), strict=True)
        ]
    return numbers


def _stretched_picture(
    config: PositionsConfig, stretched: dict[str, tuple[np.ndarray, float]]
) -> Picture:
    trained, factor = config.trained_length, config.factor
    title = (
        f"RoPE stretched from {trained:,} to {factor * trained:,.0f} positions "
        f"({config.head_dim} channels, base {config.theta:,.0f})"
    )
    figure, ((left, right),) = canvas(title, (10, 4.4), 1, 2)
    unscaled = inverse_frequencies(config.theta, config.head_dim)
    left.plot(wavelengths(unscaled), color="#555555", label="unstretched", linewidth=2)
    right.axhline(1.0, color="#555555", label="unstretched", linewidth=2)
    styles = ("-", "--", "-.", (0, (4, 1, 1, 1, 1, 1)), ":")
    for colour, style, (name, (frequencies, _)) in zip(
        COLOURS, styles, stretched.items(), strict=False
    ):
        line = {"color": colour, "label": name, "linewidth": 1.6, "linestyle": style}
        left.plot(wavelengths(frequencies), **line)
        right.plot(frequencies / unscaled, **line)
    for length in (trained, factor * trained):
        left.axhline(length, color="#999999", linewidth=0.8)
        above = {"xytext": (0, 2), "textcoords": "offset points", "fontsize": 8}
        left.annotate(f"{length:,.0f} positions", (0, length), **above)
    left.set_yscale("log")
    frame(left, "Wavelengths", "pair", "positions per turn")
    frame(right, "Stretched frequency / unstretched", "pair", "w' / w")
    right.legend(fontsize=8)
    caption = (
        "Linear interpolation slows every pair down, the fast ones too, which tell neighbours "
        "apart. NTK spreads the factor over the pairs. YaRN and Llama 3 keep the pairs that turn "
        "often in the trained length and divide those that do not turn once."
    )
    return Picture("rope-stretched", figure, caption)


def _scaling_numbers(
    config: PositionsConfig, stretched: dict[str, tuple[np.ndarray, float]]
) -> list[Number]:
    unscaled = inverse_frequencies(config.theta, config.head_dim)
    numbers = []
    for name, (frequencies, multiplier) in stretched.items():
        ratio = frequencies / unscaled
        kept = int((ratio > 1 - 1e-6).sum())
        divided = int((ratio < (1 + 1e-6) / config.factor).sum())
        found = {
            "pairs kept": kept,
            "pairs divided by the factor": divided,
            "longest wavelength": float(wavelengths(frequencies)[-1]),
            "multiplier of cos and sin": multiplier,
        }
        numbers += [Number("stretched rope", what, name, value) for what, value in found.items()]
    return numbers
