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
    """Runs a model on arrays named as in transformers.

    Args:
        pretrained: The model.
        inputs: The inputs of the model: "input_ids" and "attention_mask", "token_type_ids",
            "decoder_input_ids", "pixel_values", "labels", ... Or messages, a list of {"role":
            "user", "content": "..."} or several such lists, which are rendered with the chat
            template.
        output_hidden_states: Whether to add "hidden_states" `[layers + 1, B, T, D]` (for an
            encoder-decoder "encoder_hidden_states" and "decoder_hidden_states").
        output_attentions: Whether to add "attentions" `[layers, B, N, T, S]`, the attention
            probabilities (for an encoder-decoder "encoder_attentions", "decoder_attentions" and
            "cross_attentions").

    Returns:
        "last_hidden_state", and "logits", "pooler_output", "loss", ... if the model has them.

    Raises:
        ArgumentError: An argument has a wrong value, or no layer has attention probabilities.
        DataError: An array is missing or unknown, or has a wrong shape or ids beyond a table.
    """
    options = {"hidden_states": output_hidden_states, "attentions": output_attentions}
    for name, value in options.items():
        check_argument(f"output_{name}", value, SWITCH.allows(plain(value)), SWITCH.expected)
    arrays = _arrays(pretrained, inputs)
    outputs = pretrained.outputs(arrays, **{name: bool(value) for name, value in options.items()})
    if output_attentions and not any(name.endswith("attentions") for name in outputs):
        raise ArgumentError(
            "output_attentions = True: no layer of the model has attention probabilities, the "
            "activation 'attn.hook_pattern'; jaxformer.activation_names lists the available ones"
        )
    return {name: _as_numpy(array) for name, array in outputs.items()}


def gradients(pretrained: Pretrained, inputs: Arrays) -> dict[str, np.ndarray]:
    """Returns the gradient of the loss as tensors, with their names and shapes in the file.

    Tensors that are not trained are left out: sinusoidal tables (RoFormer, Pegasus), a fixed bias
    (BART's `final_logits_bias`), and unused tensors.

    Args:
        pretrained: The model.
        inputs: Arrays as for `forward`, with labels.

    Raises:
        ArgumentError: The first argument is not a model.
        DataError: As for `forward`, or the labels are missing.
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

    This is a pure function of the inputs and the parameters, which works under `jax.jit`,
    `jax.vmap` and `jax.grad`, for example with `dataclasses.replace(pretrained, parameters=...)`.
    The values of traced inputs are not checked. Layers run one by one, and if "hook_pattern" or
    "hook_attn_scores" is recorded, attention materializes all its probabilities.

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

    This is a pure function, like `run_with_cache`; gradients flow through hooks and to their
    arrays.

    Args:
        pretrained: The model.
        inputs: As for `forward`.
        hooks: Functions from an activation to its replacement, by name or pattern. Those of
            `functional.hooks`, such as `zero_head(5)`, share one compiled program; for every other
            function a program is compiled.

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

    where each activation is varied independently, including its effect on all later ones. Integer
    activations (the experts of a token) have no gradient and are left out.

    Args:
        pretrained: The model.
        inputs: As for `forward`.
        metric: The function m from the outputs of `forward` to a scalar. A program is compiled for
            each function.
        names: The activations, as for `run_with_cache`.

    Returns:
        The gradients by name, with the shapes of the activations.

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
    """Returns the names of a model's activations for some inputs, without computing them.

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
