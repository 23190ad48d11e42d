"""Adapters with random numbers, of PEFT and of ours, and what PEFT computes with them."""

import json

import numpy as np

import jaxformer
from jaxformer.hub.peft.config import PeftConfig, task_of
from jaxformer.hub.peft.files import Adapter, Factors, write_adapter
from jaxformer.models.lora import FACTORS, abstract_model_of, is_factor


def torch_model(folder, **options):
    """The model of the class that config.json names."""
    import transformers

    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    return getattr(transformers, name).from_pretrained(folder, **options).eval()


def trained(model, config, folder):
    """PEFT's model with values that are not those of the start, which is saved."""
    import peft
    import torch

    theirs = peft.get_peft_model(model, config)
    torch.manual_seed(1)
    for name, parameter in theirs.named_parameters():
        if parameter.requires_grad:
            start = float("ia3" in name or "magnitude" in name)
            parameter.data.copy_(start + 0.2 * torch.randn_like(parameter))
    theirs.eval().save_pretrained(folder)
    return theirs


def logits_of(theirs, inputs):
    """The logits that PyTorch computes."""
    import torch

    with torch.no_grad():
        return theirs(**{n: torch.tensor(x) for n, x in inputs.items()}).logits.numpy()


def check_logits(ours, theirs, inputs):
    """Asserts that both models have the same logits, which are returned."""
    logits = jaxformer.forward(ours, inputs)["logits"]
    np.testing.assert_allclose(logits, logits_of(theirs, inputs), rtol=1e-5, atol=1e-5)
    return logits


def adapter_of(structure, arrays, scale):
    """The adapter with these factors and fully trained parameters; other arrays are left out."""
    arrays = {name: np.asarray(arrays[name]) for name in structure.learning}
    factors = {
        name: Factors(*(arrays[name + end] for end in FACTORS), scale) for name in structure.targets
    }
    return Adapter(factors, {name: x for name, x in arrays.items() if not is_factor(name)})


def random_arrays(model, lora):
    """Random numbers for all that an adapter trains."""
    random, structure = np.random.default_rng(2), abstract_model_of(model.config, lora)
    return {
        name: random.normal(0, 0.2, structure.shapes[name].shape).astype(np.float32)
        for name in structure.learning
    }


def write_random(folder, model, lora, base=None):
    """Writes an adapter of random numbers; returns it, and its configuration."""
    folder.mkdir(exist_ok=True)
    structure = abstract_model_of(model.config, lora)
    adapter = adapter_of(structure, random_arrays(model, lora), lora.scale)
    task = task_of(model.checkpoint.architecture.name)
    config = PeftConfig(lora.rank, lora.alpha, lora.use_rslora, base=base and str(base), task=task)
    return adapter, write_adapter(folder, adapter, model.placements, config)
