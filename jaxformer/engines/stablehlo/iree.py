"""IREE, which compiles the programs of a StableHLO export for a CPU, without XLA.

https://iree.dev/guides/ml-frameworks/jax/
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from jaxformer.engines.base import Engine, LoadedModel, Prompt
from jaxformer.engines.stablehlo import runner
from jaxformer.errors import DataError, first_line
from jaxformer.extras import optional_module

_PURPOSE = "the engine iree"


class IREEEngine(Engine):
    """IREE on a CPU; without symbolic shapes, it compiles a program for each shape."""

    name = "iree"
    module = "iree"

    def require(self) -> None:
        for name in ("iree.compiler", "iree.runtime"):
            optional_module(name, _PURPOSE)

    def load(self, folder: Path, description: Mapping[str, str]) -> LoadedModel:
        programs = _Programs(folder)
        return ProgramModel(lambda method, **given: getattr(programs, method)(**given))


class _Programs(runner.Model):
    """The runner of an export, with IREE instead of XLA."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._compiler: Any = optional_module("iree.compiler", _PURPOSE)
        self._runtime: Any = optional_module("iree.runtime", _PURPOSE)
        self._settings = self._runtime.Config("local-task")
        self._compiled: dict[Any, Any] = {}

    def call(self, name: str, *arrays: Any) -> Any:
        """Calls a program, compiled for the shapes of the arrays, with the weights."""
        given = jax.tree.map(np.asarray, (self.weights, *arrays))
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), given)
        key = (name, *(each.shape for each in jax.tree.leaves(shapes)))
        if key not in self._compiled:
            self._compiled[key] = self._compile(name, shapes)
        run, kept, structure = self._compiled[key]
        leaves = jax.tree.leaves(given)
        found = run(*(leaves[number] for number in kept))
        found = found if isinstance(found, tuple | list) else [found]
        # IREE frees mapped memory with its own array, so copy it.
        return jax.tree.unflatten(structure, [np.array(each.to_host()) for each in found])

    def _compile(self, name: str, shapes: Any) -> tuple[Any, tuple[int, ...], Any]:
        """Returns the function of a program, the inputs that it uses, and its output tree."""
        fixed = export.export(self.programs[name], platforms=("cpu",))(*shapes)
        try:
            module = self._compiler.compile_str(
                _static(fixed.mlir_module()),
                input_type="stablehlo",
                target_backends=["llvm-cpu"],
                extra_args=["--iree-llvmcpu-target-cpu=host"],
            )
        except self._compiler.CompilerToolError as error:
            raise DataError(
                f"IREE cannot compile the program {name}: {first_line(error)}"
            ) from error
        context = self._runtime.SystemContext(config=self._settings)
        code = self._runtime.VmModule.copy_buffer(context.instance, module)
        context.add_vm_module(code)
        return context.modules[code.name]["main"], fixed.module_kept_var_idx, fixed.out_tree


def _static(module: str) -> bytes:
    """Returns a module with refined static shapes, for inputs of static shapes."""
    # JAX does the same before it passes a module to XLA, but has no public function for it.
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        return mlir.module_to_string(
            mlir.refine_polymorphic_shapes(ir.Module.parse(module))
        ).encode()


class ProgramModel(LoadedModel):
    """The programs of an export, called through the methods of the runner."""

    def __init__(self, ask: Callable[..., Any]):
        """Takes a function that calls a method of `runner.Model` by name."""
        self._ask = ask

    def outputs(self, prompt: Prompt) -> np.ndarray:
        found = self._ask("forward", source=prompt.source, answer=prompt.decoder_tokens)
        return found[prompt.num_given - 1 :]

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        given = {"start": prompt.decoder_tokens, "suppressed": prompt.suppressed}
        found = self._ask("generate", source=prompt.source, count=count, **given)
        return [int(token) for token in found]
