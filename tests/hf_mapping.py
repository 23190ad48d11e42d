"""A map from Hugging Face parameter names to ours, written by hand: a second oracle.

It shares nothing with the tables of `zoo`, and knows Llama, BERT and T5.
"""

import copy
import re
from collections.abc import Callable

import numpy as np

from jaxformer.models import ModelConfig
from jaxformer.parity.compare import beyond_rounding, gradient_errors

Names = dict[str, str]
"""The end of our module's path -> their module, {} for the number of the layer.

The longest end that is in the table counts, without the parts of the path in `_SILENT`: the key of
`decoder.stack.group.0.sublayers.1.attention.query` is "decoder.1.query", "1.query" or "query".
"""
_LAYERS = re.compile(r"(?:transformer|encoder|decoder)\.stack\.group\.(\d+)\.")
_LEAVES = ("kernel", "bias", "scale", "table")
_SILENT = re.compile(r"\b(?:transformer|inputs|stack\.group\.\d+|sublayers|attention|heads)\.")


def _in_blocks(block: str, modules: Names) -> Names:
    """The modules of a block, whose names start with `block` and its number."""
    return {ours: f"{block}.{{}}.{theirs}" for ours, theirs in modules.items()}


LLAMA = _in_blocks(
    "model.layers",
    {
        "norms.0": "input_layernorm",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "output": "self_attn.o_proj",
        "norms.1": "post_attention_layernorm",
        "up": "mlp.up_proj",
        "gate": "mlp.gate_proj",
        "down": "mlp.down_proj",
    },
) | {
    "embedding": "model.embed_tokens",
    "final_norm": "model.norm",
    "language_model": "lm_head",
}
BERT = _in_blocks(
    "bert.encoder.layer",
    {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "output": "attention.output.dense",
        "norms.0": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "norms.1": "output.LayerNorm",
    },
) | {
    "embedding": "bert.embeddings.word_embeddings",
    "position_table": "bert.embeddings.position_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings",
    "embedding_norm": "bert.embeddings.LayerNorm",
    "pooler": "bert.pooler.dense",
    "masked_language_model": "cls.predictions",
    "masked_language_model.dense": "cls.predictions.transform.dense",
    "masked_language_model.norm": "cls.predictions.transform.LayerNorm",
    "next_sentence.output": "cls.seq_relationship",
}


def _t5_side(side: str, attentions: tuple[str, ...]) -> Names:
    """A stack of T5, whose sublayers have the same numbers as ours."""
    block, last = f"{side}.block.{{}}.layer", len(attentions)
    modules = {
        "position_table": f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",
        "final_norm": f"{side}.final_layer_norm",
        f"{last}.up": f"{block}.{last}.DenseReluDense.wi",
        f"{last}.down": f"{block}.{last}.DenseReluDense.wo",
    }
    for number, attention in enumerate(attentions):
        for ours, theirs in {"query": "q", "key": "k", "value": "v", "output": "o"}.items():
            modules[f"{number}.{ours}"] = f"{block}.{number}.{attention}.{theirs}"
    for number in range(last + 1):
        modules[f"norms.{number}"] = f"{block}.{number}.layer_norm"
    return {f"{side}.{ours}": theirs for ours, theirs in modules.items()}


T5 = (
    _t5_side("encoder", ("SelfAttention",))
    | _t5_side("decoder", ("SelfAttention", "EncDecAttention"))
    | {"embedding": "shared", "language_model": "lm_head"}
)


def _find(names: Names, path: str) -> tuple[str, str]:
    """What they call the module of one of our parameters, and our name of the leaf."""
    module, _, leaf = _SILENT.sub("", path).rpartition(".")
    if leaf not in _LEAVES:
        module, leaf = f"{module}.{leaf}", "table"
    ends = module.split(".")
    for start in range(len(ends)):
        if (end := ".".join(ends[start:])) in names:
            return names[end], leaf
    raise KeyError(f"{path}: no name for {module}")


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
        module, leaf = _find(names, path)
        name = f"{module.format(layer)}.{'bias' if leaf == 'bias' else 'weight'}"
        return theirs[name].T if leaf == "kernel" else theirs[name]

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


def random_model(model_class: str, config: dict, std: float = 0.3):
    """A model with every parameter random; eager attention can express all of them."""
    import torch
    import transformers

    model_class = getattr(transformers, model_class)
    config = model_class.config_class(**config)
    model = model_class._from_config(config, attn_implementation="eager").eval()
    torch.manual_seed(0)
    for name, tensor in model.named_parameters():
        is_scale = tensor.ndim == 1 and name.endswith("weight")
        torch.nn.init.normal_(tensor, mean=float(is_scale), std=std)
    return model


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


def assert_same(actual: dict, expected: dict, exact: dict):
    """Nothing but rounding tells ours from theirs, and nothing is zero throughout."""
    ours, theirs, exact = (
        {name: np.asarray(x) for name, x in found.items()} for found in (actual, expected, exact)
    )
    assert ours.keys() == theirs.keys() == exact.keys()
    assert all(np.abs(x).max() > 0 for x in theirs.values())
    assert not beyond_rounding(gradient_errors(ours, theirs, exact))
