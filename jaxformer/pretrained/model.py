"""Models with their weights, loaded from Hugging Face checkpoints; NumPy in and NumPy out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from tokenizers import Tokenizer

from jaxformer.data.tokenizers.files import read_tokenizer, tokenizer_file
from jaxformer.data.tokenizers.prompts import PromptEncoder, read_prompt_encoder
from jaxformer.distributed.sharding import (
    check_rows,
    mesh_of,
    on_mesh,
    on_rows,
    parameter_shardings,
)
from jaxformer.errors import ArgumentError, DataError, check_argument
from jaxformer.functional.activations import Hooks, Names, as_tuple, with_cache, with_hooks
from jaxformer.functional.masks import Mask
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.families import family_of
from jaxformer.hub.families import forward as hf_forward
from jaxformer.hub.peft.tensors import weighted
from jaxformer.hub.weights.opening import Layout, layout_of
from jaxformer.hub.weights.weight_file import (
    described,
    load_parameters,
    named_placements,
    tensor_of,
)
from jaxformer.hub.weights.weight_map import Placement
from jaxformer.io.files import write_whole
from jaxformer.io.paths import folder_path
from jaxformer.models.model import Model, ModelConfig
from jaxformer.models.parameters import AbstractModel, Parameters
from jaxformer.pretrained.export_formats import export_format
from jaxformer.pretrained.reader import CheckpointReader, open_adapted, open_folder
from jaxformer.pretrained.writing import check_max_bytes, write_beside, write_weights

Arrays = Mapping[str, Any]
Metric = Callable[[dict[str, jax.Array]], jax.Array]
"""A function from the outputs of a model to a scalar."""
DTYPES = ("float32", "bfloat16", "float16")
"""The dtypes in which weights are loaded and saved."""
NO_HOOKS = Hooks()


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A model with its weights."""

    checkpoint: HFCheckpoint
    """Its description, in the terms of transformers and in ours."""
    parameters: Parameters
    """The parameters by our names."""
    folder: Path | None = None
    """The folder it was loaded from, which has its tokenizer and other files."""
    layout: Layout | None = None
    """How the files that it came from lay out its tensors; None where they were cast."""
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """The folders of adapters that fit it, by name; no output depends on them."""

    @property
    def config(self) -> ModelConfig:
        """Our configuration."""
        return self.checkpoint.config

    @property
    def model(self) -> Model:
        """The NNX module."""
        return self.abstract_model.module(self.parameters)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, or None if the folder has none."""
        file = None if self.folder is None else tokenizer_file(self.folder)
        return None if file is None else read_tokenizer(file)

    @cached_property
    def prompt_encoder(self) -> PromptEncoder:
        """Encodes texts as the model's training did.

        Raises:
            DataError: The folder has no tokenizer.
        """
        if self.folder is None:
            raise DataError("the model has no folder, and so no tokenizer")
        return read_prompt_encoder(self.folder)

    @cached_property
    def abstract_model(self) -> AbstractModel:
        """The structure of the model."""
        return AbstractModel(self.config.build)

    @cached_property
    def placements(self) -> list[Placement]:
        """The tensors of its file and the parameters in each."""
        checkpoint = self.checkpoint
        return named_placements(
            checkpoint.model_format, self.config, self.abstract_model, checkpoint.prefix
        )

    @property
    def mesh(self) -> jax.sharding.Mesh | None:
        """The mesh that the weights are sharded over, or None if they are on one device."""
        return mesh_of(self.parameters)

    def with_adapters(self, weights: str | Mapping[str, float]) -> "Pretrained":
        r"""The model with one of its adapters, or a weighted sum of several, in its weights.

        .. math:: W' = W + \sum_n w_n \lambda_n A_n B_n

        Args:
            weights: The name of an adapter, or the weight w of each by name.

        Returns:
            The model; it shares the weights that no adapter changes.

        Raises:
            ConfigError: There is no such adapter; or there are weights and one has more than
                low-rank factors, or two replace the same head.
        """
        model = self
        for folder, weight in weighted(self.adapters, weights):
            model = with_adapter(model, folder, self.mesh, weight)
        return model

    def outputs(
        self, inputs: Arrays, *, hidden_states: bool = False, attentions: bool = False
    ) -> dict[str, jax.Array]:
        """Returns what `forward` returns, on the device."""
        return self._run("outputs", inputs, hidden_states, attentions)

    def gradients(self, inputs: Arrays) -> Parameters:
        """Returns the gradient of the loss by the parameters that learn, by our names."""
        return self._run("gradients", inputs)

    def activations(
        self, inputs: Arrays, names: Names = (), hooks: Hooks = NO_HOOKS
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Returns the outputs and the activations of some names, computed with hooks."""
        return self._run("activations", inputs, hooks, as_tuple(names))

    def activation_gradients(
        self, inputs: Arrays, metric: Metric, names: Names = None
    ) -> dict[str, jax.Array]:
        """Returns the gradient of a scalar of the outputs by the activations of some names."""
        return self._run("activation_gradients", inputs, metric, as_tuple(names))

    def encode(self, inputs: Arrays, hooks: Hooks = NO_HOOKS) -> tuple[jax.Array, Mask]:
        """Returns the encoder's output `[B, S, D]` for its inputs, and its mask."""
        return self._run("encode", inputs, hooks)

    def _run(self, name: str, inputs: Arrays, *options: Any) -> Any:
        for array in inputs.values():
            if array.ndim:
                check_rows(self.mesh, len(array))
        # Inside a trace the caller has set the mesh.
        traced = not jax.sharding.get_abstract_mesh().empty
        with on_mesh(None if traced else self.mesh):
            return self._compiled[name](self.parameters, inputs, *options)

    @cached_property
    def _compiled(self) -> dict[str, Callable]:
        return {
            "outputs": jax.jit(self._outputs, static_argnums=(2, 3)),
            "gradients": jax.jit(self._gradients),
            "encode": jax.jit(self._encoded),
            "activations": jax.jit(self._activations, static_argnums=3),
            "activation_gradients": jax.jit(self._activation_gradients, static_argnums=(2, 3)),
        }

    def _outputs(self, parameters, inputs, hidden_states=False, attentions=False) -> dict:
        return hf_forward(
            self.abstract_model.module(parameters),
            self.checkpoint,
            on_rows(inputs),
            hidden_states=hidden_states,
            attentions=attentions,
        )

    def _activations(self, parameters, inputs, hooks, names):
        hooked = with_hooks(self._outputs, hooks.by_pattern())
        return with_cache(hooked, names)(parameters, inputs)

    def _activation_gradients(self, parameters, inputs, metric, names):
        _, cache = with_cache(self._outputs, names)(parameters, inputs)

        def total(added):
            hooks = {name: Partial(jnp.add, array) for name, array in added.items()}
            return metric(with_hooks(self._outputs, hooks)(parameters, inputs))

        return jax.grad(total)(jax.tree.map(jnp.zeros_like, cache))

    def _encoded(self, parameters, inputs, hooks) -> tuple[jax.Array, Mask]:
        # Others of the hooks are for the decoder.
        encode = family_of(self.config).encode
        run = with_hooks(encode, hooks.by_pattern(), required=False)
        return run(self.abstract_model.module(parameters), self.checkpoint, on_rows(inputs))

    def _gradients(self, parameters: Parameters, inputs: Arrays) -> Parameters:
        learning = {name: parameters[name] for name in self.abstract_model.learning}
        return jax.grad(lambda moved: self._loss({**parameters, **moved}, inputs))(learning)

    def _loss(self, parameters: Parameters, inputs: Arrays) -> jax.Array:
        outputs = self._outputs(parameters, inputs)
        if "loss" not in outputs:
            raise DataError(
                f"inputs: the loss of {self.checkpoint.architecture.name} needs labels; there are "
                f"{', '.join(inputs)}"
            )
        return outputs["loss"]


