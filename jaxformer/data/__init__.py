"""Data: sources of documents, tokenizers, packing and the input pipeline. Knows no model."""

from jaxformer.data.objectives import CausalLM, Objective, Row
from jaxformer.data.packing import Joined, Packed, Packing, TokenStream
from jaxformer.data.pipeline import DataConfig, Dataset, Datasets, prepare
from jaxformer.data.sources import Document, JsonLines, Source, StandardLibrary, TextFiles
from jaxformer.data.tokenizers import (
    Bytes,
    Tokenizer,
    TokenizerFile,
    TokenizerSpec,
    TrainTokenizer,
    load_tokenizer,
)

__all__ = [
    "Bytes",
    "CausalLM",
    "DataConfig",
    "Dataset",
    "Datasets",
    "Document",
    "Joined",
    "JsonLines",
    "Objective",
    "Packed",
    "Packing",
    "Row",
    "Source",
    "StandardLibrary",
    "TextFiles",
    "TokenStream",
    "Tokenizer",
    "TokenizerFile",
    "TokenizerSpec",
    "TrainTokenizer",
    "load_tokenizer",
    "prepare",
]
