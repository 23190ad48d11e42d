"""The export format StableHLO, and the engine JAX, in a separate process without jaxformer."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.engines.base import Engine, Format, LoadedModel
from jaxformer.engines.speech import check_model, reference_of
from jaxformer.engines.stablehlo import runner
from jaxformer.engines.stablehlo.iree import IREEEngine, ProgramModel
from jaxformer.engines.stablehlo.programs import PLATFORMS, capacity, programs_of
from jaxformer.engines.text_models import keeps_cache
from jaxformer.errors import DataError, first_line
from jaxformer.io.model_files import copy_side_files
from jaxformer.pretrained.model import Pretrained

_RUNNER = "run.py"
_CALL = """\
import sys
folder, asked, answer, method = sys.argv[1:]
sys.path.insert(0, folder)
import numpy as np
from run import Model
model = Model(folder)
assert "jaxformer" not in sys.modules
with np.load(asked) as given:
    np.save(answer, getattr(model, method)(**{name: given[name] for name in given}))
"""


class JAXEngine(Engine):
    """JAX without jaxformer: the runner in the folder, in a separate process."""

    name = "jax"
    module = "jax"

    @property
    def version(self) -> str:
        return jax.__version__

    def load(self, folder: Path, description: Mapping[str, str]) -> LoadedModel:
        return ProgramModel(partial(_call_runner, folder.resolve()))


class StableHLOFormat(Format):
    """Programs for any number of rows and tokens, weights, and a runner."""

    name = "stablehlo"
    engines = (JAXEngine(), IREEEngine())

    def check(self, pretrained: Pretrained, quantise: str | None) -> None:
        check_model(pretrained, f"--format {self.name}")

    def write(
        self, pretrained: Pretrained, folder: Path, dtype: str | None, quantise: str | None
    ) -> None:
        """Writes the programs, weights.npz, manifest.json, run.py and the tokenizer."""
        compute = "float32" if dtype == "float32" else "bfloat16"
        model = replace(
            pretrained,
            parameters={n: x.astype(dtype) for n, x in pretrained.parameters.items()},
            config=pretrained.config.with_fields(attention="reference", compute_dtype=compute),
        )
        programs = programs_of(model)
        for name, program in programs.items():
            (folder / f"{name}.stablehlo").write_bytes(program.serialize())
        weights = {name: np.asarray(array) for name, array in model.parameters.items()}
        np.savez(folder / "weights.npz", **weights)
        manifest = {
            "architecture": pretrained.checkpoint.architecture.name,
            "jax": jax.__version__,
            "platforms": PLATFORMS,
            "programs": {name: _signature(program) for name, program in programs.items()},
            "weights": {name: array.dtype.name for name, array in weights.items()},
        }
        if keeps_cache(model.config):
            manifest["capacity"] = capacity(model)
        if model.config.is_encoder_decoder:
            manifest["start"] = reference_of(model).prompt().decoder_tokens
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        (folder / _RUNNER).write_bytes(Path(runner.__file__).read_bytes())
        copy_side_files(pretrained.folder, folder)


def _signature(program: Any) -> dict[str, list[str]]:
    """Returns the types of the inputs except weights, and of the outputs, such as "int32[b,t]"."""
    (_, *inputs), _ = jax.tree.unflatten(program.in_tree, program.in_avals)
    return {
        "inputs": [_short(each) for each in jax.tree.leaves(inputs)],
        "outputs": [_short(each) for each in program.out_avals],
    }


def _short(array: Any) -> str:
    return f"{jnp.dtype(array.dtype).name}[{','.join(map(str, array.shape))}]"


def _call_runner(folder: Path, method: str, **arguments: Any) -> np.ndarray:
    """Calls a method of the runner in a process that imports JAX without jaxformer."""
    with tempfile.TemporaryDirectory() as scratch:
        asked, answer = Path(scratch, "asked.npz"), Path(scratch, "answer.npy")
        np.savez(asked, **arguments)
        paths = [str(path) for path in (folder, asked, answer)]
        command = [sys.executable, "-I", "-c", _CALL, *paths, method]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = ValueError(done.stderr.strip().splitlines()[-1])
            raise DataError(f"{folder / _RUNNER} failed: {first_line(last)}")
        return np.load(answer)
