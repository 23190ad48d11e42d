"""The map from the parameters of transformers' models to ours, one table of names for each."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxformer.models import ModelConfig

_LAYERS = re.compile(r"(?:transformer|encoder|decoder)\.stack\.group\.(\d+)\.")
_LEAVES = ("kernel", "bias", "scale", "table")
# Parts of our paths that tell nothing apart.
_SILENT = re.compile(r"\b(?:transformer|inputs|stack\.group\.\d+|sublayers|attention|heads)\.")


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


_KEY_BIAS = re.compile(r"\b(k)(ey|_lin|_proj)\.bias$")


def assert_gradients_close(actual: dict, expected: dict):
    """Equal gradients by their names."""
    expected = {name: np.asarray(gradient) for name, gradient in expected.items()}
    for name, gradient in expected.items():
        if _KEY_BIAS.search(name):
            # Without a rotation no softmax sees a key's bias: next to the gradient of the query's,
            # what it has is rounding.
            query = _KEY_BIAS.sub(lambda k: f"q{'uery' if k[2] == 'ey' else k[2]}.bias", name)
            limit = 2e-5 * np.abs(expected[query]).max()
            if np.abs(gradient).max() <= limit:
                assert np.abs(actual[name]).max() <= limit, name
                continue
        assert_close(actual[name], gradient, name)


def assert_close(actual, expected, name: str):
    """Equal within 2e-5 of the largest entry, which must not be zero."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    largest = np.abs(expected).max()
    assert largest > 0, name
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * largest, err_msg=name)


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
        "position_table": "transformer.wpe",
        "final_norm": "transformer.ln_f",
    },
    parts=conv1d_parts,
    outputs_last=True,
)
GPT_OUTSIDE = {
    "embedding": "transformer.tokens_embed",
    "position_table": "transformer.positions_embed",
}
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
    {"embedding": "transformer.wte", "final_norm": "transformer.ln_f", "language_model": "lm_head"},
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
        "language_model": "lm_head",
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
    {
        "embedding": "model.embed_tokens",
        "final_norm": "model.final_layernorm",
        "language_model": "lm_head",
    },
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
LLAMA_OUTSIDE = {
    "embedding": "model.embed_tokens",
    "final_norm": "model.norm",
    "language_model": "lm_head",
}
LLAMA = names("model.layers", LLAMA_BLOCK, LLAMA_OUTSIDE)
QWEN3_NORMS = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
QWEN3 = names("model.layers", LLAMA_BLOCK | QWEN3_NORMS, LLAMA_OUTSIDE)
GEMMA2_NORMS = {
    "norms.1": "post_attention_layernorm",
    "norms.2": "pre_feedforward_layernorm",
    "norms.3": "post_feedforward_layernorm",
}
GEMMA2 = names("model.layers", LLAMA_BLOCK | GEMMA2_NORMS, LLAMA_OUTSIDE)

# Encoders -----------------------------------------------------------------------------------------

LABELS = {
    "label.output": "classifier",
    "rating.output": "classifier",
    "tags.output": "classifier",
    "span.output": "qa_outputs",
}
BERT_BLOCK = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "norms.0": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norms.1": "output.LayerNorm",
}


def bert_names(base: str) -> Names:
    """BERT and those that copied its names, with `base` for "bert"."""
    outside = {
        "embedding": f"{base}.embeddings.word_embeddings",
        "position_table": f"{base}.embeddings.position_embeddings",
        "token_types": f"{base}.embeddings.token_type_embeddings",
        "task_types": f"{base}.embeddings.task_type_embeddings",
        "embedding_norm": f"{base}.embeddings.LayerNorm",
        "pooler": f"{base}.pooler.dense",
        "masked_language_model": "cls.predictions",
        "masked_language_model.dense": "cls.predictions.transform.dense",
        "masked_language_model.norm": "cls.predictions.transform.LayerNorm",
        "next_sentence.output": "cls.seq_relationship",
        **LABELS,
    }
    return names(f"{base}.encoder.layer", BERT_BLOCK, outside)


