"""What transformers computed, recorded: `make test` compares with it and needs no PyTorch.

There is one small model of each system. `NAME.json` has its configuration as transformers saved it
and, for each tensor of the checkpoint, the shape, the mean and the deviation of its numbers, which
`Recording.write` draws. `NAME.safetensors` has the inputs, the outputs of transformers in float64,
and the few tensors that are computed and not learned. `make recordings` writes both.
"""

import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

HOME = Path(__file__).parent
NAMES = sorted(file.stem for file in HOME.glob("*.json"))
"""The systems."""
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Recording:
    """A checkpoint and what transformers makes of it."""

    architecture: str
    """The name of the class in transformers."""
    config: dict[str, Any]
    """config.json."""
    drawn: dict[str, tuple[list[int], int, float]]
    """The shape, mean and deviation of each tensor that is drawn."""
    rounding: dict[str, float]
    """The largest error of transformers in float32, of "outputs" and of "gradients"."""
    arrays: dict[str, Arrays]
    """"tensors" that are not drawn, "inputs", "outputs", and for some systems "gradients",
    "prompts" and "generated"."""

    @classmethod
    def read(cls, name: str) -> "Recording":
        """Reads the recording of a system."""
        arrays: dict[str, Arrays] = {}
        for path, array in load_file(HOME / f"{name}.safetensors").items():
            kind, _, name_of_array = path.partition("/")
            arrays.setdefault(kind, {})[name_of_array] = array
        return cls(**json.loads((HOME / f"{name}.json").read_text()), arrays=arrays)

    def save(self, name: str) -> None:
        """Writes the recording of a system."""
        arrays = {
            f"{kind}/{name}": np.array(array, order="C")
            for kind, of_kind in self.arrays.items()
            for name, array in of_kind.items()
        }
        save_file(arrays, HOME / f"{name}.safetensors")
        lines = [f"  {json.dumps(name)}: {json.dumps(drawn)}" for name, drawn in self.drawn.items()]
        text = json.dumps(
            {
                "architecture": self.architecture,
                "config": self.config,
                "rounding": self.rounding,
                "drawn": {},
            },
            indent=1,
        )
        table = "{\n" + ",\n".join(lines) + "\n }"
        (HOME / f"{name}.json").write_text(text.replace("{}\n}", f"{table}\n}}") + "\n")

    def write(self, folder: Path) -> Path:
        """Writes the checkpoint and returns its folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file(self.tensors(), folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def tensors(self) -> Arrays:
        """Returns the tensors of the checkpoint."""
        drawn = {name: draw(name, *numbers) for name, numbers in self.drawn.items()}
        return drawn | self.arrays.get("tensors", {})


def draw(name: str, shape: list[int], mean: int, deviation: float) -> np.ndarray:
    """Returns uniform numbers that depend on the name alone.

    They come from the bits of Philox, which NumPy keeps the same in all versions.
    """
    bits = np.random.Philox(key=zlib.crc32(name.encode())).random_raw(math.prod(shape))
    uniform = (bits >> np.uint64(11)) * 2.0**-53 - 0.5
    return (mean + deviation * math.sqrt(12) * uniform).astype(np.float32).reshape(shape)
