"""jaxformer's models in plain PyTorch, for `trust_remote_code=True`.

`config.json` describes one or two stacks of blocks: positions, norms, residual arrangement,
attention, feed-forward layer and windows. The models are for inference, without dropout, loss or a
cache: each new token is computed from all previous ones.
"""
# long: transformers copies only one file with the weights.

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPooling,
    CausalLMOutput,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "tanh": torch.tanh,
}


class JaxformerConfig(PretrainedConfig):
    """The stacks, head and pooler of a model; see config.json."""

    model_type = "jaxformer"

    def __init__(
        self,
        encoder_stack: dict | None = None,
        decoder_stack: dict | None = None,
        head: dict | None = None,
        pooler: str | None = None,
        share_embeddings: bool = True,
        **kwargs,
    ):
        """Sets the fields; an encoder-decoder has two stacks, other models have one."""
        self.encoder_stack, self.decoder_stack = encoder_stack, decoder_stack
        self.head, self.pooler, self.share_embeddings = head, pooler, share_embeddings
        super().__init__(**kwargs)


class Norm(nn.Module):
    """LayerNorm, RMSNorm or NoNorm over the last axis, in float32.

    With `heads`, the scale and the bias of each head differ.
    """

    def __init__(self, norm: dict, dim: int, heads: int | None = None):
        super().__init__()
        self.norm, self.shape = norm, (dim,) if heads is None else (heads, dim)
        count = dim * (heads or 1)
        kind = norm["type"]
        has_scale = kind == "RMSNorm" or (kind == "LayerNorm" and norm["scale"])
        has_bias = kind == "LayerNorm" and norm["bias"]
        self.weight = nn.Parameter(torch.ones(count)) if has_scale else None
        self.bias = nn.Parameter(torch.zeros(count)) if has_bias else None

    def forward(self, x):
        if self.norm["type"] == "NoNorm":
            return x
        wide = x.float()
        if self.norm["type"] == "LayerNorm":
            wide = wide - wide.mean(-1, keepdim=True)
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.norm["eps"])
        if self.weight is not None:
            scale = self.weight.float().view(self.shape)
            y = y * (1 + scale if self.norm.get("unit_offset") else scale)
        if self.bias is not None:
            y = y + self.bias.float().view(self.shape)
        return y.to(x.dtype)


def position_code(scheme: dict, positions, dim: int, table=None):
    """Returns the code `[T, dim]` that a scheme adds to embeddings, or None."""
    kind = scheme["type"]
    if kind == "Integer":
        code = (positions.float() / scheme["max_length"])[:, None]
    elif kind == "Binary":
        places = torch.arange(scheme["num_bits"], device=positions.device)
        code = ((positions[:, None] >> places) & 1).float()
    elif kind == "Sinusoidal":
        waves = dim // 2
        steps = torch.arange(waves, dtype=torch.float64, device=positions.device)
        frequencies = scheme["theta"] ** (-steps / max(waves - scheme["endpoint"], 1))
        angles = (positions + scheme["offset"]).double()[:, None] * frequencies
        pair = torch.sin(angles), torch.cos(angles)
        interleaved = scheme["layout"] == "interleaved"
        code = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    elif kind == "Learned":
        code = table[positions + scheme["offset"]]
    else:
        return None
    return F.pad(code, (0, dim - code.shape[-1]))


def attention_bias(scheme: dict, length: int, num_heads: int, device, table=None):
    """Returns the bias `[N, T, T]` in float32 that a scheme adds to attention logits, or None."""
    positions = torch.arange(length, device=device)
    distance = positions[None, :] - positions[:, None]
    if scheme["type"] == "ALiBi":
        power = 2 ** (num_heads.bit_length() - 1)
        slopes = [2 ** (-scheme["max_exponent"] * (n + 1) / power) for n in range(power)]
        between = [2 ** (-scheme["max_exponent"] * (n + 1) / (2 * power)) for n in range(2 * power)]
        slopes = (slopes + between[::2])[:num_heads]
        slopes = torch.tensor(slopes, dtype=torch.float64, device=device).float()[:, None, None]
        if not scheme["rounded"]:
            return scheme["factor"] * (-slopes * distance.abs().float())
        products = slopes.bfloat16() * positions.bfloat16()[None, None, :]
        return (scheme["factor"] * products.float()).expand(-1, length, -1)
    if scheme["type"] == "T5Bias":
        both = scheme["bidirectional"]
        starts = torch.tensor(scheme["bucket_starts"], device=device)
        away = distance.abs() if both else (-distance).clamp(min=0)
        bucket = (away[..., None] >= starts).sum(-1)
        if both:
            bucket = bucket + (len(starts) + 1) * (distance > 0)
        return table.float()[bucket].permute(2, 0, 1)
    return None


