"""``jaxformer zoo``: the published systems."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from jaxformer.config.experiment import Config, load_config
from jaxformer.config.shipped import config_spec
from jaxformer.errors import ArgumentError, did_you_mean
from jaxformer.io.console import console, plain_table
from jaxformer.zoo import SYSTEMS, System
from jaxformer.zoo.details import ModelDetails, model_details

Name = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="SYSTEM")]


@dataclass(frozen=True)
class Zoo:
    """Lists the published systems.

    Shows the family, positional scheme and norm of each system, its published and computed
    parameter counts, and the config that trains it: `jaxformer train bert:base`.
    """

    name: Name = None
    """A system, such as llama3-8b, or a prefix of several names: llama (default: all)."""
    details: bool = False
    """Show the sizes of each system, its parameters by part, and its FLOPs per token."""


def zoo(options: Zoo) -> None:
    """Prints the table of published systems."""
    systems = _chosen(options.name)
    if not options.details:
        _print_list(systems)
    elif len(systems) == 1:
        _print_one(systems[0])
    else:
        _print_details(systems)


def _chosen(name: str | None) -> list[System]:
    if name is None:
        return list(SYSTEMS.values())
    found = [SYSTEMS[name]] if name in SYSTEMS else []
    found = found or [system for each, system in SYSTEMS.items() if each.startswith(name)]
    if not found:
        advice = did_you_mean(name, SYSTEMS, 3) or "; jaxformer zoo lists them"
        raise ArgumentError(f"{name!r} is not a published system in this library{advice}")
    return found


def _print_list(systems: Sequence[System]) -> None:
    out = console()
    titles = ["system", "family", "positions", "norm", "published >", "computed >"]
    if has_room := out.width >= 126:
        titles.append("jaxformer train ...")
    table = plain_table(*titles, no_wrap=True)
    for system in systems:
        config = [system.recipe.replace(".py", "")] if has_room else []
        stack = system.config.stacks[0]
        table.add_row(
            system.name,
            system.family,
            type(system.config.position).__name__,
            f"{type(stack.residual).__name__}, {type(stack.norm).__name__}",
            system.published,
            f"{system.count_parameters():,}",
            *config,
        )
    out.print(table)
    notes = [system for system in systems if system.note]
    if notes:
        print("\nWhere they differ, the published number counts")
    for system in notes:
        print(f"  {system.name}: {system.note}")


def _recipe(system: System) -> Config | None:
    """Returns the config that trains a system; None if it is trained with another model."""
    return load_config(config_spec(system.recipe.replace(".py", ""))) if system.recipe else None


def _details(system: System, recipe: Config | None) -> ModelDetails:
    """Describes the sizes of a system, with rows as long as in its recipe or its maximum length."""
    config, lengths = system.config, {"inputs": system.config.position.max_length or 512}
    if config.is_encoder_decoder:
        lengths["decoder_inputs"] = config.decoder_position.max_length or 512
    return model_details(config, recipe.data.lengths if recipe else lengths)


def _print_details(systems: Iterable[System]) -> None:
    parts = ("embedding", "positions", "W^Q", "W^K", "W^V", "W^O", "mlp", "norms", "head")
    sizes = ("L", "D", "N", "K", "H", "F", "V", "T")
    numbers = (*sizes, "params", *parts, "FLOPs", "activation", "theta")
    titles = ("system", *(f"{title} >" for title in numbers))
    table = plain_table(*titles, no_wrap=True, padding=(0, 1))
    for system in systems:
        found = _details(system, _recipe(system))
        counts = [_short(found.parameters.get(part, 0)) for part in parts]
        table.add_row(
            system.name,
            *(cell for _, cell in _sizes(found)),
            _short(found.num_parameters),
            *counts,
            _short(found.forward_flops),
            *_kinds(found),
        )
    out = console()
    out.width = max(200, out.width)
    out.print(table)
    print(
        "\nL layers, D width, N heads, K key/value heads, H head width, F feed-forward width, V "
        "vocabulary, T tokens per training row.\nParameters: in total and per part; a tied "
        "embedding is counted once, poolers count as heads.\nFLOPs: per (input) token of a "
        "forward pass on rows of T tokens; a multiply-add counts as two.\nActivation: of the "
        "feed-forward layer, or its gating; theta: the base of positional frequencies."
    )


def _sizes(found: ModelDetails) -> list[tuple[str, str]]:
    vocabulary = "" if found.vocab_size is None else f"{found.vocab_size:,}"
    each = found.parts or (found,)

    def sizes(name: str) -> str:
        return "+".join(f"{getattr(part, name):,}" for part in each)

    return [
        ("layers (L)", "+".join(map(str, found.num_layers))),
        ("width (D)", sizes("model_dim")),
        ("heads (N)", sizes("num_heads")),
        ("key/value heads (K)", sizes("num_kv_heads")),
        ("head width (H: d_k, d_v)", sizes("head_dim")),
        ("feed-forward width (F)", sizes("mlp_dim")),
        ("vocabulary (V)", vocabulary),
        ("tokens per training row (T)", "+".join(map(str, found.lengths.values()))),
    ]


def _kinds(found: ModelDetails) -> tuple[str, str]:
    """Describes the feed-forward layer and the base of positional frequencies of each part."""
    each = found.parts or (found,)
    thetas = ["" if part.theta is None else f"{part.theta:,g}" for part in each]
    return "+".join(part.feed_forward for part in each), "+".join(filter(None, thetas))


def _print_one(system: System) -> None:
    recipe = _recipe(system)
    found = _details(system, recipe)
    flops = found.flops
    rows = [("family", system.family), *(size for size in _sizes(found) if size[1])]
    names = ("activation or gating", "base of positional frequencies (theta)")
    rows += [row for row in zip(names, _kinds(found), strict=True) if row[1]]
    rows.append(("parameters, published", system.published))
    rows.append(("parameters, computed", f"{found.num_parameters:,}"))
    if found.unused:
        rows.append(("parameters, of a token", f"{found.active_parameters:,}"))
    for part, count in found.parameters.items():
        share = f"{100 * count / found.num_parameters:5.1f} %"
        rows.append((f"  {part}", f"{count:,}  {share}"))
    rows.append(("FLOPs per token, forward", f"{found.forward_flops:.4g}"))
    rows.append(("  products with parameters", f"{flops.products:.4g}"))
    rows.append(("  attention, unmasked keys", f"{flops.causal_attention:.4g}"))
    rows.append(("  attention, all keys", f"{flops.attention:.4g}"))
    rows += _training(recipe) if recipe else []
    print(system.name)
    console().print(plain_table("", ">", rows=rows, no_wrap=True, show_header=False))
    print(f"source: {system.source}")
    if system.note:
        print(f"the published number of parameters counts {system.note}")


def _training(recipe: Config) -> list[tuple[str, str]]:
    """Describes the recipe's training, if it has a single learning rate."""
    tokens = recipe.data.batch_size * sum(recipe.model.row_lengths(recipe.data.lengths).values())
    rows = [
        ("training: tokens per step", f"{tokens:,}"),
        ("training: steps", f"{recipe.train.steps:,}"),
        ("training: tokens", f"{tokens * recipe.train.steps:.4g}"),
    ]
    peak = getattr(getattr(recipe.optimizer, "schedule", None), "learning_rate", None)
    return rows if peak is None else [*rows, ("training: peak learning rate", f"{peak:g}")]


def _short(count: float) -> str:
    """Formats a count with three digits: "8.03B"."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * size:  # rounds to 1.00
            return f"{count / size:.3g}{letter}"
    return f"{count:.0f}"
