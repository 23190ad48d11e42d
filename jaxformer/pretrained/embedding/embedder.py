"""Embeds texts, or scores pairs of texts, with a model."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checkpoints.run_dir import RunConfig
from jaxformer.checks import at_least, check_argument, optional
from jaxformer.data.tokenizers.files import read_settings
from jaxformer.data.tokenizers.specs import load_tokenizer
from jaxformer.pretrained.embedding.modules import activation_of, unit
from jaxformer.pretrained.embedding.recipe import SETTINGS, Recipe, Similarity
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.prediction.batches import Batches
from jaxformer.pretrained.prediction.hf_reader import HFReader
from jaxformer.pretrained.prediction.reader import TextReader
from jaxformer.pretrained.prediction.run_reader import RunReader

_OLD_ACTIVATION = "sbert_ce_default_activation_function"


class _TextModel:
    """The base of embedders and cross-encoders.

    Attributes:
        pretrained: The model.
        recipe: The settings in the folder.
        chunk: Number of texts to read at a time, so that texts of similar length share a batch.
        cut: Number of texts truncated so far.
    """

    def __init__(
        self, pretrained: Pretrained, recipe: Recipe, max_length: int | None, batch_size: int
    ):
        self.pretrained = pretrained
        self.recipe = recipe
        self.cut = 0
        limits = (max_length or recipe.max_length, pretrained.config.position.max_length)
        length = min((n for n in limits if n is not None), default=None)
        given = None if limits[0] is None else length
        self.reader = _reader(pretrained, given, recipe.lower_case)
        self.chunk = batch_size * self.reader.chunk
        self._batches = Batches(pretrained, self._computed, batch_size)

    def _computed(self, model: Any, arrays: dict[str, Any]) -> jax.Array:
        raise NotImplementedError

    def _stream(self, rows: Sequence[tuple[str, ...]], skipped: int = 0) -> Iterator[np.ndarray]:
        for start in range(0, len(rows), self.chunk):
            tokens = self.reader.encode(rows[start : start + self.chunk])
            self.cut += sum(row.cut for row in tokens)
            sizes = [len(row.ids) for row in tokens]
            arrays = partial(self._arrays, skipped=skipped)
            found = self._batches(tokens, sizes, arrays, self.reader.max_length)
            yield np.stack([result for result, _ in found]).astype(np.float32)

    def _arrays(self, rows: Sequence[Any], length: int, skipped: int) -> dict[str, Any]:
        arrays = self.reader.arrays(rows, length)
        return arrays | {"skipped": np.full((len(rows), 1), skipped, np.int32)}


def _reader(pretrained: Pretrained, max_length: int | None, lower_case: bool) -> TextReader:
    """Returns the reader of a model's texts, which for a run reads them as in training."""
    if "jaxformer_kind" not in read_settings(pretrained.folder):
        return HFReader(pretrained, max_length, lower_case)
    run = pretrained.folder.parent
    config = pretrained.config
    data = RunConfig(run).config.data
    head = next((head.name for head in config.heads), None)
    return RunReader(data, load_tokenizer(run), config, head, max_length)


class TextEmbedder(_TextModel):
    """Embeds texts as vectors."""

    def _computed(self, model, arrays):
        skipped = arrays.pop("skipped")
        hidden, valid = self.reader.states(model, arrays)
        counted = valid & (jnp.cumsum(valid, axis=1) > skipped)
        return self.recipe.pooling(hidden, valid, counted)

    def stream(
        self,
        texts: Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize: bool = False,
        truncate_dim: int | None = None,
    ) -> Iterator[np.ndarray]:
        """Yields the vectors of a few batches at a time; see `embed`."""
        listed = isinstance(texts, Sequence) and len(texts) > 0
        fits = listed and all(isinstance(text, str) for text in texts)
        check_argument("texts", texts, fits, "a text, or a list of at least one")
        own = self.recipe.settings.get("truncate_dim")
        size = own if truncate_dim is None else truncate_dim
        check_argument("truncate_dim", size, optional(at_least(1)).allows(size), "1 at least")
        prefix = self.recipe.prompt(prompt, prompt_name)
        apart = prefix and not self.recipe.pooling.include_prompt
        skipped = self.reader.prefix_length(prefix) if apart else 0
        for vectors in self._stream([(prefix + text,) for text in texts], skipped):
            for module in self.recipe.modules:
                vectors = module(vectors)
            yield np.asarray(unit(jnp.asarray(vectors)[:, :size], normalize))

    def similarities(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Returns the similarities of vectors [N, D] and [M, D], float32 [N, M].

        They are cosines, dot products or negative distances, as configured in the folder.
        """
        return _SIMILARITIES[self.recipe.similarity](first, second)


class CrossEncoder(_TextModel):
    """Scores pairs of texts."""

    def __init__(
        self, pretrained: Pretrained, recipe: Recipe, max_length: int | None, batch_size: int
    ):
        super().__init__(pretrained, recipe, max_length, batch_size)
        self._activation = _activation(pretrained, recipe)

    def _computed(self, model, arrays):
        del arrays["skipped"]
        return self._activation(self.reader.scores(model, arrays).astype(jnp.float32))

    def stream(self, pairs: Sequence[tuple[str, str]]) -> Iterator[np.ndarray]:
        """Yields the scores of a few batches at a time; see `score_pairs`."""
        listed = isinstance(pairs, Sequence) and len(pairs) > 0
        fits = listed and all(
            isinstance(pair, list | tuple) and [*map(type, pair)] == [str, str] for pair in pairs
        )
        check_argument("pairs", pairs, fits, "a list of at least one pair of texts")
        prefix = self.recipe.prompt(None, None)
        for scores in self._stream([(prefix + first, second) for first, second in pairs]):
            yield scores[:, 0] if scores.shape[1] == 1 else scores


def named_activation(pretrained: Pretrained, recipe: Recipe) -> tuple[str, str] | None:
    """Returns the name of a cross-encoder's activation function, and the field that defines it."""
    values = pretrained.checkpoint.hf_config.values
    config = pretrained.checkpoint.hf_config.path
    nested = values.get("sentence_transformers")
    nested = nested if isinstance(nested, dict) else {}
    places = (
        (recipe.settings.get("activation_fn"), f"{SETTINGS}: activation_fn"),
        (nested.get("activation_fn"), f"{config}: sentence_transformers.activation_fn"),
        (values.get(_OLD_ACTIVATION), f"{config}: {_OLD_ACTIVATION}"),
    )
    return next(((name, where) for name, where in places if name is not None), None)


def _activation(pretrained: Pretrained, recipe: Recipe) -> Callable[[jax.Array], jax.Array]:
    named = named_activation(pretrained, recipe)
    if named is not None:
        return activation_of(*named)
    return jax.nn.sigmoid if pretrained.config.heads[0].num_labels == 1 else lambda x: x


def _cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    first, second = (
        x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) for x in (first, second)
    )
    return first @ second.T


def _distance(first: np.ndarray, second: np.ndarray, order: int) -> np.ndarray:
    return np.stack([-np.linalg.norm(row - second, order, axis=-1) for row in first])


_SIMILARITIES: dict[Similarity, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": _cosine,
    "dot": lambda first, second: first @ second.T,
    "euclidean": partial(_distance, order=2),
    "manhattan": partial(_distance, order=1),
}
