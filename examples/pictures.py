"""Saves the pictures of a notebook that is run as a script: `python examples/01_attention.py`."""

from pathlib import Path

import matplotlib.pyplot as plt


def save(script: str) -> None:
    """Writes every figure beside the script, as NAME-1.png and on, and says where."""
    folder, name = Path(script).resolve().parent, Path(script).stem
    numbers = plt.get_fignums()
    for number in numbers:
        plt.figure(number).savefig(folder / f"{name}-{number}.png", dpi=150)
    print(f"pictures: {folder}/{name}-1.png to {name}-{numbers[-1]}.png")
