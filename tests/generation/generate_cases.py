"""Prompts, and what transformers generates from them."""

from dataclasses import replace

import jax
import numpy as np
from tiny_models import random_parameters, structure_of

from jaxformer.distributed.sharding import parameter_shardings
from jaxformer.generation.engine import Engine
from jaxformer.generation.inputs import Prompts
from jaxformer.hub.hf_config import HFConfig

NEW = 8


def prompts(vocab_size, rows=3, length=9):
    """Ids and a mask with padding of different lengths on the left."""
    # No token is the padding's of a tiny model: RoBERTa would not count it.
    ids = np.random.default_rng(0).integers(6, vocab_size, (rows, length))
    mask = np.ones_like(ids)
    mask[0, :4], mask[2, :1] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def padded_on_the_right(left):
    """The same prompts with their padding on the other side."""
    right = {name: np.zeros_like(array) for name, array in left.items()}
    for row, real in enumerate(left["attention_mask"] > 0):
        for name, array in left.items():
            right[name][row, : real.sum()] = array[row, real]
    return right


def theirs(folder, name, inputs, **options):
    """What transformers makes of the same."""
    import torch
    import transformers

    model = getattr(transformers, name).from_pretrained(folder).eval()
    tensors = {key: torch.tensor(array) for key, array in inputs.items()}
    with torch.no_grad():
        return model.generate(
            **tensors, **options, return_dict_in_generate=True, output_scores=True
        )


def with_values(model, values):
    """The model as if its config.json had these values."""
    checkpoint = replace(model.checkpoint, hf_config=HFConfig(values))
    return replace(model, describe=lambda config: checkpoint)


def engine_of(config, mesh=None, seed=0, scale=0.4):
    """The engine of a random model, on a mesh or on one device."""
    structure, parameters = structure_of(config), random_parameters(config, seed, scale)
    if mesh is not None:
        shardings = parameter_shardings(mesh, structure.axes, structure.shapes)
        parameters = jax.device_put(parameters, shardings)
    return Engine(config, structure, parameters, mesh)


def prompts_of(*lengths, seed=0, vocab_size=31):
    """Random prompts of these lengths."""
    lengths = np.array(lengths, np.int32)
    tokens = np.random.default_rng(seed).integers(0, vocab_size, (len(lengths), lengths.max()))
    tokens[np.arange(lengths.max()) >= lengths[:, None]] = 0
    return Prompts(tokens.astype(np.int32), lengths)