BERT = bert_names("bert")
ERNIE = bert_names("ernie")
ROBERTA = bert_names("roberta") | {
    "masked_language_model": "lm_head",
    "masked_language_model.dense": "lm_head.dense",
    "masked_language_model.norm": "lm_head.layer_norm",
    "pooler": "classifier.dense",
    "label.output": "classifier.out_proj",
}
DISTILBERT = names(
    "distilbert.transformer.layer",
    {
        "query": "attention.q_lin",
        "key": "attention.k_lin",
        "value": "attention.v_lin",
        "output": "attention.out_lin",
        "norms.0": "sa_layer_norm",
        "up": "ffn.lin1",
        "down": "ffn.lin2",
        "norms.1": "output_layer_norm",
    },
    {
        "embedding": "distilbert.embeddings.word_embeddings",
        "position_table": "distilbert.embeddings.position_embeddings",
        "embedding_norm": "distilbert.embeddings.LayerNorm",
        "pooler": "pre_classifier",
        "masked_language_model": "vocab_projector",
        "masked_language_model.dense": "vocab_transform",
        "masked_language_model.norm": "vocab_layer_norm",
        **LABELS,
    },
)
ALBERT = names(
    "albert.encoder.albert_layer_groups",
    {
        "query": "albert_layers.0.attention.query",
        "key": "albert_layers.0.attention.key",
        "value": "albert_layers.0.attention.value",
        "output": "albert_layers.0.attention.dense",
        "norms.0": "albert_layers.0.attention.LayerNorm",
        "up": "albert_layers.0.ffn",
        "down": "albert_layers.0.ffn_output",
        "norms.1": "albert_layers.0.full_layer_layer_norm",
    },
    {
        "embedding": "albert.embeddings.word_embeddings",
        "position_table": "albert.embeddings.position_embeddings",
        "token_types": "albert.embeddings.token_type_embeddings",
        "embedding_norm": "albert.embeddings.LayerNorm",
        "projection": "albert.encoder.embedding_hidden_mapping_in",
        "pooler": "albert.pooler",
        "masked_language_model": "predictions",
        "masked_language_model.dense": "predictions.dense",
        "masked_language_model.norm": "predictions.LayerNorm",
        "sentence_order.output": "sop_classifier.classifier",
        **LABELS,
    },
)
GPT2_CLASSIFIER = GPT2 | {"label.output": "score"}
VIT = names(
    "vit.layers",
    {
        "norms.0": "layernorm_before",
        "query": "attention.q_proj",
        "key": "attention.k_proj",
        "value": "attention.v_proj",
        "output": "attention.o_proj",
        "norms.1": "layernorm_after",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    },
    {
        "patch_projection": "vit.embeddings.patch_embeddings.projection",
        "class_token": "vit.embeddings.cls_token",
        "position_table": "vit.embeddings.position_embeddings",
        "final_norm": "vit.layernorm",
        "label.output": "classifier",
    },
)

# Encoder-decoders ---------------------------------------------------------------------------------


def _sides(encoder: dict, decoder: dict, outside: dict) -> Names:
    """Names that differ between the encoder and the decoder."""
    modules = {f"encoder.{ours}": theirs for ours, theirs in encoder.items()}
    modules |= {f"decoder.{ours}": theirs for ours, theirs in decoder.items()}
    return Names(modules | outside)


def _t5_side(side: str, attentions: tuple[str, ...]) -> dict:
    """A stack of T5: sublayers are numbered there as here."""
    block, last = f"{side}.block.{{}}.layer", len(attentions)
    modules = {
        "position_table": f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",
        "final_norm": f"{side}.final_layer_norm",
    }
    for number, attention in enumerate(attentions):
        for ours, theirs in {"query": "q", "key": "k", "value": "v", "output": "o"}.items():
            modules[f"{number}.{ours}"] = f"{block}.{number}.{attention}.{theirs}"
    for number in range(last + 1):
        modules[f"norms.{number}"] = f"{block}.{number}.layer_norm"
    feed_forward = f"{block}.{last}.DenseReluDense"
    return modules | {f"{last}.up": f"{feed_forward}.wi", f"{last}.down": f"{feed_forward}.wo"}


T5 = _sides(
    _t5_side("encoder", ("SelfAttention",)),
    _t5_side("decoder", ("SelfAttention", "EncDecAttention")),
    {"embedding": "shared", "language_model": "lm_head"},
)
T5_GATED = T5 | {
    f"{side}.{number}.{ours}": f"{side}.block.{{}}.layer.{number}.DenseReluDense.{theirs}"
    for side, number in (("encoder", 1), ("decoder", 2))
    for ours, theirs in {"gate": "wi_0", "up": "wi_1"}.items()
}


def _bart_side(side: str, attentions: tuple[str, ...]) -> dict:
    """A stack of BART or Marian."""
    block, last = f"model.{side}.layers.{{}}", len(attentions)
    modules = {
        "position_table": f"model.{side}.embed_positions",
        "embedding_norm": f"model.{side}.layernorm_embedding",
        f"norms.{last}": f"{block}.final_layer_norm",
        f"{last}.up": f"{block}.fc1",
        f"{last}.down": f"{block}.fc2",
    }
    for number, attention in enumerate(attentions):
        modules[f"norms.{number}"] = f"{block}.{attention}_layer_norm"
        for ours, theirs in {"query": "q", "key": "k", "value": "v", "output": "out"}.items():
            modules[f"{number}.{ours}"] = f"{block}.{attention}.{theirs}_proj"
    return modules


BART = _sides(
    _bart_side("encoder", ("self_attn",)),
    _bart_side("decoder", ("self_attn", "encoder_attn")),
    {"embedding": "model.shared", "language_model": "final_logits_bias"},
)
