"""DistilBERT: every second layer of BERT base, without token types and a pooler."""

from functools import partial

import numpy as np

from jaxformer.hub.fields import (
    Activation,
    ConfigMap,
    Expect,
    LearnedPositions,
    Number,
    PaddingId,
    Value,
)
from jaxformer.hub.flax_format import FlaxFormat, sinusoids
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import (
    MaskedLMTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
)
from jaxformer.hub.tasks.multiple_choice import MultipleChoiceTask
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import EncoderConfig, MaskedLanguageModel
from jaxformer.zoo.common.basics import projections
from jaxformer.zoo.common.bert_like import LABELS, bert
from jaxformer.zoo.system import System

_SOURCE = "Sanh et al., 2019, table 3, https://arxiv.org/abs/1910.01108"
_WITHOUT = {
    "embeddings": EncoderConfig.embeddings,
    "pooler": None,
    "heads": (MaskedLanguageModel(),),
}

SYSTEMS = (
    System("distilbert-base", bert(6, 768, 12, **_WITHOUT), "66M", _SOURCE, "distilbert.py:base"),
)

_FIELDS = (
    # Whether the rows of the table are sinusoids or learned, they are in the file.
    Expect("sinusoidal_pos_embds", False, True),
    Number("num_layers", "n_layers", 6),
    Number("model_dim", "dim", 768),
    Number("num_heads", "n_heads", 12),
    Number("mlp_dim", "hidden_dim", 3072),
    Number("vocab_size", "vocab_size", 30522),
    LearnedPositions(default=512),
    PaddingId(default=0),
    Activation(theirs="activation", default="gelu"),
    Value("tie_embeddings", "tie_word_embeddings", True),
    Number("dropout", "dropout", 0.1),
    Number("self_attention.dropout", "attention_dropout", 0.1),
)
_BLOCK = {
    **projections("attention", "out_lin", parts=("q_lin", "k_lin", "v_lin")),
    "norms.0": "sa_layer_norm",
    "sublayers.1.up": "ffn.lin1",
    "sublayers.1.down": "ffn.lin2",
    "norms.1": "output_layer_norm",
}
_NAMES = {
    "embedding.table": "distilbert.embeddings.word_embeddings.weight",
    "transformer.inputs.position_table": "distilbert.embeddings.position_embeddings.weight",
    "transformer.inputs.embedding_norm": "distilbert.embeddings.LayerNorm",
    **block("transformer", "distilbert.transformer.layer.{}", _BLOCK),
    "pooler": "pre_classifier",
    "heads.masked_language_model.dense": "vocab_transform",
    "heads.masked_language_model.norm": "vocab_layer_norm",
    "heads.masked_language_model.kernel": "vocab_projector.weight",
    "heads.masked_language_model.bias": "vocab_projector.bias",
    **LABELS,
}


def _fixed(hf_config: HFConfig) -> dict[str, np.ndarray]:
    """Returns the table of positions, if it has sinusoids."""
    if not hf_config.take("sinusoidal_pos_embds", False):
        return {}
    rows = hf_config.number("max_position_embeddings", 512)
    width = hf_config.number("dim", 768)
    return {_NAMES["transformer.inputs.position_table"]: sinusoids(rows, width, "interleaved")}


FORMATS = (
    ModelFormat(
        model_type="distilbert",
        config_map=ConfigMap(partial(bert, **_WITHOUT), _FIELDS),
        weight_map=lambda config: WeightMap(_NAMES),
        architectures=(
            Architecture("DistilBertForMaskedLM", MaskedLMTask()),
            Architecture(
                "DistilBertForSequenceClassification",
                SequenceClassificationTask(),
                {"pooler": "relu"},
            ),
            Architecture("DistilBertForMultipleChoice", MultipleChoiceTask(), {"pooler": "relu"}),
            Architecture("DistilBertForTokenClassification", TokenClassificationTask()),
            Architecture("DistilBertForQuestionAnswering", QuestionAnsweringTask()),
            Architecture("DistilBertModel", Task()),
        ),
        prefix="distilbert.",
        flax=FlaxFormat(fixed=_fixed),
        buffers=("*.position_ids",),
        copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
        harmless=("qa_dropout", "seq_classif_dropout", "tie_weights_"),
        synonyms={
            "hidden_size": "dim",
            "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers",
        },
    ),
)
