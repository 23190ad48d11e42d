"""Pre-norm and post-norm: whole blocks against those of transformers, in float64.

BERT's layer is the post-norm block, GPT-2's the pre-norm one. Outputs, and the gradients of the
input and of every parameter, for rows of different lengths, their padding on either side.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional import KeyPadding, LayerNorm, Mask, NoPosition, causal
from jaxformer.nn import (
    MLP,
    Block,
    Context,
    DotProductAttention,
    PostNorm,
    PreNorm,
    TransformerConfig,
)

pytestmark = pytest.mark.torch

B, T, D, HEADS, F = 3, 7, 15, 5, 23
SIZES = {"hidden_size": D, "num_attention_heads": HEADS}
COMMON = {
    "num_layers": 1,
    "model_dim": D,
    "num_heads": HEADS,
    "mlp_dim": F,
    "position": NoPosition(),
    "attention": "reference",
}
# bool [B, T]: whole, padded behind, padded before.
VALID = np.arange(T) < np.array([[T], [4], [T]])
VALID[2, :3] = False


@dataclass(frozen=True)
class Case:
    """A block of transformers, and ours of the same form."""

    residual: PreNorm | PostNorm
    activation: str
    eps: float
    looks_ahead: bool
    """Bidirectional, else causal."""

    def ours(self) -> TransformerConfig:
        norm = LayerNorm(eps=self.eps)
        return TransformerConfig(**COMMON, residual=self.residual, norm=norm)

    def build(self, key) -> Block:
        keys, config = jax.random.split(key, 3), self.ours()
        settings = DotProductAttention(bias=True, output_bias=True)
        attention = settings.build(keys[0], config, config.position, None)
        mlp = MLP(activation=self.activation, gated=False, bias=True)
        return Block(keys[2], config, [attention, mlp.build(keys[1], config, None, None)])

    def mask(self) -> Mask:
        padding = KeyPadding(jnp.asarray(VALID))
        return padding if self.looks_ahead else causal() & padding

    def visible(self) -> np.ndarray:
        """bool [B, 1, T, S]: who sees whom."""
        past = np.ones((T, T), bool) if self.looks_ahead else np.tril(np.ones((T, T), bool))
        return past & VALID[:, None, None, :]


POST = Case(PostNorm(), "gelu", 1e-3, looks_ahead=True)
PRE = Case(PreNorm(), "gelu_tanh", 1e-2, looks_ahead=False)


def bert_layer():
    """BERT's layer, and where each of our parameters is in it."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig(
        **SIZES, intermediate_size=F, layer_norm_eps=POST.eps, attn_implementation="eager"
    )
    names = {
        "sublayers.0.attention.query": "attention.self.query",
        "sublayers.0.attention.key": "attention.self.key",
        "sublayers.0.attention.value": "attention.self.value",
        "sublayers.0.attention.output": "attention.output.dense",
        "sublayers.1.up": "intermediate.dense",
        "sublayers.1.down": "output.dense",
        "norms.0": "attention.output.LayerNorm",
        "norms.1": "output.LayerNorm",
    }
    return BertLayer(config), names, lambda kernel: kernel.T


def gpt2_block():
    """GPT-2's block, likewise; its kernels are ours, with query, key and value side by side."""
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    config = GPT2Config(
        n_embd=D,
        n_head=HEADS,
        n_inner=F,
        layer_norm_epsilon=PRE.eps,
        attn_implementation="eager",
    )
    names = {
        "sublayers.0.attention.query": "attn.c_attn[0]",
        "sublayers.0.attention.key": "attn.c_attn[1]",
        "sublayers.0.attention.value": "attn.c_attn[2]",
        "sublayers.0.attention.output": "attn.c_proj",
        "sublayers.1.up": "mlp.c_fc",
        "sublayers.1.down": "mlp.c_proj",
        "norms.0": "ln_1",
        "norms.1": "ln_2",
    }
    return GPT2Block(config, layer_idx=0), names, lambda kernel: kernel


def theirs_of(case, build, x, cotangent):
    """Output, gradient of the input, and (parameter, gradient) under each of our names."""
    import torch

    torch.manual_seed(0)
    layer, names, as_ours = build()
    layer = layer.double().eval()
    for name, parameter in layer.named_parameters():
        is_scale = name.endswith("weight") and parameter.ndim == 1
        torch.nn.init.normal_(parameter, mean=float(is_scale), std=0.4)
    hidden = torch.tensor(x, requires_grad=True)
    lowest = torch.finfo(torch.float64).min
    mask = torch.zeros(case.visible().shape, dtype=torch.float64)
    output = layer(hidden, attention_mask=mask.masked_fill(~torch.tensor(case.visible()), lowest))
    output = output[0] if isinstance(output, tuple) else output
    output.backward(torch.tensor(cotangent))

    def found(module, leaf, take):
        module, _, part = module.removesuffix("]").partition("[")
        tensor = getattr(layer.get_submodule(module), leaf)
        value, gradient = (as_ours(t) if t.ndim == 2 else t for t in (tensor.data, tensor.grad))
        pair = [t.chunk(3, -1)[int(part)] if part else t for t in (value, gradient)]
        return tuple(take(t.numpy()) for t in pair)

    parameters = {}
    for ours, module in names.items():
        kernel = "scale" if ours.startswith("norms") else "kernel"
        parameters[f"{ours}.{kernel}"] = found(module, "weight", np.copy)
        parameters[f"{ours}.bias"] = found(module, "bias", np.copy)
    return output.detach().numpy(), hidden.grad.numpy(), parameters


def path_of(keys) -> str:
    return jax.tree_util.keystr(keys, simple=True, separator=".").removesuffix(".value")


@pytest.mark.parametrize(("case", "build"), [(POST, bert_layer), (PRE, gpt2_block)])
@pytest.mark.quick("case1-gpt2_block")
def test_outputs_and_all_gradients_are_theirs(case, build):
    random = np.random.default_rng(0)
    x, cotangent = random.normal(size=(2, B, T, D)) * 1.5
    # What a padded token becomes is anyone's choice: nothing after it reads it.
    cotangent = cotangent * VALID[..., None]
    output, by_input, parameters = theirs_of(case, build, x, cotangent)
    close = partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
    with jax.enable_x64(True):
        shapes, treedef = jax.tree.flatten_with_path(jax.eval_shape(case.build, jax.random.key(0)))
        paths = [path_of(keys) for keys, _ in shapes]
        assert set(paths) == set(parameters)
        values = [
            jnp.asarray(parameters[path][0].reshape(like.shape))
            for path, (_, like) in zip(paths, shapes, strict=True)
        ]
        context = Context(jnp.arange(T)[None], case.mask())

        def run(values, x):
            return jax.tree.unflatten(treedef, values)(x, context, None)

        actual, pullback = jax.vjp(run, values, jnp.asarray(x))
        assert actual.dtype == jnp.float64
        gradients, gradient = pullback(jnp.asarray(cotangent))
    close(np.where(VALID[..., None], actual, 0), np.where(VALID[..., None], output, 0))
    close(gradient, by_input)
    for path, gradient in zip(paths, gradients, strict=True):
        assert gradient.dtype == jnp.float64
        expected = parameters[path][1].reshape(gradient.shape)
        close(gradient, expected, err_msg=path)
        assert np.abs(expected).max() > 1e-3 or path.endswith("key.bias"), path
