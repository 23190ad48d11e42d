"""The reference for comparisons: the model in jaxformer."""

import numpy as np

from jaxformer.engines.base import LoadedModel, Prompt
from jaxformer.generation.api import generate
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.outputs import forward

TEXT = "The quick brown fox jumps over the lazy dog. It's 12:30, and 1 + 1 = 2.\n\n  def f(x):"
"""A text with words, numbers, punctuation and white space, on which tokenizers differ."""
_LENGTH = 24
_PLAIN = {
    "do_sample": False,
    "begin_suppress_tokens": (),
    "eos_token_id": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
}
"""Options of plain greedy decoding, which override those of generation_config.json."""


class ReferenceModel(LoadedModel):
    """A model in jaxformer, in float32."""

    def __init__(self, pretrained: Pretrained):
        self.pretrained = pretrained

    @property
    def generates(self) -> bool:
        """Whether the model generates text."""
        return self.pretrained.config.predicts_next_token

    def prompt(self) -> Prompt:
        """Returns the tokens of `TEXT`, or random tokens without a tokenizer."""
        config = self.pretrained.config
        text = self.tokenize(TEXT) or np.random.default_rng(0).integers(
            0, config.vocab_size, _LENGTH
        )
        tokens = tuple(int(token) for token in text)[: min(_LENGTH, self.longest // 2)]
        if not config.is_encoder_decoder:
            return Prompt(tokens)
        start = self.pretrained.checkpoint.hf_config.values["decoder_start_token_id"]
        return Prompt(tokens, (int(start),))

    @property
    def longest(self) -> int:
        """The model's number of positions, or a large number."""
        values = self.pretrained.checkpoint.hf_config.values
        named = ("max_position_embeddings", "n_positions", "max_seq_len")
        config = self.pretrained.config
        schemes = (getattr(config, name, None) for name in ("position", "decoder_position"))
        lengths = [values.get(name) for name in named]
        lengths += [getattr(scheme, "max_length", None) for scheme in schemes]
        return min([length for length in lengths if length], default=1 << 20)

    def outputs(self, prompt: Prompt) -> np.ndarray:
        found = forward(self.pretrained, prompt.inputs)
        rows = found["logits" if "logits" in found else "last_hidden_state"][0]
        return np.asarray(rows[prompt.num_given - 1 :])

    def greedy(self, prompt: Prompt, count: int) -> list[int]:
        options = {"max_new_tokens": count, "suppress_tokens": prompt.suppressed, **_PLAIN}
        found = generate(self.pretrained, prompt.inputs, **options)
        return found["sequences"][0][-count:].tolist()

    def tokenize(self, text: str) -> list[int] | None:
        tokenizer = self.pretrained.tokenizer
        return None if tokenizer is None else tokenizer.encode(text, add_special_tokens=False).ids
