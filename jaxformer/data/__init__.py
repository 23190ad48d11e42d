"""Data: sources of documents, tokenizers, packing and the input pipeline. Knows no model."""

from jaxformer.data.config import Data, Datasets
from jaxformer.data.dataset import Batch, Dataset, Examples
from jaxformer.data.denoising import Denoising
from jaxformer.data.masking import MaskedLM
from jaxformer.data.objectives import CausalLM, Objective, PrefixLM, RowObjective
from jaxformer.data.packing import Joined, Packed, Packing, Row, TokenStream
from jaxformer.data.sentence_pairs import SentencePairs
from jaxformer.data.sources import Document, JsonLines, Source, StandardLibrary, TextFiles
from jaxformer.data.span_corruption import SpanCorruption
from jaxformer.data.text import DataConfig
from jaxformer.data.tokenizers import (
    Bytes,
    Tokenizer,
    TokenizerFile,
    TokenizerSpec,
    TrainTokenizer,
    load_tokenizer,
)

__all__ = [
    "Batch",
    "Bytes",
    "CausalLM",
    "Data",
    "DataConfig",
    "Dataset",
    "Datasets",
    "Denoising",
    "Document",
    "Examples",
    "Joined",
    "JsonLines",
    "MaskedLM",
    "Objective",
    "Packed",
    "Packing",
    "PrefixLM",
    "Row",
    "RowObjective",
    "SentencePairs",
    "Source",
    "SpanCorruption",
    "StandardLibrary",
    "TextFiles",
    "TokenStream",
    "Tokenizer",
    "TokenizerFile",
    "TokenizerSpec",
    "TrainTokenizer",
    "load_tokenizer",
]
