"""`jaxformer.embed` and `score_pairs`: vectors of texts and scores of pairs, as NumPy arrays."""

import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.checks import at_least, check_arguments, optional
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.model_files import CONFIG, file_in
from jaxformer.models import Classification
from jaxformer.pretrained.auto import load, model_folder
from jaxformer.pretrained.embedding.embedder import CrossEncoder, TextEmbedder, named_activation
from jaxformer.pretrained.embedding.recipe import Recipe, read_recipe, with_default_pooling
from jaxformer.pretrained.model import Pretrained, check_pretrained

Model = Pretrained | str | Path
"""A model, its folder, or its name on the hub."""
_LENGTH = optional(at_least(3))


def embed(
    model: Model,
    texts: str | Sequence[str],
    *,
    prompt_name: str | None = None,
    prompt: str | None = None,
    normalize: bool = False,
    truncate_dim: int | None = None,
    max_length: int | None = None,
    batch_size: int = 32,
) -> np.ndarray:
    """Computes vectors of texts as sentence-transformers does.

    Pooling, dense layers, maximum length and prompts are read from the folder's files
    (modules.json, ...). Without them, a vector is the mean of the tokens' states.

    Args:
        model: The model, as `load` returns it, or its folder or name on the hub.
        texts: A text, or a list of texts.
        prompt_name: The name of the folder's prompt to prepend to each text: "query". None: the
            folder's default.
        prompt: A literal prompt to prepend to each text.
        normalize: Whether to scale vectors to length 1, even if the folder does not.
        truncate_dim: The number of leading values of each vector to keep (Matryoshka); None: as
            configured in the folder.
        max_length: The maximum number of tokens of a text; longer ones are truncated; None: as
            configured in the folder.
        batch_size: The number of texts per batch.

    Returns:
        float32 [texts, D]; [D] for a text that is not in a list.

    Raises:
        ArgumentError: An argument has a wrong value.
        ConfigError: The folder requires an unsupported feature, or has no prompt of this name.
        DataError: There is no tokenizer, or a file is damaged.
    """
    several = [texts] if isinstance(texts, str) else texts
    options = {"prompt_name": prompt_name, "prompt": prompt, "truncate_dim": truncate_dim}
    embedder = text_embedder(model, max_length=max_length, batch_size=batch_size)
    parts = list(embedder.stream(several, normalize=normalize, **options))
    return parts[0][0] if isinstance(texts, str) else np.concatenate(parts)


def score_pairs(
    model: Model,
    pairs: Sequence[tuple[str, str]],
    *,
    max_length: int | None = None,
    batch_size: int = 32,
) -> np.ndarray:
    """Scores pairs of texts with a cross-encoder.

    Args:
        model: The model, as `load` returns it, or its folder or name on the hub.
        pairs: The pairs, such as a question and a passage.
        max_length: The maximum number of tokens of a pair; None: the model's maximum.
        batch_size: The number of pairs per batch.

    Returns:
        float32 [pairs], or [pairs, labels] for several labels, after the activation function in the
        folder (default: a sigmoid for one label, none for several).

    Raises:
        ArgumentError: An argument has a wrong value.
        ConfigError: The model has no score, or its activation function is unknown.
        DataError: There is no tokenizer, or a file is damaged.
    """
    scorer = cross_encoder(model, max_length=max_length, batch_size=batch_size)
    return np.concatenate(list(scorer.stream(pairs)))


def open_model(model: Model, **options: Any) -> Pretrained:
    """Loads the model in a folder, including old folders of sentence-transformers."""
    if not isinstance(model, str | Path):
        check_pretrained("model", model)
        return model
    folder = model_folder(model, "model", architecture=options.get("architecture"))
    if isinstance(folder, Path) and file_in(folder, CONFIG) is None:
        folder = read_recipe(folder).transformer
    return load(folder, **options)


def text_embedder(
    model: Model, *, max_length: int | None = None, batch_size: int = 32
) -> TextEmbedder:
    """Returns the embedder of a model, cached for the model's lifetime."""
    pretrained, recipe = _opened(model)
    if recipe.pooling is None:
        recipe = with_default_pooling(recipe, pretrained.checkpoint.architecture.name)
    return _cached(TextEmbedder, pretrained, recipe, max_length, batch_size)


def cross_encoder(
    model: Model, *, max_length: int | None = None, batch_size: int = 32
) -> CrossEncoder:
    """Returns the cross-encoder of a model, cached for the model's lifetime."""
    pretrained, recipe = _opened(model)
    if not _scores(pretrained):
        names = ", ".join(head.name for head in pretrained.config.heads) or "none"
        raise ConfigError(
            f"{pretrained.folder}: must be a model that scores texts, such as "
            f"BertForSequenceClassification; this has the heads {names}"
        )
    return _cached(CrossEncoder, pretrained, recipe, max_length, batch_size)


def reads_pairs(pretrained: Pretrained) -> bool:
    """Returns whether a model is a cross-encoder, which scores pairs of texts."""
    if not _scores(pretrained):
        return False
    _, recipe = _opened(pretrained)
    one = pretrained.config.heads[0].num_labels == 1
    named = recipe.settings.get("model_type") == "CrossEncoder"
    return recipe.pooling is None and (one or named or bool(named_activation(pretrained, recipe)))


def _opened(model: Model) -> tuple[Pretrained, Recipe]:
    pretrained = open_model(model)
    if pretrained.folder is None:
        raise DataError("the model has no folder, and so no tokenizer")
    return pretrained, read_recipe(pretrained.folder)


_CACHED: weakref.WeakKeyDictionary[Pretrained, dict[Any, Any]] = weakref.WeakKeyDictionary()


def _cached(
    kind: type, pretrained: Pretrained, recipe: Recipe, max_length: int | None, batch_size: int
) -> Any:
    """Returns the cached embedder or cross-encoder, so that its programs are compiled once."""
    check_arguments(batch_size=(batch_size, at_least(1)), max_length=(max_length, _LENGTH))
    known = _CACHED.setdefault(pretrained, {})
    key = (kind, max_length, batch_size)
    if key not in known:
        # The value must not refer to the model, which is the weak key.
        known[key] = kind(replace(pretrained), recipe, max_length, batch_size)
    return known[key]


def _scores(pretrained: Pretrained) -> bool:
    heads = pretrained.config.heads
    return bool(heads) and isinstance(heads[0], Classification)
