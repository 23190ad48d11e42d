"""The TPU compiler's figures for the shipped recipes, and the predictions of `jaxformer plan`.

Compiles the training step of each recipe for a slice of TPUs, on this CPU, until the compiler has
assigned all memory, and writes the peak, the FLOPs and the collectives of each mesh axis, by the
compiler and in closed form. A recipe that is already in the file is predicted again, but not
compiled again. Needs libtpu.

    python benchmarks/plan_receipts.py --output benchmarks/results/plan_receipts.json

`--table` prints the file's receipts as the table of benchmarks/README.md, without compiling.
"""

import argparse
from pathlib import Path

import jax
import plan_receipt as receipts

from jaxformer.distributed.sharding import MESH_AXES

ROOT = Path(__file__).parents[1]
# Not used when the first rules of the closed form were made.
SEEN_LATER = (
    ("bert.py:base", "v5e:4x4", None),
    ("gpt2.py:medium", "v4:2x4x4", None),
    ("gpt2.py:xl", "v6e:8x8", None),
    ("t5.py:3b", "v4:4x4x4", None),
    ("vit.py:base-16", "v6e:4x4", None),
    ("vit.py:22b", "v5p:8x8x8", None),
    ("pythia.py:1.4b", "v5p:2x4x4", None),
    ("pythia.py:6.9b", "v6e:8x16", (4, 16, 2)),
    ("llama.py:llama2-7b", "v6e:16x16", None),
    ("llama.py:llama2-70b", "v5p:4x8x8", (1, 64, 4)),
    ("llama.py:llama3.2-1b", "v6e:8x8", None),
    ("gpt3.py:13b", "v5p:4x4x8", None),
    ("bart.py:base", "v6e:4x8", None),
    ("albert.py:base", "v5e:4x8", None),
    ("roberta.py:base", "tpu7x:2x2x4", None),
    ("byt5.py:small", "v5e:4x8", None),
    ("mt5.py:large", "v6e:8x16", None),
    ("t5_v1_1.py:xxl", "v5p:4x4x8", None),
)
# Each was predicted before any rule was made or changed for it.
UNSEEN = (
    ("pythia.py:410m", "v6e:4x4", None),
    ("llama.py:llama2-13b", "v5p:4x4x4", None),
    ("llama.py:llama-33b", "tpu7x:4x4x8", None),
    ("gpt2.py:large", "v5p:2x2x4", None),
    ("t5.py:large", "v5e:4x8", None),
    ("t5_v1_1.py:base", "v6e:4x4", None),
    ("byt5.py:base", "v6e:4x8", None),
    ("mt5.py:base", "v5e:4x8", None),
    ("albert.py:xlarge", "v6e:8x8", None),
    ("transformer_2017.py:base", "v6e:2x4", None),
    ("vit.py:large-16", "v4:2x4x4", None),
    ("albert.py:large", "v6e:4x8", None),
    ("byt5.py:large", "v5p:4x4x4", None),
    ("byt5.py:xxl", "v6e:8x8", None),
    ("ernie.py:3.0-base-zh", "v4:2x4x4", None),
    ("gpt3.py:small", "v5e:4x8", None),
    ("gpt3.py:medium", "v6e:4x4", None),
    ("gpt3.py:large", "v5e:8x16", None),
    ("gpt3.py:xl", "v5p:2x4x4", None),
    ("gpt3.py:2.7b", "v6e:8x8", None),
    ("gpt3.py:6.7b", "tpu7x:4x4x4", None),
    ("llama.py:llama-7b", "v5e:16x16", None),
    ("llama.py:llama-13b", "v6e:16x16", None),
    ("llama.py:llama-65b", "v5p:4x8x8", None),
    ("llama.py:llama3.2-3b", "v6e:8x16", None),
    ("mt5.py:small", "v5e:4x8", None),
    ("mt5.py:xxl", "v5p:4x8x8", None),
    ("phi.py:1.5", "v5e:16x16", None),
    ("pythia.py:70m", "v5e:4x4", None),
    ("pythia.py:160m", "v6e:2x4", None),
    ("pythia.py:1b", "tpu7x:2x4x4", None),
    ("pythia.py:2.8b", "v5e:8x16", None),
    ("t5.py:small", "v5e:4x4", None),
    ("t5.py:base", "v6e:4x4", None),
    ("t5_v1_1.py:small", "v4:2x2x4", None),
    ("t5_v1_1.py:large", "v5e:4x8", None),
    ("whisper.py:base", "v5e:4x8", None),
)
# Compiled before the rule for the rows that convolutions read.
SOUNDS = (("wav2vec2.py:base", "v5e:4x8", None),)
# Each was predicted before it was compiled.
LARGE_SOUNDS = (("wav2vec2.py:large", "v5p:4x4x4", None), ("whisper.py:large", "v5p:4x4x4", None))
# Each published size of each file of configs/; a slice; data x fsdp x tensor where the recipe's own
# mesh does not divide its vocabulary, or to cut heads as well.
RECIPES = (
    ("llama.py:llama3-8b", "v5p:4x4x4", None),
    ("gpt2.py:small", "v5e:4x4", None),
    ("bert.py:large", "v6e:4x4", None),
    ("t5.py:11b", "v5p:4x4x4", None),
    ("vit.py:huge-14", "v5e:16x16", None),
    ("gemma.py:2b", "v6e:16x16", None),
    ("gptj.py:6b", "v5e:16x16", None),
    ("llama.py:llama3-405b", "v5p:8x8x16", (4, 256, 1)),
    ("roberta.py:large", "v6e:8x16", None),
    ("bart.py:large", "v5p:4x4x4", None),
    ("transformer_2017.py:big", "v5e:4x4", None),
    ("mistral.py:7b", "tpu7x:4x4x4", None),
    ("pythia.py:12b", "v5p:4x4x8", None),
    ("phi.py:2", "v6e:16x16", None),
    ("gpt.py:117m", "v5e:2x4", None),
    ("distilbert.py", "v6e:8x8", None),
    ("albert.py:xxlarge", "v5p:4x4x8", None),
    ("ernie.py:2.0-base-en", "v5e:8x8", None),
    ("byt5.py:xl", "v6e:8x16", None),
    ("mt5.py:xl", "v6e:16x16", None),
    ("t5_v1_1.py:xl", "v6e:8x16", None),
    ("gpt3.py:175b", "v5p:8x8x8", (4, 64, 2)),
    ("llama.py:llama3-70b", "v5p:8x8x8", (2, 256, 1)),
    *SEEN_LATER,
    *UNSEEN,
    *SOUNDS,
    *LARGE_SOUNDS,
)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--output", type=Path, required=True, help="the file, read and rewritten")
    options.add_argument("--only", nargs="+", help="recipes; default: all of them")
    options.add_argument("--table", action="store_true", help="print the file as a table")
    options.add_argument("--again", action="store_true", help="compile what the file has, too")
    arguments = options.parse_args()
    jax.config.update("jax_platforms", "cpu")

    found = receipts.read(arguments.output) if arguments.output.exists() else {}
    if arguments.table:
        print(table(found))
        return
    for recipe, chips, sizes in RECIPES:
        if arguments.only and recipe not in arguments.only:
            continue
        spec = str(ROOT / "configs" / recipe)
        known = found.get(recipe)
        if known is None or known.chips != chips or arguments.again:
            mesh = sizes and dict(zip(MESH_AXES, sizes, strict=True))
            known = receipts.compiled(recipe, spec, chips, mesh)
        found[recipe] = receipts.predicted(known, spec)
        receipts.write(arguments.output, found)
        print(receipts.line(found[recipe]), flush=True)


