"""Runs the programs of this folder with JAX alone: `python run.py 12 7 9 --new-tokens 16`."""

import argparse
import json
from pathlib import Path

import jax
import numpy as np


class Model:
    """The programs and weights of a folder; manifest.json says what they read and return."""

    def __init__(self, folder):
        """Reads the folder."""
        folder = Path(folder)
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.programs = {}
        for name in self.manifest["programs"]:
            data = bytearray((folder / f"{name}.stablehlo").read_bytes())
            self.programs[name] = jax.jit(jax.export.deserialize(data).call)
        with np.load(folder / "weights.npz") as arrays:
            dtypes = self.manifest["weights"]
            self.weights = {name: arrays[name].view(np.dtype(dtypes[name])) for name in arrays}

    def call(self, name, *arrays):
        """Calls a program with the weights."""
        return self.programs[name](self.weights, *arrays)

    def forward(self, *rows):
        """Returns the outputs `[T, ...]` of a row, or of an encoder's and a decoder's row."""
        tokens = np.array([rows[0]], np.int32)
        others = [np.array([row], np.int32) for row in rows[1:]]
        return np.asarray(self.call("forward", tokens, np.ones_like(tokens), *others)[0])

    def generate(self, tokens, count, start=None):
        """Returns the likeliest next tokens of a decoder, or those after `start` for a text."""
        if start is not None:
            return self.answer(tokens, count, start)
        row = np.array([tokens], np.int32)
        logits, cache = self.call("prefill", row, np.array([len(tokens)], np.int32))
        found = [int(logits[0].argmax())]
        while len(found) < count:
            logits, cache = self.call("decode", np.array(found[-1:], np.int32), cache)
            found.append(int(logits[0].argmax()))
        return found

    def answer(self, tokens, count, start):
        """Returns the likeliest answer of an encoder-decoder, which keeps no cache here."""
        row = [start] + [0] * count  # a decoder sees no later token: the rest may be anything
        for place in range(count):
            row[place + 1] = int(self.forward(tokens, row)[place].argmax())
        return row[1:]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens", type=int, nargs="+")
    parser.add_argument("--new-tokens", type=int, default=16)
    arguments = parser.parse_args()
    print(*Model(Path(__file__).parent).generate(arguments.tokens, arguments.new_tokens))
