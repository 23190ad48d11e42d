"""The routing of the tokens of a text to experts, and its dependence on the tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import jax
import numpy as np

from jaxformer.checks import at_least, check_arguments
from jaxformer.errors import ArgumentError
from jaxformer.functional.experts.routing import Router
from jaxformer.lab.selection import selected
from jaxformer.models import DecoderConfig, EncoderConfig
from jaxformer.nn import Experts
from jaxformer.pretrained.inspection.tokens import Token, open_tokenizer
from jaxformer.pretrained.model import Pretrained, check_pretrained

CLASSES = ("starts a word", "inside a word", "number", "punctuation", "white space", "special")
"""Classes of tokens, by their characters in the text."""
_LOGITS, _EXPERTS = "blocks.*.hook_router_logits", "blocks.*.hook_expert_indices"


class TopToken(NamedTuple):
    """A token that an expert receives more often than others."""

    name: str
    id: int
    """Its row in the embedding table."""
    routed: int
    """How often the expert receives it."""
    occurrences: int


@dataclass(frozen=True)
class Routing:
    """The experts of T tokens of a text in L layers, without padding."""

    ids: np.ndarray
    """int `[T]`: the tokens."""
    names: tuple[str, ...]
    """The T tokens as text."""
    classes: np.ndarray
    """int `[T]`: the class of each token, an index in `CLASSES`."""
    num: int
    """The number of experts of a layer (E)."""
    layers: tuple[int, ...]
    """The numbers of the layers with experts."""
    experts: np.ndarray
    """int `[L, T, K]`: the experts of each token."""
    entropies: np.ndarray
    """float32 `[L, T]`: the entropy of the router's probabilities, in nats."""

    def select(self, layers: Sequence[int] | None) -> "Routing":
        """Returns the routing in some layers."""
        places = selected("layers", layers, self.layers)
        return replace(
            self,
            layers=tuple(self.layers[place] for place in places),
            experts=self.experts[places],
            entropies=self.entropies[places],
        )

    def by_class(self) -> dict[str, np.ndarray]:
        """Returns masks of the tokens of each class in the text, bool `[T]`."""
        found = {name: self.classes == place for place, name in enumerate(CLASSES)}
        return {name: chosen for name, chosen in found.items() if np.any(chosen)}

    def load(self, chosen: np.ndarray | slice = slice(None)) -> np.ndarray:
        r"""Returns the load of each expert by some tokens, relative to a uniform load, `[L, E]`.

        .. math:: \ell_e = \frac{E}{T K} \sum_t \sum_k [e_{t k} = e]
        """
        experts = self.experts[:, chosen]
        counts = np.stack([np.bincount(row.ravel(), minlength=self.num) for row in experts])
        return self.num * counts / counts.sum(axis=1, keepdims=True)

    def load_entropies(self) -> np.ndarray:
        r"""Returns the entropy of the mean load in nats, `[L]`; :math:`\ln E` for a uniform load.

        .. math:: H = -\sum_e \frac{\ell_e}{E} \ln \frac{\ell_e}{E}
        """
        shares = self.load() / self.num
        return -np.sum(shares * np.log(np.where(shares > 0, shares, 1.0)), axis=1)

    def agreements(self) -> np.ndarray:
        r"""Returns the mean fraction of a token's experts shared with its other occurrences.

        .. math:: a_t = \frac{1}{n - 1} \sum_{s \ne t,\, x_s = x_t} \frac{|E_t \cap E_s|}{K}

        for the n occurrences of the token :math:`x_t` and its experts :math:`E_t`, `[L, T]`. It is
        1 where only the token id matters, not the context, and NaN for a token that occurs once.
        Xue et al. (OpenMoE, https://arxiv.org/abs/2402.01739, section 4) find that routing follows
        the token id.
        """
        _, places, occurrences = np.unique(self.ids, return_inverse=True, return_counts=True)
        others = occurrences[places] - 1.0
        others[others == 0] = np.nan
        found = []
        for counts, experts in zip(self._counts(), self.experts, strict=True):
            shared = np.mean(counts[places[:, None], experts] - 1.0, axis=1)
            found.append(shared / others)
        return np.stack(found)

    def mean_agreements(self, chosen: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Returns the mean of `agreements` over the chosen tokens that occur at least twice, `[L]`.

        It is NaN if there are none.
        """
        found = self.agreements()[:, chosen]
        there = ~np.isnan(found)
        counts = np.where(there.any(axis=1), there.sum(axis=1), np.nan)
        return np.sum(np.where(there, found, 0), axis=1) / counts

    def chance(self) -> np.ndarray:
        r"""Returns the mean fraction of experts shared by two tokens of the text.

        .. math:: c = \frac{\sum_e n_e (n_e - 1)}{K\, T (T - 1)}

        for the :math:`n_e` tokens of an expert, `[L]`: the value of `agreements` if experts were
        independent of the token. It is NaN for a single token.
        """
        _, tokens, per_token = self.experts.shape
        counts = self.load() * tokens * per_token / self.num
        pairs = tokens * (tokens - 1.0) or np.nan
        return np.sum(counts * (counts - 1), axis=1) / (per_token * pairs)

    def top_tokens(self, count: int) -> list[list[list[TopToken]]]:
        r"""Returns, by layer and expert, at most `count` tokens that the expert receives most
        often.

        They are ordered by :math:`n_{e x} - n_x n_e / T`, the excess of a token's count over the
        expert's share of all tokens.
        """
        unique, first, occurrences = np.unique(self.ids, return_index=True, return_counts=True)
        found = []
        for counts in self._counts():
            beyond = counts - occurrences[:, None] * counts.sum(axis=0) / len(self.ids)
            best = np.argsort(-beyond, axis=0, kind="stable")[:count]
            tops: list[list[TopToken]] = [[] for _ in range(self.num)]
            for expert, top in enumerate(tops):
                for row in best[beyond[best[:, expert], expert] > 0, expert]:
                    numbers = unique[row], counts[row, expert], occurrences[row]
                    top.append(TopToken(self.names[first[row]], *map(int, numbers)))
            found.append(tops)
        return found

    def _counts(self):
        """Yields how often each expert of a layer receives each token, `[unique ids, E]`."""
        unique, places = np.unique(self.ids, return_inverse=True)
        for experts in self.experts:
            pairs = places[:, None] * self.num + experts
            counts = np.bincount(pairs.ravel(), minlength=len(unique) * self.num)
            yield counts.reshape(len(unique), self.num)


def expert_routing(
    pretrained: Pretrained, text: str, *, length: int = 512, max_tokens: int = 32_768
) -> Routing:
    """Returns the routing of the first tokens of a text in a decoder or text encoder.

    A longer text is split into rows of `length` tokens as in training; padding is ignored.
    """
    check_pretrained("pretrained", pretrained)
    check_arguments(length=(length, at_least(1)), max_tokens=(max_tokens, at_least(1)))
    config = pretrained.config
    settings = getattr(config, "feed_forward", None)
    if not (isinstance(config, DecoderConfig | EncoderConfig) and isinstance(settings, Experts)):
        raise ArgumentError(
            f"the model is a {type(config).__name__} with the feed-forward layer "
            f"{type(settings).__name__}: must be a decoder or a text encoder with Experts"
        )
    tokens = open_tokenizer(pretrained).tokens(text)[:max_tokens]
    if not tokens:
        raise ArgumentError(f"text = {text!r}: must have at least one token")
    limit = config.position.max_length
    length = min(length, len(tokens), *(() if limit is None else (limit,)))
    ids = np.array([token.id for token in tokens], np.int32)
    rows = [ids[start : start + length] for start in range(0, len(ids), length)]
    parts = [_routed(pretrained, settings.router, row, length) for row in rows]
    layers, experts, entropies = zip(*parts, strict=True)
    return Routing(
        ids,
        tuple(_name(token, text) for token in tokens),
        np.array([CLASSES.index(_class(token, text)) for token in tokens]),
        settings.num,
        layers[0],
        np.concatenate(experts, axis=1),
        np.concatenate(entropies, axis=1),
    )


def _routed(
    pretrained: Pretrained, router: Router, row: np.ndarray, length: int
) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
    """Returns the layers, the experts `[L, T, K]` and the entropies `[L, T]` of a row."""
    padded = np.zeros((2, 1, length), np.int32)
    padded[:, 0, : len(row)] = row, np.ones_like(row)
    inputs = dict(zip(("input_ids", "attention_mask"), padded, strict=True))
    _, found = pretrained.activations(inputs, (_LOGITS, _EXPERTS))
    layers, logits, experts = [], [], []
    for name, array in found.items():
        if fnmatchcase(name, _EXPERTS):
            layers.append(int(name.split(".")[1]))
            experts.append(array[0, : len(row)])
        else:
            logits.append(array[0, : len(row)])
    probabilities = np.stack([router.probabilities(each) for each in logits])
    entropies = -np.sum(jax.scipy.special.xlogy(probabilities, probabilities), axis=-1)
    return tuple(layers), np.stack(experts), np.asarray(entropies)


def _class(token: Token, text: str) -> str:
    """Returns the class of a token from its characters and the preceding one."""
    if token.special or token.start is None:
        return "special"
    piece = text[token.start : token.end]
    letters = piece.strip()
    if not letters:
        return "white space"
    if letters[0].isdigit():
        return "number"
    if not re.search(r"\w", letters):
        return "punctuation"
    inside = piece == letters and text[: token.start][-1:].isalnum()
    return "inside a word" if inside else "starts a word"


def _name(token: Token, text: str) -> str:
    """Returns a token as text with visible white space."""
    shown = token.shown(text)
    if token.start is None:
        return shown
    piece = text[token.start : token.end]
    if not piece.strip():
        shown = piece or shown
    elif token.piece[:1] in ("Ġ", "▁"):
        shown = f" {shown}"
    return shown.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
