"""Labelled data: texts, words, spans, pairs of texts, images; and algorithmic tasks."""

from jaxformer.data.labels import Classes, LabelSet, Number
from jaxformer.data.tasks.algorithmic import Algorithmic
from jaxformer.data.tasks.choice_text import ChoiceText
from jaxformer.data.tasks.glue import Glue
from jaxformer.data.tasks.images.labelled import HorizontalFlip, Images, Mixup, RandomCrop
from jaxformer.data.tasks.images.masked import MaskedImages
from jaxformer.data.tasks.images.pixels import Fit, Resize
from jaxformer.data.tasks.images.sources import Digits, ImageFolder, ImageSource, ImageTable
from jaxformer.data.tasks.images.text_pairs import ImageTextPairs
from jaxformer.data.tasks.labelled_text import LabelledText
from jaxformer.data.tasks.parallel_text import LocalePairs, ParallelText
from jaxformer.data.tasks.sounds.clips import Clips
from jaxformer.data.tasks.sounds.features import FilterBanks, LogMel, WaveformFeatures
from jaxformer.data.tasks.sounds.labelled import LabelledClips
from jaxformer.data.tasks.sounds.masked import MaskedSounds
from jaxformer.data.tasks.sounds.speech_to_text import ErrorRates, SpeechToText
from jaxformer.data.tasks.sounds.spelling import Spelling
from jaxformer.data.tasks.sounds.spoken import MaskedSpokenSentences, SpokenSentences
from jaxformer.data.tasks.span_text import SpanText
from jaxformer.data.tasks.tags.conllu import ConllU
from jaxformer.data.tasks.tags.sources import ColumnFile, PythonTokens, TagSource, TagTable
from jaxformer.data.tasks.tags.tagged_text import TaggedText
from jaxformer.data.tasks.text_metrics import BLEU, ROUGE, WER, AnswerMatch
from jaxformer.data.tasks.text_pairs import AnswerText, SummaryText

__all__ = [
    "BLEU",
    "ROUGE",
    "WER",
    "Algorithmic",
    "AnswerMatch",
    "AnswerText",
    "ChoiceText",
    "Classes",
    "Clips",
    "ColumnFile",
    "ConllU",
    "Digits",
    "ErrorRates",
    "FilterBanks",
    "Fit",
    "Glue",
    "HorizontalFlip",
    "ImageFolder",
    "ImageSource",
    "ImageTable",
    "ImageTextPairs",
    "Images",
    "LabelSet",
    "LabelledClips",
    "LabelledText",
    "LocalePairs",
    "LogMel",
    "MaskedImages",
    "MaskedSounds",
    "MaskedSpokenSentences",
    "Mixup",
    "Number",
    "ParallelText",
    "PythonTokens",
    "RandomCrop",
    "Resize",
    "SpanText",
    "SpeechToText",
    "Spelling",
    "SpokenSentences",
    "SummaryText",
    "TagSource",
    "TagTable",
    "TaggedText",
    "WaveformFeatures",
]
