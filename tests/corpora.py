"""Corpora as `DataConfig` makes them: the tokenizer of a run, and then the tokens."""

from jaxformer.data.text.corpus import CorpusOptions, load_or_tokenise, training_texts
from jaxformer.data.tokenizers.run_tokenizer import load_or_train_tokenizer


def load_or_build(split, spec, folder, special_tokens=(), options=None):
    texts = training_texts([split])
    tokenizer = load_or_train_tokenizer(folder, spec, texts, special_tokens)
    return load_or_tokenise(split, tokenizer, folder, options or CorpusOptions())
