"""`make recordings`: records transformers. Needs torch and transformers."""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

from jaxformer.hub.model_format import ModelFormat
from jaxformer.parity.compare import errors, gradient_errors
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference, save_random
from jaxformer.parity.table import parse_page
from jaxformer.pretrained.auto import load
from jaxformer.zoo import FORMATS
from recordings import Arrays, Recording

PARITY = Path(__file__).parents[2] / "docs" / "parity.md"
# One of each family, whose gradients are recorded.
FAMILIES = ("llama", "bert", "t5", "vit")
GENERATIVE = ("llama", "gpt2", "t5")
GENERATION = {
    "greedy": {"max_new_tokens": 8, "do_sample": False},
    "beams": {"max_new_tokens": 8, "do_sample": False, "num_beams": 3},
}


def described(model_format: ModelFormat) -> Recording:
    """Returns the checkpoint of a system's first class, without its outputs.

    The numbers resemble those of `save_random`: the mean and the deviation are measured.
    """
    architecture = model_format.architectures[0].name
    with tempfile.TemporaryDirectory() as scratch:
        folders = Path(scratch, "0"), Path(scratch, "1")
        for seed, folder in enumerate(folders):
            save_random(model_format.model_type, architecture, folder, seed=seed)
        first, second = (load_file(folder / "model.safetensors") for folder in folders)
        config = json.loads((folders[0] / "config.json").read_text())
    computed = {name: x for name, x in first.items() if np.array_equal(x, second[name])}
    drawn = {name: _statistics(x) for name, x in sorted(first.items()) if name not in computed}
    return Recording(architecture, config, drawn, {}, {"tensors": computed})


def _statistics(x: np.ndarray) -> tuple[list[int], int, float]:
    """The shape of an array, its mean as a whole number, and its deviation with two digits."""
    mean = round(float(np.mean(x)))
    deviation = float(np.sqrt(np.mean(np.square(x - mean))))
    return list(x.shape), mean, float(f"{deviation:.2g}")


def measured(recording: Recording, folder: Path, inputs: Arrays) -> Recording:
    """Returns the recording with what transformers makes of these inputs.

    Args:
        recording: The recording.
        folder: The checkpoint, as `Recording.write` has written it.
        inputs: The inputs.
    """
    reference = Reference(folder, recording.architecture)
    kind = recording.config["model_type"]
    theirs, exact = reference.outputs(inputs), reference.exact.outputs(inputs)
    missing = parse_page(PARITY.read_text())[kind, recording.architecture].missing
    outputs = {name: exact[name] for name in exact if name not in missing}
    rounding = {"outputs": _largest(errors(theirs, theirs, exact, inputs))}
    arrays = recording.arrays | {"inputs": inputs, "outputs": outputs}
    if kind in FAMILIES:
        theirs, exact = reference.gradients(inputs), reference.exact.gradients(inputs)
        rounding["gradients"] = _largest(gradient_errors(theirs, theirs, exact))
        arrays["gradients"] = exact
    if kind in GENERATIVE:
        arrays["prompts"] = prompts(recording.config["vocab_size"])
        tensors = {name: torch.tensor(x) for name, x in arrays["prompts"].items()}
        arrays["generated"] = {
            name: reference.model.generate(**tensors, **options).numpy()
            for name, options in GENERATION.items()
        }
    arrays = {
        kind: {name: _narrow(x) for name, x in of_kind.items()} for kind, of_kind in arrays.items()
    }
    return replace(recording, rounding=rounding, arrays=arrays)


def prompts(vocab_size: int) -> Arrays:
    """Three prompts of different lengths, padded on the left."""
    ids = np.random.default_rng(0).integers(6, vocab_size, (3, 9))
    mask = np.ones_like(ids)
    mask[0, :4] = 0
    mask[2, :1] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _largest(found) -> float:
    return max(pair.theirs for pair in found.values())


def _narrow(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) if x.dtype == np.float64 else x


def main(names: list[str]) -> None:
    """Records the systems of these names; all without one."""
    for name in names or FORMATS:
        with tempfile.TemporaryDirectory() as scratch:
            recording = described(FORMATS[name])
            folder = recording.write(Path(scratch))
            inputs = example_inputs(load(folder).checkpoint, "left", rows=2)
            measured(recording, folder, inputs).save(name)
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
