"""Prompts, and what transformers generates from them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from tiny_models import random_parameters, structure_of

from jaxformer.distributed.sharding import parameter_shardings
from jaxformer.functional.sampling import next_token, penalties
from jaxformer.generation.decode import processors
from jaxformer.generation.engine import Engine
from jaxformer.generation.inputs import Prompts
from jaxformer.hub.hf_config import HFConfig

NEW = 8
THEIR_PROCESSORS = {
    penalties.bias_sequences: "SequenceBiasLogitsProcessor",
    penalties.no_repeat_ngram: "NoRepeatNGramLogitsProcessor",
    penalties.ban_sequences: "NoBadWordsLogitsProcessor",
    processors.SourcePenalty: "EncoderRepetitionPenaltyLogitsProcessor",
    processors.NoSourceNgram: "EncoderNoRepeatNGramLogitsProcessor",
    processors.EndsLater: "ExponentialDecayLengthPenalty",
    processors.BannedAtBegin: "SuppressTokensAtBeginLogitsProcessor",
    processors.RepetitionPenalty: "RepetitionPenaltyLogitsProcessor",
    processors.MinNewTokens: "MinNewTokensLengthLogitsProcessor",
    processors.ForcedFirst: "ForcedBOSTokenLogitsProcessor",
    processors.ForcedLast: "ForcedEOSTokenLogitsProcessor",
    next_token.ban_tokens: "SuppressTokensLogitsProcessor",
    next_token.scale_temperature: "TemperatureLogitsWarper",
    next_token.top_k_filter: "TopKLogitsWarper",
    next_token.top_p_filter: "TopPLogitsWarper",
    next_token.min_p_filter: "MinPLogitsWarper",
    next_token.typical_filter: "TypicalLogitsWarper",
    next_token.epsilon_filter: "EpsilonLogitsWarper",
    next_token.eta_filter: "EtaLogitsWarper",
    jnp.nan_to_num: "InfNanRemoveLogitsProcessor",
    jax.nn.log_softmax: "LogitNormalization",
}
"""The functions and classes of our processors -> the classes of transformers."""


def their_processor(ours):
    """The class of transformers that is one of our processors."""
    from transformers.generation import logits_process

    return getattr(logits_process, THEIR_PROCESSORS[getattr(ours, "function", type(ours))])


def prompts(vocab_size):
    """Three rows of ids and a mask with padding of different lengths on the left."""
    # No token is the padding's of a tiny model: RoBERTa would not count it.
    ids = np.random.default_rng(0).integers(6, vocab_size, (3, 9))
    mask = np.ones_like(ids)
    mask[0, :4], mask[2, :1] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def padded_on_the_right(left):
    """The same prompts with their padding on the other side."""
    right = {name: np.zeros_like(array) for name, array in left.items()}
    for row, real in enumerate(left["attention_mask"] > 0):
        for name, array in left.items():
            right[name][row, : real.sum()] = array[row, real]
    return right


def theirs(folder, name, inputs, **options):
    """What transformers makes of the same."""
    import torch
    import transformers

    model = getattr(transformers, name).from_pretrained(folder).eval()
    tensors = {key: torch.tensor(array) for key, array in inputs.items()}
    with torch.no_grad():
        return model.generate(
            **tensors, **options, return_dict_in_generate=True, output_scores=True
        )


def with_values(model, values):
    """The model as if its config.json had these values."""
    checkpoint = replace(model.checkpoint, hf_config=HFConfig(values))
    return replace(model, describe=lambda config: checkpoint)


def engine_of(config, mesh=None, seed=0, scale=0.4):
    """The engine of a random model, on a mesh or on one device."""
    structure, parameters = structure_of(config), random_parameters(config, seed, scale)
    if mesh is not None:
        shardings = parameter_shardings(mesh, structure.axes, structure.shapes)
        parameters = jax.device_put(parameters, shardings)
    return Engine(config, structure, parameters, mesh)


def prompts_of(*lengths, seed=0):
    """Random prompts of these lengths."""
    lengths = np.array(lengths, np.int32)
    tokens = np.random.default_rng(seed).integers(0, 31, (len(lengths), lengths.max()))
    tokens[np.arange(lengths.max()) >= lengths[:, None]] = 0
    return Prompts(tokens.astype(np.int32), lengths)
