"""What transformers calls the parameters of published decoders, and the map from theirs to ours."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from jaxformer.models import DecoderConfig

# stack.group.<group>.(...).<module>.<leaf>, <module>.<leaf> or <module>_<leaf>
_PATH = re.compile(
    r"(?:stack\.group\.(\d+)\.)?(?:.*\.)??(norms\.\d|\w+?)[._](kernel|bias|scale|table)"
)


def conv1d_parts(tensor, part, num_heads):
    """GPT-2's fused projection, `[..., 3 * heads * width]`."""
    return tensor.chunk(3, dim=-1)[part]


def per_head_parts(tensor, part, num_heads):
    """GPT-NeoX's and BLOOM's fused projection, `[heads * 3 * width, ...]`."""
    return tensor.unflatten(0, (num_heads, 3, -1))[:, part].flatten(0, 1)


@dataclass(frozen=True)
class Names:
    """What our modules are called in transformers."""

    modules: dict[str, str]
    """Our module (the last part of its path) -> theirs, with {} for the number of the layer."""
    parts: Callable | None = None
    """Takes the part 0, 1 or 2 of a tensor that holds query, key and value."""
    outputs_last: bool = False
    """Kernels are `[inputs, outputs]`, as ours, and not torch's `[outputs, inputs]`."""


def names(block: str, inside: dict, outside: dict, **layout) -> Names:
    """`inside` are the modules of a block, whose names start with `block` and its number."""
    inside = {ours: f"{block}.{{}}.{theirs}" for ours, theirs in inside.items()}
    return Names(outside | inside, **layout)


def our_parameters(config: DecoderConfig, names: Names, theirs: dict, shapes: dict) -> dict:
    """Our parameters from their tensors: a linear, differentiable map that only moves numbers.

    Args:
      config: our decoder.
      names: what its modules are called there.
      theirs: name -> torch tensor.
      shapes: our name -> anything with a `shape`.
    """
    import torch

    def tensor(module: str, leaf: str, layer: int):
        name = names.modules[module].format(layer)
        found = theirs[f"{name}.{'bias' if leaf == 'bias' else 'weight'}"]
        if names.parts is not None and module in ("query", "key", "value"):
            part = ("query", "key", "value").index(module)
            found = names.parts(found, part, config.num_heads)
        return found.T if leaf == "kernel" and not names.outputs_last else found

    ours = {}
    for path, like in shapes.items():
        group, module, leaf = _PATH.fullmatch(path).groups()
        if group is None:
            ours[path] = tensor(module, leaf, 0).reshape(like.shape)
        else:
            layers = range(int(group), config.num_layers, len(config.windows))
            rows = [tensor(module, leaf, layer).reshape(like.shape[1:]) for layer in layers]
            ours[path] = torch.stack(rows)
    return ours


GPT2 = names(
    "transformer.h",
    {
        "norms.0": "ln_1",
        "query": "attn.c_attn",
        "key": "attn.c_attn",
        "value": "attn.c_attn",
        "output": "attn.c_proj",
        "norms.1": "ln_2",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    },
    {
        "embedding": "transformer.wte",
        "position": "transformer.wpe",
        "final_norm": "transformer.ln_f",
    },
    parts=conv1d_parts,
    outputs_last=True,
)
GPT_OUTSIDE = {"embedding": "transformer.tokens_embed", "position": "transformer.positions_embed"}
GPT = Names(GPT2.modules | GPT_OUTSIDE, parts=conv1d_parts, outputs_last=True)
GPTJ = names(
    "transformer.h",
    {
        "norms.0": "ln_1",
        "query": "attn.q_proj",
        "key": "attn.k_proj",
        "value": "attn.v_proj",
        "output": "attn.out_proj",
        "up": "mlp.fc_in",
        "down": "mlp.fc_out",
    },
    {"embedding": "transformer.wte", "final_norm": "transformer.ln_f", "head": "lm_head"},
)
NEOX = names(
    "gpt_neox.layers",
    {
        "norms.0": "input_layernorm",
        "query": "attention.query_key_value",
        "key": "attention.query_key_value",
        "value": "attention.query_key_value",
        "output": "attention.dense",
        "norms.1": "post_attention_layernorm",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
    {
        "embedding": "gpt_neox.embed_in",
        "final_norm": "gpt_neox.final_layer_norm",
        "head": "lm_head",
    },
    parts=per_head_parts,
)
BLOOM = names(
    "transformer.h",
    {
        "norms.0": "input_layernorm",
        "query": "self_attention.query_key_value",
        "key": "self_attention.query_key_value",
        "value": "self_attention.query_key_value",
        "output": "self_attention.dense",
        "norms.1": "post_attention_layernorm",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
    {
        "embedding": "transformer.word_embeddings",
        "embedding_norm": "transformer.word_embeddings_layernorm",
        "final_norm": "transformer.ln_f",
    },
    parts=per_head_parts,
)
PHI = names(
    "model.layers",
    {
        "norms.0": "input_layernorm",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "output": "self_attn.dense",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    },
    {"embedding": "model.embed_tokens", "final_norm": "model.final_layernorm", "head": "lm_head"},
)
LLAMA_BLOCK = {
    "norms.0": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "norms.1": "post_attention_layernorm",
    "up": "mlp.up_proj",
    "gate": "mlp.gate_proj",
    "down": "mlp.down_proj",
}
LLAMA_OUTSIDE = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
LLAMA = names("model.layers", LLAMA_BLOCK, LLAMA_OUTSIDE)
QWEN3_NORMS = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
QWEN3 = names("model.layers", LLAMA_BLOCK | QWEN3_NORMS, LLAMA_OUTSIDE)
GEMMA2_NORMS = {
    "norms.1": "post_attention_layernorm",
    "norms.2": "pre_feedforward_layernorm",
    "norms.3": "post_feedforward_layernorm",
}
GEMMA2 = names("model.layers", LLAMA_BLOCK | GEMMA2_NORMS, LLAMA_OUTSIDE)
