"""Runs the programs of this folder: `python run.py 12 7 9 --new-tokens 16`.

It requires JAX and flatbuffers.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np


class Model:
    """The programs and weights of a folder; manifest.json has their signatures."""

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

    def forward(self, source, answer=()):
        """Returns the outputs `[T, ...]` for a row, or for each token of its answer.

        The source is a row of tokens or a spectrogram; only encoder-decoders have an answer.
        """
        rows = [np.array([answer], np.int32)] if len(answer) else []
        return np.asarray(self.call("forward", *_row(source), *rows)[0])

    def generate(self, source, count, start=(), suppressed=()):
        """Generates tokens greedily: a continuation, or for an encoder-decoder an answer.

        An answer begins with the tokens `start`, by default those in the manifest; suppressed
        tokens are not generated.
        """
        inputs, tokens = (), source
        if "start" in self.manifest:
            inputs, tokens = _row(source), start if len(start) else self.manifest["start"]
        row = np.array([tokens], np.int32)
        logits, cache = self.call("prefill", *inputs, row, np.array([len(tokens)], np.int32))
        found = []
        while len(found) < count:
            if found:
                logits, cache = self.call("decode", np.array(found[-1:], np.int32), cache)
            scores = np.array(logits[0])
            scores[np.array(suppressed, np.int32)] = -np.inf
            found.append(int(scores.argmax()))
        return found


def _row(source):
    """Returns a batch of one spectrogram, or of one row of tokens with its mask."""
    if np.ndim(source) == 2:
        return (np.array([source], np.float32),)
    tokens = np.array([source], np.int32)
    return tokens, np.ones_like(tokens)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="+", help="tokens, or the .npy file of a spectrogram")
    parser.add_argument("--new-tokens", type=int, default=16)
    arguments = parser.parse_args()
    source = arguments.source
    is_file = source[0].endswith(".npy")
    source = np.load(source[0]) if is_file else [int(token) for token in source]
    print(*Model(Path(__file__).parent).generate(source, arguments.new_tokens))
