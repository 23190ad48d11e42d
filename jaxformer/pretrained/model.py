"""A model with its weights, and its compiled programs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from tokenizers import Tokenizer

from jaxformer.data.tokenizers.files import read_tokenizer, tokenizer_file
from jaxformer.data.tokenizers.prompts import PromptEncoder, read_prompt_encoder
from jaxformer.distributed.sharding import check_rows, mesh_of, on_rows
from jaxformer.errors import ArgumentError, DataError
from jaxformer.functional.activations import Hooks, Names, as_tuple, with_cache, with_hooks
from jaxformer.functional.arrays import on_mesh
from jaxformer.functional.masks import Mask
from jaxformer.models.model import Model, ModelConfig
from jaxformer.models.parameters import AbstractModel, Parameters

if TYPE_CHECKING:
    from jaxformer.hub.checkpoint import HFCheckpoint
    from jaxformer.hub.weights.file_layout import Layout
    from jaxformer.hub.weights.weight_map import Placement

Arrays = Mapping[str, Any]
Metric = Callable[[dict[str, jax.Array]], jax.Array]
"""Maps the outputs of a model to a scalar."""
KernelDtype = Literal["int8"]
"""A dtype of kernels in generation that differs from that of the parameters."""
NO_HOOKS = Hooks()


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A model with its weights."""

    config: ModelConfig
    """Our configuration."""
    parameters: Parameters
    """The parameters, by our names."""
    describe: Callable[[ModelConfig], "HFCheckpoint"]
    """Returns the description of a configuration of the model in the terms of transformers."""
    folder: Path | None = None
    """The folder that it was loaded from, with its tokenizer and other files."""
    layout: "Layout | None" = None
    """The layout of the loaded files; None if the tensors were cast."""
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """The folders of matching adapters by name; they are not merged into the weights."""
    token_values: Mapping[str, Any] | None = None
    """The token fields of config.json; None: those of the description."""
    weights: KernelDtype | None = None
    """The dtype of kernels in generation; None: the dtype of the parameters."""

    @cached_property
    def checkpoint(self) -> "HFCheckpoint":
        """The description of the model, in the terms of transformers and in ours."""
        return self.describe(self.config)

    @property
    def model(self) -> Model:
        """The NNX module."""
        return self.abstract_model.module(self.parameters)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, or None."""
        file = None if self.folder is None else tokenizer_file(self.folder)
        return None if file is None else read_tokenizer(file)

    @cached_property
    def prompt_encoder(self) -> PromptEncoder:
        """Encodes texts as in the model's training.

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
    def placements(self) -> "list[Placement]":
        """The tensors of the model's file, with the parameters in each."""
        from jaxformer.hub.weights.weight_file import named_placements

        checkpoint = self.checkpoint
        return named_placements(
            checkpoint.model_format, self.config, self.abstract_model, checkpoint.prefix
        )

    @property
    def mesh(self) -> jax.sharding.Mesh | None:
        """The mesh over which the weights are sharded, or None if they are on one device."""
        return mesh_of(self.parameters)

    def with_adapters(self, weights: str | Mapping[str, float]) -> "Pretrained":
        r"""Returns the model with one of its adapters, or a weighted sum of several, merged.

        .. math:: W' = W + \sum_n w_n \lambda_n A_n B_n

        Args:
            weights: The name of an adapter, or the weights w of several, by name.

        Returns:
            The model, which shares unchanged weights with this one.

        Raises:
            ConfigError: An adapter does not exist; or weights are given and an adapter has more
                than low-rank factors, or two adapters replace the same head.
        """
        from jaxformer.hub.peft.tensors import adapters_with_weights
        from jaxformer.pretrained.reader import with_adapter

        model = self
        for folder, weight in adapters_with_weights(self.adapters, weights):
            model = with_adapter(model, folder, self.mesh, weight)
        return model

    def without_parameters(self) -> "Pretrained":
        """Returns the model without weights, which are passed to `outputs` and `activations`."""
        other = replace(self, parameters={})
        vars(other).update(abstract_model=self.abstract_model, checkpoint=self.checkpoint)
        return other

    def outputs(
        self,
        inputs: Arrays,
        *,
        hidden_states: bool = False,
        attentions: bool = False,
        parameters: Parameters | None = None,
    ) -> dict[str, jax.Array]:
        """Returns the outputs of `forward` on the device, optionally with other parameters."""
        return self._run("outputs", inputs, hidden_states, attentions, parameters=parameters)

    def gradients(self, inputs: Arrays) -> Parameters:
        """Returns the gradient of the loss for each trainable parameter, by our names."""
        return self._run("gradients", inputs)

    def activations(
        self,
        inputs: Arrays,
        names: Names = (),
        hooks: Hooks = NO_HOOKS,
        parameters: Parameters | None = None,
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Returns the outputs and the named activations, computed with hooks."""
        return self._run("activations", inputs, hooks, as_tuple(names), parameters=parameters)

    def activation_gradients(
        self, inputs: Arrays, metric: Metric, names: Names = None
    ) -> dict[str, jax.Array]:
        """Returns the gradient of a scalar of the outputs with respect to the named activations."""
        return self._run("activation_gradients", inputs, metric, as_tuple(names))

    def encode(self, inputs: Arrays, hooks: Hooks = NO_HOOKS) -> tuple[jax.Array, Mask]:
        """Returns the encoder's output `[B, S, D]` for its inputs, and its mask."""
        return self._run("encode", inputs, hooks)

    def _run(
        self, name: str, inputs: Arrays, *options: Any, parameters: Parameters | None = None
    ) -> Any:
        parameters = self.parameters if parameters is None else parameters
        mesh = mesh_of(parameters)
        for array in inputs.values():
            if array.ndim:
                check_rows(mesh, len(array))
        # Inside a trace, the caller has already set the mesh.
        traced = not jax.sharding.get_abstract_mesh().empty
        with on_mesh(None if traced else mesh):
            return self._compiled[name](parameters, inputs, *options)

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
        from jaxformer.hub.families import forward

        return forward(
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
        for name in [name for name, x in cache.items() if jnp.issubdtype(x.dtype, jnp.integer)]:
            del cache[name]

        def total(added):
            hooks = {name: Partial(jnp.add, array) for name, array in added.items()}
            return metric(with_hooks(self._outputs, hooks)(parameters, inputs))

        return jax.grad(total)(jax.tree.map(jnp.zeros_like, cache))

    def _encoded(self, parameters, inputs, hooks) -> tuple[jax.Array, Mask]:
        from jaxformer.hub.families import family_of

        # The other hooks apply to the decoder.
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


def described_by(checkpoint: "HFCheckpoint") -> Callable[[ModelConfig], "HFCheckpoint"]:
    """Returns a `Pretrained.describe` that changes only the configuration of a description."""
    return lambda config: replace(checkpoint, config=config)


def with_stored_compute_dtype(pretrained: Pretrained) -> Pretrained:
    """Returns the model with compute dtype float32 if its weights are float32, else bfloat16."""
    kept = next(iter(pretrained.parameters.values())).dtype
    compute_dtype = "float32" if kept == jnp.float32 else "bfloat16"
    return replace(pretrained, config=pretrained.config.with_fields(compute_dtype=compute_dtype))


def check_pretrained(name: str, value: object) -> None:
    """Raises an ArgumentError unless an argument is a `Pretrained`."""
    if not isinstance(value, Pretrained):
        raise ArgumentError(
            f"{name} is a {type(value).__name__}: must be a model, as jaxformer.load returns it"
        )
