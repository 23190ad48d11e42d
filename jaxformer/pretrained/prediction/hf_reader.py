"""Reads texts for a Hugging Face checkpoint, whose tokenizer adds special tokens."""

import json
from typing import Any

import jax
import numpy as np
from tokenizers import Encoding, Tokenizer, normalizers

from jaxformer.data.tasks.sequences import EncodedText
from jaxformer.data.tokenizers.files import bounded_matches, read_settings
from jaxformer.data.tokenizers.prompts import read_prompt_encoder
from jaxformer.errors import DataError
from jaxformer.hub.families import Outputs, family_of, forward
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.prediction.reader import TextReader, Window, Words, joined_spans

_ANSWER_LENGTH = 384
_ANSWER_STRIDE = 128
_QUESTION_LENGTH = 64
"""The default row sizes of question answering, as in BERT's."""
_SCORES = ("logits", "text_embeds", "image_embeds", "pooler_output")
"""The names of a head's scores in transformers."""
_UNLIMITED = 10**6
"""The maximum length in files of tokenizers without a limit is larger than this."""


class HFReader(TextReader):
    """Reads texts as in the pipelines of transformers."""

    def __init__(
        self, pretrained: Pretrained, max_length: int | None = None, lower_case: bool = False
    ):
        """Reads the tokenizer."""
        self._checkpoint = pretrained.checkpoint
        config = pretrained.config
        self._folder = pretrained.folder
        self._tokenizer = read_prompt_encoder(pretrained.folder).tokenizer
        if lower_case:
            _lower(self._tokenizer)
        settings = read_settings(pretrained.folder)
        self.max_length = max_length or self._longest(settings.get("model_max_length"))
        # The last token is the same for every padding; tables of positions count from 0.
        self.pads_left = config.causal
        rows = getattr(config, "type_sizes", {}).get("token_types", 0)
        self._types = rows if _gives_types(settings) else 0
        self._pad = self._checkpoint.hf_config.values.get("pad_token_id") or 0

    @bounded_matches()
    def encode(self, rows):
        self._cut_longest()
        given = [row[0] if len(row) == 1 else row for row in rows]
        return [_tokens(encoding) for encoding in self._tokenizer.encode_batch(given)]

    @bounded_matches()
    def prefix_length(self, prefix: str) -> int:
        """Returns the number of tokens of a prefix, including special tokens."""
        self._cut_longest()
        encoding = self._tokenizer.encode(prefix)
        return len(encoding) - sum(encoding.special_tokens_mask[-1:])

    @bounded_matches()
    def encode_words(self, rows):
        self._cut_longest()
        encodings = self._tokenizer.encode_batch(list(map(list, rows)), is_pretokenized=True)
        return [
            Words(_tokens(encoding), _first_pieces(encoding, len(words)), joined_spans(words))
            for words, encoding in zip(rows, encodings, strict=True)
        ]

    @bounded_matches()
    def split_words(self, texts):
        self._cut_longest()
        encodings = self._tokenizer.encode_batch(list(texts))
        return [self._split(*pair) for pair in zip(texts, encodings, strict=True)]

    @bounded_matches()
    def windows(self, where, question, context):
        tokenizer = self._tokenizer
        length = min(self.max_length, _ANSWER_LENGTH)
        tokenizer.no_truncation()
        (encoded,) = tokenizer.encode_batch([question], add_special_tokens=False)
        if len(encoded) > _QUESTION_LENGTH:
            question = question[: encoded.offsets[_QUESTION_LENGTH - 1][1]]
        added = tokenizer.num_special_tokens_to_add(True)
        room = length - min(len(encoded), _QUESTION_LENGTH) - added
        if room < 2:
            raise DataError(
                f"{where}: a question of {len(encoded)} tokens leaves no room for the context in "
                f"{length}: give a shorter one"
            )
        stride = min(_ANSWER_STRIDE, room - 1)
        tokenizer.enable_truncation(length, stride=stride, strategy="only_second")
        encoding = tokenizer.encode(question, context)
        cut = len(encoded) > _QUESTION_LENGTH
        return [_window(part, cut) for part in (encoding, *encoding.overflowing)]

    def arrays(self, rows, length):
        mask = self.stacked([np.ones_like(row.ids) for row in rows], length, 0)
        arrays = {
            "input_ids": self.stacked([row.ids for row in rows], length, self._pad),
            "attention_mask": mask,
        }
        if self._types:
            types = self.stacked([row.types for row in rows], length, 0)
            arrays["token_type_ids"] = np.minimum(types, self._types - 1)
        if self.pads_left:
            arrays["position_ids"] = np.maximum(np.cumsum(mask, axis=1, dtype=np.int32) - 1, 0)
        return arrays

    def scores(self, model, arrays):
        outputs = forward(model, self._checkpoint, arrays)
        if "start_logits" in outputs:
            return jax.numpy.stack([outputs["start_logits"], outputs["end_logits"]], axis=1)
        return scores_in(outputs)

    def states(self, model, arrays):
        valid = arrays["attention_mask"] > 0
        if self._checkpoint.config.is_encoder_decoder:
            family = family_of(self._checkpoint.config)
            return family.encode(model, self._checkpoint, arrays)[0], valid
        return forward(model, self._checkpoint, arrays)["last_hidden_state"], valid

    def _cut_longest(self) -> None:
        self._tokenizer.enable_truncation(self.max_length, strategy="longest_first")

    def _longest(self, stored: object) -> int:
        values = self._checkpoint.hf_config.values
        limits = (stored, values.get("max_position_embeddings"), values.get("n_positions"))
        limits = (*limits, self._checkpoint.config.position.max_length)
        return int(min((n for n in limits if isinstance(n, int) and n < _UNLIMITED), default=8192))

    def _split(self, text: str, encoding: Encoding) -> Words:
        """Returns the words of a text, grouped as in token-classification pipelines."""
        real = [n for n, special in enumerate(encoding.special_tokens_mask) if not special]
        spans, first = [], []
        for index in real:
            start, end = encoding.offsets[index]
            if spans and self._continues(text, encoding, index):
                spans[-1] = spans[-1][0], end
            else:
                spans.append((start, end))
                first.append(index)
        return Words(_tokens(encoding), np.array(first, np.int32), spans)

    def _continues(self, text: str, encoding: Encoding, index: int) -> bool:
        """Whether a token belongs to the same word as the previous one."""
        if getattr(self._tokenizer.model, "continuing_subword_prefix", None):
            return encoding.word_ids[index] == encoding.word_ids[index - 1]
        start = encoding.offsets[index][0]
        return start > 0 and " " not in text[start - 1 : start + 1]


