"""The names of our modules in Hugging Face models: one table for each."""

from hf_mapping import Names, names


def conv1d_parts(tensor, part, num_heads):
    """GPT-2's fused projection, `[..., 3 * heads * width]`."""
    return tensor.chunk(3, dim=-1)[part]


def per_head_parts(tensor, part, num_heads):
    """GPT-NeoX's and BLOOM's fused projection, `[heads * 3 * width, ...]`."""
    return tensor.unflatten(0, (num_heads, 3, -1))[:, part].flatten(0, 1)


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