def table(found: dict[str, receipts.Receipt]) -> str:
    """The receipts as a table in Markdown: sizes in GiB, FLOPs and traffic of one step."""
    titles = (
        "recipe",
        "chips",
        "compiler, GiB",
        "predicted, GiB",
        "ratio",
        "PFLOPs of a step",
        "sent, by the compiler",
        "sent, in closed form",
    )
    lines = [titles, ["---"] * 2 + ["---:"] * 4 + ["---"] * 2]
    for each in found.values():
        peaks = (f"{size / 2**30:.2f}" for size in (each.peak_bytes, each.predicted_bytes))
        flops = f"{each.flops / 1e15:,.1f}"
        sent = sent_by(each.collectives), sent_by(each.predicted_collectives or [])
        name = each.recipe.replace(".py", "")
        lines.append([name, each.chips, *peaks, f"{each.ratio:.2f}", flops, *sent])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sent_by(collectives: list[dict]) -> str:
    """The bytes that one device sends in a step, by kind and axes, leaving out those below 1 %."""
    whole = sum(each["bytes"] for each in collectives)
    large = [each for each in collectives if each["bytes"] > 0.01 * whole]
    return ", ".join(
        f"{each['bytes'] / 1e9:.1f} GB {each['kind']} ({'+'.join(each['axes'])})" for each in large
    )


if __name__ == "__main__":
    main()
