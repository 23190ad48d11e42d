"""Saves the pictures of a notebook that is run as a script: `python examples/01_attention.py`."""

from pathlib import Path

import matplotlib.pyplot as plt


def save(script: str) -> None:
    """Writes every figure next to the script as NAME-1.png, ..., and prints the paths."""
    folder, name = Path(script).resolve().parent, Path(script).stem
    print(f"pictures in {folder}:")
    for number in plt.get_fignums():
        plt.figure(number).savefig(folder / f"{name}-{number}.png", dpi=150)
        print(f"  {name}-{number}.png")