def rotated(x, positions, scheme: dict):
    """Rotates the first channels of queries, keys or values `[B, T, N, H]` (RoPE)."""
    frequencies = torch.tensor(scheme["frequencies"], dtype=torch.float64, device=x.device)
    angles = (positions.double()[:, None] * frequencies)[:, None, :]
    factor = scheme["attention_factor"]
    cos, sin = torch.cos(angles).float() * factor, torch.sin(angles).float() * factor
    count = 2 * len(frequencies)
    turning, rest = x[..., :count].float(), x[..., count:]
    if scheme["layout"] == "half":
        a, b = turning.chunk(2, -1)
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    else:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([turned.to(x.dtype), rest], -1)


class Attention(nn.Module):
    """Scaled dot-product attention with grouped heads; `source_dim` is the width of the keys."""

    def __init__(self, stack: dict, settings: dict, source_dim: int, own_table: int | None = None):
        super().__init__()
        dim, head_dim, value_dim = stack["model_dim"], stack["head_dim"], stack["value_dim"]
        heads, kv_heads = stack["num_heads"], stack["kv_heads"]
        self.settings, self.head_dim, self.value_dim = settings, head_dim, value_dim
        self.heads, self.kv_heads = heads, kv_heads
        bias = settings["bias"]
        self.query = nn.Linear(dim, heads * head_dim, bias=bias)
        self.key = nn.Linear(source_dim, kv_heads * head_dim, bias=bias and settings["key_bias"])
        self.value = nn.Linear(source_dim, kv_heads * value_dim, bias=bias)
        self.output = nn.Linear(heads * value_dim, dim, bias=settings["output_bias"])
        self.query_norm = self._head_norm(heads)
        self.key_norm = self._head_norm(kv_heads)
        table = None if own_table is None else nn.Parameter(torch.zeros(own_table, heads))
        self.position_table = table

    def _head_norm(self, heads: int) -> Norm | None:
        norm, over = self.settings["query_key_norm"], self.settings["query_key_norm_over"]
        if norm is None:
            return None
        if over == "all_heads":
            return Norm(norm, heads * self.head_dim)
        return Norm(norm, self.head_dim, heads if over == "each_head" else None)

    def _projected(self, linear, x, heads, width, norm=None):
        y = linear(x)
        if self.settings["clip"] is not None:
            y = y.clamp(-self.settings["clip"], self.settings["clip"])
        if norm is not None and self.settings["query_key_norm_over"] == "all_heads":
            y, norm = norm(y), None
        y = y.view(*x.shape[:2], heads, width)
        return y if norm is None else norm(y)

    def forward(self, x, source, mask, bias, scheme: dict, depth: int):
        """`x` `[B, T, D]` attends to `source` `[B, S, D]` where `mask` `[B, 1, T, S]` is true."""
        query = self._projected(self.query, x, self.heads, self.head_dim, self.query_norm)
        key = self._projected(self.key, source, self.kv_heads, self.head_dim, self.key_norm)
        value = self._projected(self.value, source, self.kv_heads, self.value_dim)
        if scheme["type"] == "RoPE":
            positions = torch.arange(x.shape[1], device=x.device)
            query, key = rotated(query, positions, scheme), rotated(key, positions, scheme)
            value = rotated(value, positions, scheme) if scheme["values"] else value
        scale = self.head_dim**-0.5 if self.settings["scale"] is None else self.settings["scale"]
        if self.settings["scale_by_depth"]:
            scale = scale / (depth + 1)
        groups = self.heads // self.kv_heads
        key, value = key.repeat_interleave(groups, 2), value.repeat_interleave(groups, 2)
        logits = torch.einsum("btnh,bsnh->bnts", query.float(), key.float()) * scale
        if (cap := self.settings["softcap"]) is not None:
            logits = cap * torch.tanh(logits / cap)
        if bias is not None:
            logits = logits + bias
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        found = torch.einsum("bnts,bsnh->btnh", logits.softmax(-1), value.float())
        return self.output(found.to(x.dtype).flatten(2))


