"""Beam search finds what transformers finds: every system, every rule of when a row is over."""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import chain, product

import numpy as np
import pytest

from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.engine import engine_for
from jaxformer.generation.inputs import prepare_inputs
from jaxformer.parity.reference import Reference, save_random
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.model import Pretrained
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

MOST, BEAMS, PAD = 9, 4, 3
ALL = {"max_new_tokens": MOST, "num_beams": BEAMS, "num_return_sequences": BEAMS}
PENALTIES = (0.6, 1.0, 2.0, 0.0, -1.0)
# Of each system the fields of a smaller model, and what is asked of it.
SYSTEMS = {
    "gpt2": ({"n_layer": 1}, {}),
    "bloom": ({"n_layer": 1}, {"repetition_penalty": 1.3}),
    "llama": ({"num_hidden_layers": 2}, {"no_repeat_ngram_size": 2, "min_new_tokens": 3}),
    "mistral": ({"num_hidden_layers": 1}, {}),
    "xglm": ({"num_layers": 1}, {}),
    "t5": ({"num_layers": 1, "num_decoder_layers": 1}, {}),
    "bart": (
        {"encoder_layers": 1, "decoder_layers": 1},
        {
            "forced_eos_token_id": 2,
            "min_length": 4,
            "encoder_no_repeat_ngram_size": 2,
            "renormalize_logits": True,
        },
    ),
    "blenderbot-small": (
        {"encoder_layers": 1, "decoder_layers": 1},
        {"no_repeat_ngram_size": 3, "min_new_tokens": 2},
    ),
    "m2m_100": (
        {"encoder_layers": 1, "decoder_layers": 1},
        {"forced_bos_token_id": 40, "early_stopping": True},
    ),
}


@dataclass(frozen=True)
class Pair:
    """One model in both libraries."""

    ours: Pretrained
    theirs: Reference

    def found(self, inputs, **options):
        """Texts and their scores, those of all rows."""
        _, prompts, encoder_outputs = prepare_inputs(self.ours, inputs)
        config = GenerationConfig(**options).for_width(prompts.tokens.shape[1])
        found = engine_for(self.ours).beam_search(prompts, config, encoder_outputs=encoder_outputs)
        rows = zip(found.tokens.tolist(), found.lengths, strict=True)
        return [tokens[:length] for tokens, length in rows], found.scores

    def expected(self, inputs, **options):
        """What transformers finds."""
        import torch
        from transformers import GenerationConfig as TheirConfig

        ids, mask = (torch.tensor(inputs[name]) for name in ("input_ids", "attention_mask"))
        model = self.theirs.model
        config = TheirConfig(
            **options,
            decoder_start_token_id=getattr(model.config, "decoder_start_token_id", None),
            pad_token_id=PAD,
            return_dict_in_generate=True,
            output_scores=True,
        )
        # What the model's own recommends would fill in what is not given here.
        model.generation_config = TheirConfig()
        found = model.generate(ids, attention_mask=mask, generation_config=config)
        new = found.sequences[:, 1 if model.config.is_encoder_decoder else ids.shape[1] :]
        ends = np.atleast_1d(options.get("eos_token_id", -1))
        return [cut(row, ends) for row in new.tolist()], found.sequences_scores.numpy()

    def check(self, inputs, **options):
        """Asserts that both find the same; returns the texts."""
        (texts, scores), (expected, theirs) = (
            find(inputs, **options) for find in (self.found, self.expected)
        )
        assert texts == expected, options
        np.testing.assert_allclose(scores, theirs, rtol=1e-5, atol=1e-5)
        return texts

    def usual(self, inputs, **options):
        """The tokens of texts without an end, the most frequent first."""
        free, _ = self.expected(inputs, **options)
        return [token for token, _ in Counter(chain.from_iterable(free)).most_common()]

    def ending(self, inputs, **options):
        """Options with two end tokens, such that texts end at several lengths."""
        usual = self.usual(inputs, **options)
        for penalty, first in product(PENALTIES, usual):
            ends = {"eos_token_id": (first, usual[-1]), "length_penalty": penalty}
            texts, _ = self.expected(inputs, **options | ends)
            if len({len(text) for text in texts}) > 2:
                return options | ends
        raise AssertionError("no token ends a text early")


def cut(tokens, ends):
    """Up to the first end token, which is kept."""
    return tokens[: next((n + 1 for n, token in enumerate(tokens) if token in ends), len(tokens))]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Makes a pair of a system, once."""

    @cache
    def make(kind, **changes):
        folder, names = tmp_path_factory.mktemp(kind), [a.name for a in FORMATS[kind].architectures]
        kinds = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
        architecture = next(name for name in names if name.endswith(kinds))
        save_random(kind, architecture, folder, **SYSTEMS[kind][0] | changes)
        return Pair(load(folder), Reference(folder, architecture))

    return make


def prompts_of(rows, vocab_size):
    """Prompts of different lengths, padded on the left."""
    random = np.random.default_rng(0)
    ids, padding = random.integers(6, vocab_size, (rows, 6)), random.integers(0, 4, (rows, 1))
    mask = (np.arange(6)[None, :] >= padding).astype(int)
    return {"input_ids": np.where(mask > 0, ids, PAD), "attention_mask": mask}


@pytest.fixture
def prompts():
    """Those of most tests."""
    return prompts_of(3, 131)


@pytest.mark.parametrize("kind", SYSTEMS)
@pytest.mark.quick("t5")
def test_every_system_finds_what_transformers_finds(pair, prompts, kind):
    both = pair(kind)
    both.check(prompts, **both.ending(prompts, **ALL | SYSTEMS[kind][1]))


@pytest.mark.parametrize("num_beams", [2, BEAMS])
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.quick("True-2")
def test_every_rule_of_ending_is_that_of_transformers(pair, num_beams, early_stopping):
    # Of few tokens two often end a text, and rows are over at many lengths.
    both, prompts = pair("gpt2", vocab_size=40), prompts_of(24, 40)
    options = ALL | {"num_beams": num_beams, "num_return_sequences": num_beams}
    ends = tuple(both.usual(prompts, **options)[1:4:2])
    options |= {"eos_token_id": ends, "early_stopping": early_stopping}
    for length_penalty in PENALTIES:
        both.check(prompts, **options, length_penalty=length_penalty)
