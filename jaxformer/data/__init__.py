"""Data: sources of documents, tokenizers, packing and the input pipeline. Knows no model."""

from jaxformer.data.base import Data, Datasets
from jaxformer.data.dataset import Batch, Dataset, Examples
from jaxformer.data.objectives.base import CausalLM, Objective, PrefixLM, RowObjective
from jaxformer.data.objectives.denoising import Denoising
from jaxformer.data.objectives.masking import MaskedLM
from jaxformer.data.objectives.sentence_pairs import SentencePairs
from jaxformer.data.objectives.span_corruption import SpanCorruption
from jaxformer.data.text.config import DataConfig
from jaxformer.data.text.packing import Joined, Packed, Packing, Row, TokenStream
from jaxformer.data.text.sources import Document, JsonLines, Source, StandardLibrary, TextFiles
from jaxformer.data.tokenizers.specs import (
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
