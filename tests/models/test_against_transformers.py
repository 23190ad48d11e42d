"""Whole models from configuration alone: scores and gradients equal those of transformers.

One of each family, by a map that is written by hand (`hf_mapping`). The other systems are compared
through the tables of `zoo`, in `hub/test_every_system.py`.
"""

from dataclasses import dataclass
from functools import partial

import hf_mapping
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import structure_of

from jaxformer.functional import LayerNorm, Learned, Llama3Scaling, RMSNorm, RoPE, T5Bias
from jaxformer.models import (
    Classification,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    MaskedLanguageModel,
    ModelConfig,
)
from jaxformer.nn import MLP, DotProductAttention, TokenEmbeddings, VocabularyLogits

pytestmark = pytest.mark.torch

VOCAB, PAD, EPS = 53, 1, 1e-3
# Rows without padding, one padded on the left and one on the right.
REAL = np.ones((4, 11), bool)
REAL[2, :4] = REAL[3, 7:] = False
DECODED = np.ones((4, 7), bool)
DECODED[1, 4:] = DECODED[3, :2] = False


@dataclass(frozen=True)
class Case:
    """One model in both libraries."""

    model_class: str
    names: hf_mapping.Names
    theirs: dict
    ours: ModelConfig
    scores: tuple[str, ...]
    """Their outputs, in the order of our heads."""


# Sizes that do not divide one another where they need not.
SIZES = {"vocab_size": VOCAB, "num_layers": 3, "model_dim": 48, "num_heads": 6, "mlp_dim": 22}
SIZES |= {"compute_dtype": "float32"}
THEIR_SIZES = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3}
THEIR_SIZES |= {"num_attention_heads": 6, "intermediate_size": 22}

CASES = {
    "llama": Case(
        "LlamaForCausalLM",
        hf_mapping.LLAMA,
        THEIR_SIZES
        | {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "rms_norm_eps": EPS,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        DecoderConfig(
            **SIZES,
            num_kv_heads=2,
            head_dim=8,
            norm=RMSNorm(eps=EPS),
            position=RoPE(theta=100.0, scaling=Llama3Scaling(8.0, 1.0, 4.0, 32)),
            tie_embeddings=False,
        ),
        ("logits",),
    ),
    "bert": Case(
        "BertForPreTraining",
        hf_mapping.BERT,
        THEIR_SIZES
        | {
            "pad_token_id": PAD,
            "max_position_embeddings": 17,
            "layer_norm_eps": EPS,
            "type_vocab_size": 3,
        },
        EncoderConfig(
            **SIZES,
            position=Learned(max_length=17),
            norm=LayerNorm(eps=EPS),
            embeddings=TokenEmbeddings(norm=LayerNorm(eps=EPS), token_types=3),
            pooler="tanh",
            heads=(MaskedLanguageModel(), Classification(label="next_sentence")),
        ),
        ("prediction_logits", "seq_relationship_logits"),
    ),
    "t5": Case(
        "T5ForConditionalGeneration",
        hf_mapping.T5,
        {
            "vocab_size": VOCAB,
            "pad_token_id": PAD,
            "d_model": 48,
            "d_kv": 5,
            "d_ff": 22,
            "num_layers": 3,
            "num_decoder_layers": 2,
            "num_heads": 6,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 9,
            "layer_norm_epsilon": EPS,
        },
        EncoderDecoderConfig(
            **SIZES,
            num_decoder_layers=2,
            head_dim=5,
            position=T5Bias(8, 9, bidirectional=True),
            decoder_position=T5Bias(8, 9, bidirectional=False),
            norm=RMSNorm(eps=EPS),
            self_attention=DotProductAttention(scale=1.0),
            feed_forward=MLP(activation="relu", gated=False),
            logits=VocabularyLogits(scale=48**-0.5),
        ),
        ("logits",),
    ),
}


def batch_of(case: Case, padded: bool) -> dict[str, np.ndarray]:
    """What our model reads: with padding, or without any and no word about it."""
    random = np.random.default_rng(0)
    sides = {"": REAL}
    if isinstance(case.ours, EncoderDecoderConfig):
        sides["decoder_"] = DECODED
    batch = {}
    for side, real in sides.items():
        ids = random.integers(PAD + 1, VOCAB, real.shape)
        batch[f"{side}inputs"] = np.where(real, ids, PAD) if padded else ids
        if padded:
            batch[f"{side}segments"] = real.astype(np.int32)
    if isinstance(case.ours, EncoderConfig):
        batch["token_types"] = random.integers(0, 3, REAL.shape)
    return batch


def their_arguments(batch: dict) -> dict:
    """The same for their model."""
    import torch

    def name(key: str) -> str:
        key = key.replace("token_types", "token_type_ids").replace("segments", "attention_mask")
        return key.replace("inputs", "input_ids")

    return {name(key): torch.tensor(array) for key, array in batch.items()}


def weights_of(batch: dict, scores: list) -> list[np.ndarray]:
    """What each score counts for in the function whose gradient is compared.

    Only real tokens count. BERT's pooler reads the first token.
    """
    random = np.random.default_rng(1)
    real = batch.get("decoder_segments", batch.get("segments", np.ones((len(REAL), 1)))) > 0
    return [
        random.normal(size=found.shape).astype(np.float32)
        * (real[..., None] if found.ndim == 3 else real[:, :1])
        for found in scores
    ]


@partial(jax.jit, static_argnums=0)
def scores_and_gradients(config, parameters, batch, weights):
    """Our scores, and the gradient of their weighted sum."""

    def total(parameters):
        model = structure_of(config).module(parameters)
        states = model.outputs(batch)
        scores = [head.scores(states) for head in model.heads.values()]
        return sum(map(jnp.vdot, scores, weights)), scores

    gradients, scores = jax.grad(total, has_aux=True)(parameters)
    return scores, gradients


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "without a mask"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.quick("llama-padded")
def test_scores_and_the_gradient_of_every_parameter(name, padded):
    import torch

    case = CASES[name]
    batch = batch_of(case, padded)

    def real(scores, weights) -> dict:
        pairs = zip(case.scores, scores, weights, strict=True)
        return {name: np.where(weight != 0, found, 0) for name, found, weight in pairs}

    def outputs_and_gradients(model):
        outputs = model(**their_arguments(batch))
        scores = [outputs[name] for name in case.scores]
        weights = weights_of(batch, scores)
        total = sum((x * torch.tensor(w)).sum() for x, w in zip(scores, weights, strict=True))
        tensors = dict(model.named_parameters())
        gradients = torch.autograd.grad(total, tensors.values())
        scores = real([x.detach().numpy() for x in scores], weights)
        return scores, dict(zip(tensors, gradients, strict=True))

    model = hf_mapping.random_model(case.model_class, case.theirs, std=0.15)
    theirs = dict(model.named_parameters())
    expected, exact = hf_mapping.in_both_precisions(outputs_and_gradients, model)
    shapes = structure_of(case.ours).shapes
    mapped = hf_mapping.our_parameters(case.ours, case.names, theirs, shapes)
    ours = {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in mapped.items()}
    weights = weights_of(batch, list(expected[0].values()))
    scores, gradients = scores_and_gradients(case.ours, ours, batch, weights)
    back = hf_mapping.their_gradients(mapped, theirs, gradients)
    for outputs in zip((real(scores, weights), back), expected, exact, strict=True):
        hf_mapping.assert_same(*outputs)
