"""Whole decoders from configuration alone: logits and gradients equal those of transformers."""

from dataclasses import dataclass
from functools import partial

import hf_mapping
import hf_names
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import structure_of

from jaxformer.functional import ALiBi, KeyPadding, LayerNorm, Learned, Llama3Scaling, RMSNorm, RoPE
from jaxformer.hub.fields import build_with
from jaxformer.models import DecoderConfig
from jaxformer.nn import Parallel, PostNorm, SandwichNorm

VOCAB, EPS, THETA = 53, 1e-3, 100.0
# One row is all real, one padded on the left and one on the right.
VALID = np.ones((3, 11), bool)
VALID[1, :4] = VALID[2, 7:] = False


@dataclass(frozen=True)
class Case:
    """One decoder in both libraries."""

    model_class: str
    names: hf_mapping.Names
    theirs: dict
    ours: DecoderConfig


def case(model_class: str, names: hf_mapping.Names, theirs: dict, **ours) -> Case:
    config = build_with(DecoderConfig, {"vocab_size": VOCAB, "compute_dtype": "float32"} | ours)
    return Case(model_class, names, theirs | {"vocab_size": VOCAB}, config)


def rope(**parameters):
    """Their rotary embedding."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": THETA} | parameters}


# Sizes that do not divide one another where they need not. Widths that rotate must be even.
OLD_SIZES = {"n_embd": 30, "n_head": 6, "n_layer": 3, "n_positions": 17}
OLD_SIZES |= {"layer_norm_epsilon": EPS}
SIZES = {"hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 3}
SIZES |= {"intermediate_size": 22, "layer_norm_eps": EPS}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 4, "rms_norm_eps": EPS}

OUR_SIZES = {"model_dim": 48, "num_heads": 6, "num_layers": 3, "mlp_dim": 22}
OUR_OLD_SIZES = OUR_SIZES | {"model_dim": 30, "mlp_dim": 120}
OUR_GROUPED = OUR_SIZES | {"num_kv_heads": 2, "head_dim": 4, "norm": RMSNorm(eps=EPS)}
LAYER_NORM = {"norm": LayerNorm(eps=EPS)}
PLAIN = LAYER_NORM | {
    "feed_forward.activation": "gelu_tanh",
    "feed_forward.gated": False,
    "feed_forward.bias": True,
}
BIASED = PLAIN | {"self_attention.bias": True, "self_attention.output_bias": True}
UNTIED = {"tie_embeddings": False}

CASES = {
    "GPT": case(
        "OpenAIGPTLMHeadModel",
        hf_names.GPT,
        OLD_SIZES | {"afn": "gelu"},
        **OUR_OLD_SIZES | BIASED,
        position=Learned(max_length=17),
        residual=PostNorm(),
    ),
    "GPT-2": case(
        "GPT2LMHeadModel",
        hf_names.GPT2,
        OLD_SIZES,
        **OUR_OLD_SIZES | BIASED,
        position=Learned(max_length=17),
    ),
    "GPT-J": case(
        "GPTJForCausalLM",
        hf_names.GPTJ,
        OLD_SIZES | {"n_embd": 36, "rotary_dim": 4, "n_inner": 22},
        **OUR_SIZES | PLAIN | UNTIED | {"model_dim": 36},
        position=RoPE(theta=10_000.0, fraction=2 / 3, layout="interleaved"),
        residual=Parallel(shared_norm=True),
        head_bias=True,
    ),
    "GPT-NeoX": case(
        "GPTNeoXForCausalLM",
        hf_names.NEOX,
        SIZES | rope(partial_rotary_factor=0.25),
        **OUR_SIZES | BIASED | UNTIED | {"feed_forward.activation": "gelu"},
        position=RoPE(theta=THETA, fraction=0.25),
        residual=Parallel(shared_norm=False),
    ),
    "GPT-NeoX sequential": case(
        "GPTNeoXForCausalLM",
        hf_names.NEOX,
        SIZES | rope(partial_rotary_factor=1.0) | {"use_parallel_residual": False},
        **OUR_SIZES | BIASED | UNTIED | {"feed_forward.activation": "gelu"},
        position=RoPE(theta=THETA),
    ),
    "BLOOM": case(
        "BloomForCausalLM",
        hf_names.BLOOM,
        {"hidden_size": 30, "n_head": 6, "n_layer": 3, "layer_norm_epsilon": EPS},
        **OUR_OLD_SIZES | BIASED,
        position=ALiBi(),
        embedding_norm=LayerNorm(eps=EPS),
    ),
    "Phi": case(
        "PhiForCausalLM",
        hf_names.PHI,
        SIZES | rope(partial_rotary_factor=0.5) | {"num_key_value_heads": 2},
        **OUR_SIZES | BIASED | UNTIED | {"num_kv_heads": 2},
        position=RoPE(theta=THETA, fraction=0.5),
        residual=Parallel(shared_norm=True),
        head_bias=True,
    ),
    "Llama": case(
        "LlamaForCausalLM",
        hf_names.LLAMA,
        GROUPED
        | {"head_dim": 8}
        | rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
        **OUR_GROUPED | UNTIED | {"head_dim": 8},
        position=RoPE(theta=THETA, scaling=Llama3Scaling(8.0, 1.0, 4.0, 32)),
    ),
    "Mistral": case(
        "MistralForCausalLM",
        hf_names.LLAMA,
        GROUPED | rope() | {"sliding_window": 4},
        **OUR_GROUPED | UNTIED,
        position=RoPE(theta=THETA),
        windows=(4,),
    ),
    "Qwen 3": case(
        "Qwen3ForCausalLM",
        hf_names.QWEN3,
        GROUPED | rope() | {"tie_word_embeddings": True},
        **OUR_GROUPED,
        position=RoPE(theta=THETA),
        **{"self_attention.query_key_norm": RMSNorm(eps=EPS)},
    ),
    "Gemma 2": case(
        "Gemma2ForCausalLM",
        hf_names.GEMMA2,
        GROUPED
        | rope()
        | {
            "num_hidden_layers": 2,
            "sliding_window": 3,
            "query_pre_attn_scalar": 7,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
            "pad_token_id": None,  # else torch's table takes no gradient at id 0
        },
        **OUR_GROUPED
        | {
            "num_layers": 2,
            "norm": RMSNorm(eps=EPS, unit_offset=True),
            "feed_forward.activation": "gelu_tanh",
        },
        position=RoPE(theta=THETA),
        windows=(3, None),
        residual=SandwichNorm(),
        embedding_scale=48**0.5,
        **{"self_attention.scale": 7**-0.5, "self_attention.softcap": 2.0},
        logit_softcap=5.0,
    ),
}


@partial(jax.jit, static_argnums=0)
def logits_and_gradients(config, parameters, ids, valid, weights):
    def loss(parameters):
        logits = structure_of(config).module(parameters)(ids, mask=KeyPadding(valid))
        return jnp.sum(logits * weights), logits

    (_, logits), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
    return logits, gradients


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.quick("GPT-2", "Llama", "BLOOM")
def test_logits_and_the_gradient_of_every_parameter(case):
    import torch

    random = np.random.default_rng(0)
    ids = random.integers(0, VOCAB, VALID.shape)
    # Only real tokens count: what a padded query sees is anyone's choice.
    weights = random.normal(size=(*VALID.shape, VOCAB)).astype(np.float32) * VALID[..., None]

    def logits_and_gradients_of(model):
        tensors = hf_mapping.tensors(model)
        logits = model(torch.tensor(ids), attention_mask=torch.tensor(VALID).long()).logits
        loss = (logits * torch.tensor(weights)).sum()
        gradients = torch.autograd.grad(loss, tensors.values())
        return {"logits": logits.detach()[VALID]}, dict(zip(tensors, gradients, strict=True))

    model = hf_mapping.random_model(case.model_class, case.theirs)
    theirs = hf_mapping.tensors(model)
    expected, exact = hf_mapping.in_both_precisions(logits_and_gradients_of, model)
    shapes = structure_of(case.ours).shapes
    mapped = hf_mapping.our_parameters(case.ours, case.names, theirs, shapes)
    ours = {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in mapped.items()}
    logits, gradients = logits_and_gradients(case.ours, ours, ids, VALID, weights)
    back = hf_mapping.their_gradients(mapped, theirs, gradients)
    actual = {"logits": logits[VALID]}, back
    for outputs in zip(actual, expected, exact, strict=True):
        hf_mapping.assert_same(*outputs)
