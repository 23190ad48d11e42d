"""The map from Hugging Face parameter names to ours, and a comparison of what both compute."""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxformer.models import ModelConfig
from jaxformer.parity.compare import beyond_rounding, gradient_errors

_LAYERS = re.compile(r"(?:transformer|encoder|decoder)\.stack\.group\.(\d+)\.")
_LEAVES = ("kernel", "bias", "scale", "table")
# Parts of our paths that tell nothing apart.
_SILENT = re.compile(r"\b(?:transformer|inputs|stack\.group\.\d+|sublayers|attention|heads)\.")


@dataclass(frozen=True)
class Names:
    """What our modules are called in transformers."""

    modules: dict[str, str]
    """The end of our module's path -> their module or tensor, {} for the number of the layer.

    The longest end that is in the table counts, and `_SILENT` parts of the path do not: the key of
    `decoder.stack.group.0.sublayers.1.attention.query` is "decoder.1.query", "1.query" or "query".
    """
    parts: Callable | None = None
    """Takes the part 0, 1 or 2 of a tensor that holds query, key and value."""
    outputs_last: bool = False
    """Kernels of the blocks are `[inputs, outputs]`, as ours; all else is `[outputs, inputs]`."""

    def __or__(self, modules: dict[str, str]) -> "Names":
        """With more modules, or other names for some."""
        return Names(self.modules | modules, self.parts, self.outputs_last)

    def find(self, path: str) -> tuple[str, str, str]:
        """Our module (the key of the table), its leaf, and what they call the module."""
        module, _, leaf = _SILENT.sub("", path).rpartition(".")
        if leaf not in _LEAVES:
            module, leaf = f"{module}.{leaf}", "table"
        ends = module.split(".")
        for start in range(len(ends)):
            if (end := ".".join(ends[start:])) in self.modules:
                return end, leaf, self.modules[end]
        raise KeyError(f"{path}: no name for {module}")


def names(block: str, inside: dict, outside: dict, **layout) -> Names:
    """`inside` are the modules of a block, whose names start with `block` and its number."""
    inside = {ours: f"{block}.{{}}.{theirs}" for ours, theirs in inside.items()}
    return Names(outside | inside, **layout)


def our_parameters(config: ModelConfig, names: Names, theirs: dict, shapes: dict) -> dict:
    """Our parameters from their tensors: a linear, differentiable map that only moves numbers.

    Args:
      config: our model.
      names: what its modules are called there.
      theirs: name -> torch tensor.
      shapes: our name -> anything with a `shape`.
    """
    import torch

    def tensor(path: str, layer: int):
        module, leaf, name = names.find(path)
        name = name.format(layer)
        if name not in theirs:
            name = f"{name}.{'bias' if leaf == 'bias' else 'weight'}"
        found = theirs[name]
        if names.parts is not None and module in ("query", "key", "value"):
            part = ("query", "key", "value").index(module)
            found = names.parts(found, part, config.num_heads)
        as_ours = names.outputs_last and _LAYERS.match(path)
        return _inputs_first(found) if leaf == "kernel" and not as_ours else found

    ours = {}
    for path, like in shapes.items():
        if (inside := _LAYERS.match(path)) is None:
            ours[path] = tensor(path, 0).reshape(like.shape)
        else:
            start, step = int(inside[1]), len(config.windows)
            layers = range(start, start + step * like.shape[0], step)
            rows = [tensor(path, layer).reshape(like.shape[1:]) for layer in layers]
            ours[path] = torch.stack(rows)
    return ours


def _inputs_first(kernel):
    """`[outputs, inputs]` as `[inputs, outputs]`, and `[D, C, P, Q]` as `[P, Q, C, D]`."""
    return kernel.permute(2, 3, 1, 0) if kernel.ndim == 4 else kernel.T


def random_model(model_class: str, config: dict, std: float = 0.3):
    """A model with every parameter random; eager attention can express all of them."""
    import torch
    import transformers

    model_class = getattr(transformers, model_class)
    config = model_class.config_class(**config)
    model = model_class._from_config(config, attn_implementation="eager").eval()
    torch.manual_seed(0)
    for name, tensor in tensors(model).items():
        is_scale = tensor.ndim == 1 and name.endswith("weight")
        torch.nn.init.normal_(tensor, mean=float(is_scale), std=std)
    return model


def tensors(model) -> dict:
    """What can be learned, and BART's and Marian's bias, which their files hold besides."""
    found = {name: x for name, x in model.named_parameters() if x.requires_grad}
    biases = {n: x for n, x in model.named_buffers() if n == "final_logits_bias"}
    return found | {name: bias.requires_grad_() for name, bias in biases.items()}


def their_gradients(mapped: dict, theirs: dict, gradients: dict) -> dict:
    """Our gradients taken back to theirs, by the transpose of the map between the parameters."""
    import torch

    ours = [torch.tensor(np.asarray(gradients[name])) for name in mapped]
    back = torch.autograd.grad(list(mapped.values()), theirs.values(), ours)
    return {name: gradient.numpy() for name, gradient in zip(theirs, back, strict=True)}


def in_both_precisions(compute: Callable, model):
    """What `compute` makes of their model, and of the same numbers in float64."""
    from jaxformer.parity.reference import float64_throughout

    found = compute(model)
    with float64_throughout():
        return found, compute(copy.deepcopy(model).double())


def of_its_precision(model, arguments: dict) -> dict:
    """Their arguments, as precise as their model."""
    dtype = next(model.parameters()).dtype
    return {n: x.to(dtype) if x.is_floating_point() else x for n, x in arguments.items()}


def assert_same(actual: dict, expected: dict, exact: dict):
    """Nothing but rounding tells ours from theirs, and nothing is zero throughout."""
    ours, theirs, exact = (
        {name: np.asarray(x) for name, x in found.items()} for found in (actual, expected, exact)
    )
    assert ours.keys() == theirs.keys() == exact.keys()
    assert all(np.abs(x).max() > 0 for x in theirs.values())
    assert not beyond_rounding(gradient_errors(ours, theirs, exact))