class FeedForward(nn.Module):
    """`down(act(up(x)))`, or `down(act(gate(x)) * up(x))` with a gate."""

    def __init__(self, stack: dict, settings: dict):
        super().__init__()
        dim, hidden, bias = stack["model_dim"], stack["mlp_dim"], settings["bias"]
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.gate = nn.Linear(dim, hidden, bias=bias) if settings["gated"] else None
        self.down = nn.Linear(hidden, dim, bias=bias)
        self.activation = ACTIVATIONS[settings["activation"]]

    def forward(self, x):
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A layer: self-attention, optional cross-attention, and feed-forward."""

    def __init__(self, stack: dict, layer: dict, number: int):
        super().__init__()
        self.layer, self.residual = layer, stack["residual"]
        dim, scheme = stack["model_dim"], stack["relative_position"] or layer["position"]
        own = scheme["num_buckets"] if scheme["type"] == "T5Bias" and not scheme["shared"] else None
        self.bias_scheme = scheme
        self.attention = Attention(stack, stack["self_attention"], dim, own)
        cross = stack["cross_attention"]
        self.cross_attention = (
            None if cross is None else Attention(stack, cross, stack["source_dim"])
        )
        self.feed_forward = FeedForward(stack, stack["feed_forward"])
        sublayers = 2 if cross is None else 3
        kind = self.residual["type"]
        count = {"SandwichNorm": 2 * sublayers}.get(kind, sublayers)
        if kind == "Parallel" and self.residual["shared_norm"]:
            count = 1
        norms = [Norm(stack["norm"], dim) for _ in range(count)]
        if not self.residual["first_norm"] and number == 0:
            norms[0] = nn.Identity()
        self.norms = nn.ModuleList(norms)
        scaled = self.residual["layer_scale"] is not None
        self.scales = nn.ParameterList(torch.ones(dim) for _ in range(sublayers if scaled else 0))

    def forward(self, x, mask, bias, source, source_mask, depth: int):
        """Returns the residual stream `[B, T, D]` after the block."""
        window, heads = self.layer["window"], self.attention.heads
        if window is not None:
            places = torch.arange(x.shape[1], device=x.device)
            back = places[:, None] - places[None, :]
            mask = mask & (back < window) & ((back > -window) | (not self.layer["ahead"]))
        if self.attention.position_table is not None:
            table = self.attention.position_table
            bias = attention_bias(self.bias_scheme, x.shape[1], heads, x.device, table)
        scheme = self.layer["position"]
        maps = [lambda x: self.attention(x, x, mask, bias, scheme, depth)]
        if self.cross_attention is not None:
            nowhere = {"type": "NoPosition"}
            maps.append(
                lambda x: self.cross_attention(x, source, source_mask, None, nowhere, depth)
            )
        maps.append(self.feed_forward)
        return self._arranged(x, [self._scaled(i, each) for i, each in enumerate(maps)])

    def _scaled(self, number, sublayer):
        def scaled(x):
            y = sublayer(x)
            y = y * self.scales[number] if len(self.scales) else y
            return y * self.residual["output_scale"]

        return scaled

    def _arranged(self, x, maps):
        kind, norms = self.residual["type"], self.norms
        if kind == "Parallel":
            if self.residual["shared_norm"]:
                norms = [norms[0]] * len(maps)
            return x + sum(f(norm(x)) for f, norm in zip(maps, norms, strict=True))
        for number, f in enumerate(maps):
            if kind == "PreNorm":
                x = x + f(norms[number](x))
            elif kind == "PostNorm":
                x = norms[number](x + f(x))
            elif kind == "BranchNorm":
                x = x + norms[number](f(x))
            elif kind == "StreamNorm":
                x = norms[number](x)
                x = x + f(x)
            else:  # SandwichNorm
                x = x + norms[2 * number + 1](f(norms[2 * number](x)))
        return x


class Stack(nn.Module):
    """The input layer, the blocks and the final norm of an encoder or a decoder."""

    def __init__(self, stack: dict):
        super().__init__()
        self.stack, dim = stack, stack["model_dim"]
        position, relative = stack["position"], stack["relative_position"]
        self.position_table = self._table(position)
        self.relative_table = None if relative is None else self._table(relative)
        self.types = nn.ParameterDict(
            {name: torch.zeros(rows, dim) for name, rows in stack["type_sizes"].items()}
        )
        norm = stack["embedding_norm"]
        self.embedding_norm = None if norm is None else Norm(norm, dim)
        self.layers = nn.ModuleList(
            Block(stack, layer, number) for number, layer in enumerate(stack["layers"])
        )
        self.final_norm = Norm(stack["norm"], dim) if stack["final_norm"] else None

    def _table(self, scheme: dict) -> nn.Parameter | None:
        if scheme["type"] == "Learned":
            rows = scheme["offset"] + scheme["max_length"]
            return nn.Parameter(torch.zeros(rows, self.stack["model_dim"]))
        if scheme["type"] == "T5Bias" and scheme["shared"]:
            return nn.Parameter(torch.zeros(scheme["num_buckets"], self.stack["num_heads"]))
        return None

    def forward(self, x, real, types=None, source=None, source_real=None):
        """Maps token embeddings `[B, T, D]` to states.

        Args:
            x: The embeddings.
            real: bool `[B, T]`, the non-padding tokens.
            types: The ids for each table of type embeddings, int `[B, T]`; 0 if missing.
            source: The encoder's states `[B, S, D]`, for cross-attention.
            source_real: bool `[B, S]`, the non-padding states.
        """
        stack, length, types = self.stack, x.shape[1], types or {}
        scheme, relative = stack["position"], stack["relative_position"]
        positions = torch.arange(length, device=x.device)
        code = position_code(scheme, positions, x.shape[-1], self.position_table)
        x = x * stack["embedding_scale"]
        after = scheme.get("after_norm", False)
        if code is not None and not after:
            x = x + code.to(x.dtype)
        for name, table in self.types.items():
            ids = types.get(name)
            x = x + (table[:1] if ids is None else table[ids])
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if code is not None and after:
            x = x + code.to(x.dtype)
        mask = real[:, None, None, :].expand(-1, 1, length, -1)
        if stack["causal"]:
            mask = mask & (positions[None, :] <= positions[:, None])
        bias = None
        chosen = relative or scheme
        if chosen.get("shared", True):
            table = self.position_table if relative is None else self.relative_table
            bias = attention_bias(chosen, length, stack["num_heads"], x.device, table)
        source_mask = None if source_real is None else source_real[:, None, None, :]
        depth, group = 0, stack["group"]
        for start in range(0, len(self.layers), group):
            for _ in range(stack["repeats"]):
                for layer in self.layers[start : start + group]:
                    x = layer(x, mask, bias, source, source_mask, depth)
                    depth += 1
        return x if self.final_norm is None else self.final_norm(x)


class Head(nn.Module):
    """Logits over the vocabulary, optionally after a dense layer, an activation and a norm."""

    def __init__(self, head: dict, dim: int, vocab_size: int):
        super().__init__()
        self.head = head
        self.weight = None if head["tied"] else nn.Parameter(torch.zeros(vocab_size, dim))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if head["bias"] else None
        dense = head["dense"]
        self.dense = nn.Linear(dim, dim, bias=dense["bias"]) if dense else None
        self.norm = Norm(dense["norm"], dim) if dense else None

    def forward(self, x, embedding):
        """Maps states `[B, T, D]` to float32 logits `[B, T, V]`; `embedding` is the tied table."""
        if self.dense is not None:
            x = self.norm(ACTIVATIONS[self.head["dense"]["activation"]](self.dense(x)))
        weight = embedding if self.weight is None else self.weight
        logits = F.linear(x * self.head["scale"], weight, self.bias).float()
        cap = self.head["softcap"]
        return logits if cap is None else cap * torch.tanh(logits / cap)


class JaxformerPreTrainedModel(PreTrainedModel):
    """Base class of the models."""

    config_class = JaxformerConfig
    base_model_prefix = "model"


class JaxformerModel(JaxformerPreTrainedModel):
    """The token embedding and the stacks, without a head."""

    def __init__(self, config: JaxformerConfig):
        """Builds the modules that config.json describes."""
        super().__init__(config)
        first, second = config.encoder_stack, config.decoder_stack
        dim = (second or first)["model_dim"]
        self.embedding = nn.Embedding(config.vocab_size, dim)
        own = first and second and not config.share_embeddings
        self.decoder_embedding = nn.Embedding(config.vocab_size, dim) if own else None
        self.encoder = Stack(first) if first else None
        self.decoder = Stack(second) if second else None
        self.pooler = nn.Linear(dim, dim) if config.pooler else None
        self.post_init()

    def get_input_embeddings(self):
        """Returns the token embedding."""
        return self.embedding

    def get_encoder(self, modality=None):
        """Returns the encoder, which `generate` runs once."""
        return _Encoder(self)

    @property
    def output_embedding(self):
        """Returns the embedding table of the stack that produces the outputs."""
        table = self.embedding if self.decoder_embedding is None else self.decoder_embedding
        return table.weight

    def encode(self, input_ids, attention_mask=None, types=None):
        """Returns the encoder's states and the mask of its non-padding tokens."""
        real = _real(input_ids, attention_mask)
        return self.encoder(self.embedding(input_ids), real, types), real

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        token_type_ids=None,
        task_type_ids=None,
        decoder_input_ids=None,
        decoder_attention_mask=None,
        encoder_outputs=None,
        **_,
    ):
        """Returns the last hidden state `[B, T, D]`, of the decoder if there are two stacks."""
        types = {"token_types": token_type_ids, "task_types": task_type_ids}
        if self.decoder is None:
            hidden, real = self.encode(input_ids, attention_mask, types)
            pooled = None if self.pooler is None else self._pooled(hidden, real)
            return BaseModelOutputWithPooling(hidden, pooled)
        if self.encoder is None:
            real = _real(input_ids, attention_mask)
            return BaseModelOutput(self.decoder(self.embedding(input_ids), real, types))
        if encoder_outputs is None:
            source, source_real = self.encode(input_ids, attention_mask)
        else:
            source = encoder_outputs[0]
            source_real = _real(source[..., 0], attention_mask)
        table = self.embedding if self.decoder_embedding is None else self.decoder_embedding
        real = _real(decoder_input_ids, decoder_attention_mask)
        embedded = table(decoder_input_ids)
        hidden = self.decoder(embedded, real, None, source, source_real)
        return Seq2SeqModelOutput(hidden, encoder_last_hidden_state=source)

    def _pooled(self, hidden, real):
        first = hidden[torch.arange(len(hidden), device=hidden.device), real.int().argmax(-1)]
        return ACTIVATIONS[self.config.pooler](self.pooler(first))