def scores_in(outputs: Outputs) -> jax.Array:
    """Returns the scores of a head among the outputs of a model."""
    return next(outputs[name] for name in _SCORES if name in outputs)


def _lower(tokenizer: Tokenizer) -> None:
    """Adds lowercasing to a tokenizer, unless it already lowercases."""
    own = tokenizer.normalizer
    if own is None:
        tokenizer.normalizer = normalizers.Lowercase()
        return
    state = json.loads(own.__getstate__())
    if not any(part["type"] == "Lowercase" for part in (state, *state.get("normalizers", ()))):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), own])


def _gives_types(settings: dict[str, Any]) -> bool:
    """Whether transformers passes token_type_ids to the model."""
    # In transformers 5, tokenizers without a dedicated class omit it by default.
    plain = settings.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")
    names = [] if plain and "backend" in settings else ["token_type_ids"]
    return "token_type_ids" in settings.get("model_input_names", names)


def _tokens(encoding: Encoding) -> EncodedText:
    ids, types = (np.array(side, np.int32) for side in (encoding.ids, encoding.type_ids))
    return EncodedText(ids, types, bool(encoding.overflowing))


def _first_pieces(encoding: Encoding, count: int) -> np.ndarray:
    """Returns the first token of each word, or -1 for words without a token."""
    first = np.full(count, -1, np.int32)
    for index, word in reversed(list(enumerate(encoding.word_ids))):
        if word is not None:
            first[word] = index
    return first


def _window(encoding: Encoding, cut: bool) -> Window:
    characters = np.full((len(encoding.ids), 2), -1, np.int32)
    for index, sequence in enumerate(encoding.sequence_ids):
        if sequence == 1:
            word = encoding.word_ids[index]
            whole = None if word is None else encoding.word_to_chars(word, 1)
            characters[index] = whole or encoding.offsets[index]
    return Window(_tokens(encoding)._replace(cut=cut), characters)