def load_folder(
    folder: Path,
    dtype: str | None = "float32",
    mesh: jax.sharding.Mesh | None = None,
    strict: bool = False,
    architecture: str | None = None,
    adapter: Path | None = None,
    **model_fields: Any,
) -> Pretrained:
    """Returns the model in a Hugging Face checkpoint.

    Args:
        folder: A folder with config.json, and safetensors or msgpack files.
        dtype: The dtype of the parameters: "float32", "bfloat16" or "float16"; None keeps that of
            the files.
        mesh: The mesh that each parameter is sharded over when it is read; None: one device.
        strict: As for `open_folder`.
        architecture: The class; None: the one that config.json names.
        adapter: The folder of an adapter of PEFT to merge into the weights; None: there is none.
        **model_fields: Fields of our configuration that say how the model is computed:
            `compute_dtype`, `scan_layers`, `attention`, `remat`.

    Raises:
        ConfigError: The system is unknown, config.json has a value that is not supported, or the
            dtype is another.
        DataError: The tensors are missing, damaged or do not fit, or a weight is not finite.
    """
    dtype = checked_dtype(dtype)
    wanted = {"strict": strict, "architecture": architecture, "adapter": adapter}
    opened = open_folder(folder, **wanted, **model_fields)
    layout, structure = None if dtype else layout_of(folder), opened.abstract_model
    parameters = load_parameters(opened.file, structure, shardings_of(structure, mesh), dtype)
    return Pretrained(opened.checkpoint, parameters, folder, layout)


