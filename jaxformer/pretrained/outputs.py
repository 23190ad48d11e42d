"""Runs a model with its weights: outputs, gradients, and activations by name."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checks import SWITCH, check_argument, plain
from jaxformer.errors import ArgumentError
from jaxformer.functional.activations import Hook, Hooks, Names, as_tuple
from jaxformer.hub.inputs import checked_inputs
from jaxformer.hub.weights.weight_file import tensors_of
from jaxformer.pretrained.dialogues import Inputs, with_prompts
from jaxformer.pretrained.model import Arrays, Metric, Pretrained, check_pretrained


def forward(
    pretrained: Pretrained,
    inputs: Inputs,
    *,
    output_hidden_states: bool = False,
    output_attentions: bool = False,
) -> dict[str, np.ndarray]:
    """Runs a model on arrays with the names of transformers.

    Args:
        pretrained: The model.
        inputs: The inputs of the model: "input_ids" and "attention_mask", "token_type_ids",
            "decoder_input_ids", "pixel_values", "labels", ... Or messages, a list of {"role":
            "user", "content": "..."} or several such lists, which the chat template renders.
        output_hidden_states: Whether to add "hidden_states" `[layers + 1, B, T, D]` (for an
            encoder-decoder "encoder_hidden_states" and "decoder_hidden_states").
        output_attentions: Whether to add "attentions" `[layers, B, N, T, S]`, the attention
            probabilities (for an encoder-decoder "encoder_attentions", "decoder_attentions" and
            "cross_attentions").

    Returns:
        "last_hidden_state", and "logits", "pooler_output", "loss", ... where the model has them.

    Raises:
        ArgumentError: An argument has a wrong value, or no layer has attention probabilities.
        DataError: An array is missing, unknown, has a wrong shape, or ids beyond a table.
    """
    options = {"hidden_states": output_hidden_states, "attentions": output_attentions}
    for name, value in options.items():
        check_argument(f"output_{name}", value, SWITCH.allows(plain(value)), SWITCH.expected)
    arrays = _arrays(pretrained, inputs)
    outputs = pretrained.outputs(arrays, **{name: bool(value) for name, value in options.items()})
    if output_attentions and not any(name.endswith("attentions") for name in outputs):
        raise ArgumentError(
            "output_attentions = True: no layer of the model has attention probabilities, the "
            "activation 'attn.hook_pattern'; jaxformer.activation_names lists what there is"
        )
    return {name: _as_numpy(array) for name, array in outputs.items()}


def gradients(pretrained: Pretrained, inputs: Arrays) -> dict[str, np.ndarray]:
    """Returns the gradient of the loss, as tensors with the names and shapes of the file's.

    Tensors that training does not change have none: sinusoidal tables (RoFormer, Pegasus), a fixed
    bias (BART's `final_logits_bias`), and what no output reads.

    Args:
        pretrained: The model.
        inputs: Arrays as for `forward`, with labels.

    Raises:
        ArgumentError: The first argument is not a model.
        DataError: As for `forward`, or there are no labels.
    """
    check_pretrained("pretrained", pretrained)
    arrays = checked_inputs(inputs, pretrained.config)
    found = pretrained.gradients(arrays)
    learned = [
        placement
        for placement in pretrained.placements
        if placement.places and all(place.parameter in found for place in placement.places)
    ]
    return dict(tensors_of(found, learned))


def run_with_cache(
    pretrained: Pretrained, inputs: Inputs, names: Names = None
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Runs a model and records activations.

    A pure function of the inputs and the parameters: it works under `jax.jit`, `jax.vmap` and
    `jax.grad`, for example with `dataclasses.replace(pretrained, parameters=...)`. The values of
    traced inputs are not checked. Layers run one by one, and where "hook_pattern" or
    "hook_attn_scores" is recorded, attention has all its probabilities in memory.

    Args:
        pretrained: The model.
        inputs: As for `forward`.
        names: The activations to record: a pattern such as "blocks.*.attn.hook_pattern", or
            several; None records all. `activation_names` lists them.

    Returns:
        The outputs of `forward`, and the activations by name, as JAX arrays.

    Raises:
        ArgumentError: A pattern matches no activation.
        DataError: As for `forward`.
    """
    arrays = _arrays(pretrained, inputs)
    return pretrained.activations(arrays, names)


def run_with_hooks(
    pretrained: Pretrained, inputs: Inputs, hooks: Mapping[str, Hook]
) -> dict[str, jax.Array]:
    """Runs a model with some activations replaced.

    A pure function, like `run_with_cache`; gradients flow through hooks and to their arrays.

    Args:
        pretrained: The model.
        inputs: As for `forward`.
        hooks: By name or pattern: a function from the activation to the value that replaces it.
            `functional.hooks` has some, such as `zero_head(5)`; these share one compiled program,
            and every other function has its own.

    Returns:
        The outputs of `forward`, as JAX arrays.

    Raises:
        ArgumentError: A pattern matches no activation, or a hook returns another shape.
        DataError: As for `forward`.
    """
    arrays = _arrays(pretrained, inputs)
    return pretrained.activations(arrays, hooks=Hooks.of(hooks))[0]


def activation_gradients(
    pretrained: Pretrained, inputs: Inputs, metric: Metric, names: Names = None
) -> dict[str, jax.Array]:
    r"""Returns the gradient of a scalar with respect to activations.

    .. math:: \partial\, m(\mathrm{outputs}) / \partial a_{name}

    where each activation is varied independently, including its effect on everything after it.
    Those of integers (the experts of a token) have no gradient and are left out.

    Args:
        pretrained: The model.
        inputs: As for `forward`.
        metric: m, a function from the outputs of `forward` to a scalar. A program is compiled for
            each function.
        names: The activations, as for `run_with_cache`.

    Returns:
        An array of the activation's shape for each name.

    Raises:
        ArgumentError: A pattern matches no activation, or the metric is not a function.
        DataError: As for `forward`.
    """
    check_argument("metric", metric, callable(metric), "a function from the outputs to a scalar")
    arrays = _arrays(pretrained, inputs)
    return pretrained.activation_gradients(arrays, metric, names)


def activation_names(
    pretrained: Pretrained, inputs: Inputs, names: Names = None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the names of a model's activations for these inputs, without computing them.

    Args:
        pretrained: The model.
        inputs: As for `forward`.
        names: Patterns, as for `run_with_cache`.

    Returns:
        The shape and dtype of each activation.

    Raises:
        ArgumentError: A pattern matches no activation.
        DataError: As for `forward`.
    """
    arrays = _arrays(pretrained, inputs)
    names = as_tuple(names)
    return jax.eval_shape(lambda arrays: pretrained.activations(arrays, names)[1], arrays)


def _arrays(pretrained: Pretrained, inputs: Inputs) -> dict[str, jax.Array]:
    check_pretrained("pretrained", pretrained)
    return checked_inputs(with_prompts(pretrained, inputs), pretrained.config)


def _as_numpy(array: jax.Array) -> np.ndarray:
    array = np.asarray(jax.device_get(array))
    return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array
