"""Data: sources of documents, tokenizers, packing and the input pipeline. Independent of models."""

from jaxformer.data.base import Data, Datasets
from jaxformer.data.dataset import Batch, Dataset, ExampleSource
from jaxformer.data.mixing import ConcatenatedExamples, MixedExamples
from jaxformer.data.objectives.base import CausalLM, Objective, PrefixLM, RowObjective
from jaxformer.data.objectives.denoising import Denoising
from jaxformer.data.objectives.masking import MaskedLM
from jaxformer.data.objectives.sentence_pairs import SentencePairs
from jaxformer.data.objectives.span_corruption import SpanCorruption
from jaxformer.data.ramp import Stage, linear_ramp
from jaxformer.data.text.config import DataConfig
from jaxformer.data.text.corpus import CorpusOptions
from jaxformer.data.text.files import Files, JsonLines, TextFiles
from jaxformer.data.text.mixture import Mixture
from jaxformer.data.text.packing import Joined, Packed, Packing, TokenRow, TokenStream
from jaxformer.data.text.sources import Document, StandardLibrary, TextSource
from jaxformer.data.tokenizers.specs import (
    Bytes,
    Characters,
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
    "Characters",
    "ConcatenatedExamples",
    "CorpusOptions",
    "Data",
    "DataConfig",
    "Dataset",
    "Datasets",
    "Denoising",
    "Document",
    "ExampleSource",
    "Files",
    "Joined",
    "JsonLines",
    "MaskedLM",
    "MixedExamples",
    "Mixture",
    "Objective",
    "Packed",
    "Packing",
    "PrefixLM",
    "RowObjective",
    "SentencePairs",
    "SpanCorruption",
    "Stage",
    "StandardLibrary",
    "TextFiles",
    "TextSource",
    "TokenRow",
    "TokenStream",
    "Tokenizer",
    "TokenizerFile",
    "TokenizerSpec",
    "TrainTokenizer",
    "linear_ramp",
    "load_tokenizer",
]