def with_adapter(
    pretrained: Pretrained,
    adapter: Path,
    mesh: jax.sharding.Mesh | None = None,
    weight: float = 1.0,
) -> Pretrained:
    """Returns a model with an adapter of PEFT merged into its weights.

    Args:
        pretrained: The base.
        adapter: The adapter's folder.
        mesh: The mesh that each parameter is sharded over; None: one device.
        weight: What multiplies the product of its factors, besides their scale.

    Returns:
        The model; it shares the weights that the adapter does not change.

    Raises:
        ConfigError: The adapter is of another kind, or has a setting that is not supported.
        DataError: Its tensors do not fit the base.
    """
    opened = opened_with(pretrained, adapter, weight)
    structure, found = opened.abstract_model, pretrained.parameters
    shared = {
        name: array
        for name, array in found.items()
        if name not in opened.changed
        and name in structure.shapes
        and array.shape == structure.shapes[name].shape
    }
    others = {n: x for n, x in shardings_of(structure, mesh).items() if n not in shared}
    dtype = next(iter(found.values())).dtype.name
    changed = load_parameters(opened.file, structure, others, dtype)
    parameters = {name: (shared | changed)[name] for name in structure.shapes}
    return replace(pretrained, checkpoint=opened.checkpoint, parameters=parameters, layout=None)


def opened_with(pretrained: Pretrained, adapter: Path, weight: float = 1.0) -> CheckpointReader:
    """Returns a reader of a model with an adapter of PEFT in its weights, as `with_adapter`."""
    parameters, placements = pretrained.parameters, pretrained.placements
    placed = {each.tensor: each for each in placements}
    return open_adapted(
        pretrained,
        described(parameters, placements),
        lambda name: tensor_of(parameters, placed[name]),
        adapter,
        weight=weight,
    )


def shardings_of(
    abstract_model: AbstractModel, mesh: jax.sharding.Mesh | None
) -> dict[str, jax.sharding.Sharding]:
    """Returns the sharding of each parameter: over the mesh, or all on one device."""
    if mesh is None:
        return dict.fromkeys(
            abstract_model.shapes, jax.sharding.SingleDeviceSharding(jax.devices()[0])
        )
    return parameter_shardings(mesh, abstract_model.axes, abstract_model.shapes)


def computed_as_kept(pretrained: Pretrained) -> Pretrained:
    """Returns the same model, computed in float32 if its weights are float32, else in bfloat16."""
    kept = next(iter(pretrained.parameters.values())).dtype
    compute_dtype = "float32" if kept == jnp.float32 else "bfloat16"
    config = pretrained.config.with_fields(compute_dtype=compute_dtype)
    return replace(pretrained, checkpoint=replace(pretrained.checkpoint, config=config))


def check_pretrained(name: str, value: object) -> None:
    """Raises an ArgumentError unless an argument is a `Pretrained`."""
    if not isinstance(value, Pretrained):
        raise ArgumentError(
            f"{name} is a {type(value).__name__}: must be a model, as jaxformer.load returns it"
        )


def checked_dtype(dtype: Any) -> str | None:
    """Returns the name of a dtype for parameters, or None for None.

    Args:
        dtype: Anything that names a dtype.

    Raises:
        ArgumentError: It is not one of `DTYPES`.
    """
    if dtype is None:
        return None
    try:
        name = jnp.dtype(dtype).name
    except (TypeError, ValueError, SyntaxError):
        name = ""
    check_argument("dtype", dtype, name in DTYPES, f"one of {', '.join(DTYPES)}, or None")
    return name


def save(
    pretrained: Pretrained,
    folder: str | Path,
    *,
    format: str = "hf",
    dtype: str | None = None,
    max_shard_bytes: int | None = None,
) -> None:
    """Writes a Hugging Face checkpoint, completely or not at all.

    Args:
        pretrained: The model.
        folder: A folder that does not exist or is empty.
        format: "hf": model.safetensors; "flax": flax_model.msgpack, as transformers 4 had it.
        dtype: The dtype of the tensors: "float32", "bfloat16" or "float16"; None keeps that of the
            parameters, or that of the checkpoint they came from if they were loaded without one.
        max_shard_bytes: The largest size of a file, unless a single tensor is larger; None: 5 GB,
            or as in the checkpoint.

    Raises:
        ArgumentError: An argument has a wrong value.
        ConfigError: The folder is in use, or no system or Flax class can express the model.
        DataError: The disk is full, or a weight is not finite, perhaps only in the new dtype.
    """
    check_pretrained("pretrained", pretrained)
    folder, dtype = folder_path(folder, "folder"), checked_dtype(dtype)
    target_format = export_format(format)
    target_format.check(pretrained.checkpoint, pretrained.parameters, pretrained.placements)
    check_max_bytes(max_shard_bytes)
    target = jnp.dtype(dtype or next(iter(pretrained.parameters.values())).dtype)
    sizes = [shape.size for shape in pretrained.abstract_model.shapes.values()]

    def write(written: Path) -> None:
        kept = write_weights(
            written,
            pretrained.checkpoint,
            pretrained.parameters,
            pretrained.placements,
            layout=pretrained.layout,
            dtype=dtype,
            max_bytes=max_shard_bytes,
            export_format=target_format,
        )
        write_beside(written, pretrained.checkpoint, pretrained.folder, kept)

    write_whole(folder, sum(sizes) * target.itemsize, write)