class _Encoder:
    """The interface of the encoder for `generate`."""

    def __init__(self, model: JaxformerModel):
        self.model = model

    def forward(self, input_ids=None, attention_mask=None, **_):
        return BaseModelOutput(self.model.encode(input_ids, attention_mask)[0])

    __call__ = forward


def _real(ids, mask):
    return torch.ones_like(ids, dtype=torch.bool) if mask is None else mask > 0


class _WithHead(JaxformerPreTrainedModel):
    """A model with logits over the vocabulary."""

    def __init__(self, config: JaxformerConfig):
        super().__init__(config)
        self.model = JaxformerModel(config)
        dim = (config.decoder_stack or config.encoder_stack)["model_dim"]
        self.head = Head(config.head, dim, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embedding

    def _logits(self, outputs):
        return self.head(outputs[0], self.model.output_embedding)


class JaxformerForMaskedLM(_WithHead):
    """An encoder that predicts masked tokens."""

    def forward(self, input_ids=None, attention_mask=None, **types):
        """Returns logits `[B, T, V]`."""
        return MaskedLMOutput(logits=self._logits(self.model(input_ids, attention_mask, **types)))


class JaxformerForCausalLM(_WithHead, GenerationMixin):
    """A decoder that predicts the next token."""

    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, **_):
        """Returns logits `[B, T, V]`."""
        outputs = self.model(input_ids, attention_mask, token_type_ids)
        return CausalLMOutput(logits=self._logits(outputs))

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        """Returns all tokens so far, since there is no cache."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}


class JaxformerForConditionalGeneration(_WithHead, GenerationMixin):
    """An encoder-decoder that generates text."""

    def get_encoder(self, modality=None):
        """Returns the encoder, which `generate` runs once."""
        return self.model.get_encoder()

    def forward(self, input_ids=None, attention_mask=None, decoder_input_ids=None, **options):
        """Returns logits `[B, T, V]` for the decoder's tokens."""
        options["decoder_input_ids"] = decoder_input_ids
        return Seq2SeqLMOutput(
            logits=self._logits(self.model(input_ids, attention_mask, **options))
        )

    def prepare_inputs_for_generation(
        self, input_ids, attention_mask=None, encoder_outputs=None, **_
    ):
        """Returns the encoder's states and all tokens so far, since there is no cache."""
        return {
            "decoder_input_ids": input_ids,
            "attention_mask": attention_mask,
            "encoder_outputs": encoder_outputs,
        }
