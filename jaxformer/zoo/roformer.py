"""RoFormer: BERT with rotary positions."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Computed, ConfigMap, read_activation
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import (
    MaskedLMTask,
    QuestionAnsweringTask,
    SequenceClassificationTask,
    Task,
    TokenClassificationTask,
    num_labels,
)
from jaxformer.hub.tasks.multiple_choice import LastPositionChoiceTask
from jaxformer.hub.weights.layouts import Constant
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import (
    Classification,
    DecoderConfig,
    Dense,
    EncoderConfig,
    MaskedLanguageModel,
)
from jaxformer.nn.config import TransformerConfig
from jaxformer.zoo.common.bert_like import (
    BIAS,
    FIELDS,
    HEADS,
    LABELS,
    READS_ENCODER,
    bert,
    body,
    causal,
    embedding_size,
    encoder_or_decoder,
    head_copies,
    named,
)
from jaxformer.zoo.system import System

SYSTEMS = (
    System(
        "roformer-base-zh",
        bert(
            12,
            768,
            12,
            vocab_size=50000,
            position=RoPE(layout="interleaved", max_length=1536),
            pooler=None,
            heads=(MaskedLanguageModel(),),
        ),
        "124M",
        "the released checkpoint, https://github.com/ZhuiyiTechnology/roformer; Su et al., 2021, "
        "section 4.5, https://arxiv.org/abs/2104.09864, gives no count",
    ),
)


@dataclass(frozen=True)
class _SequenceClassification(SequenceClassificationTask):
    """Sequence classification through a layer with the activation of the model."""

    def heads(self, hf_config):
        dense = Dense(read_activation(hf_config, "hidden_act", "gelu"))
        return (Classification(num_labels=num_labels(hf_config), dense=dense),)


def _read_positions(hf_config: HFConfig) -> dict[str, Any]:
    length = hf_config.number("max_position_embeddings", 1536)
    values = hf_config.take("rotary_value", False)
    return {"position": RoPE(layout="interleaved", max_length=length, values=values)}


def _write_positions(config: TransformerConfig) -> dict[str, Any]:
    return {"rotary_value": config.position.values}


def rotary_table(length: int, width: int) -> np.ndarray:
    """Returns the sines of the angles of each position, then their cosines: `[length, width]`."""
    angles = np.arange(length)[:, None] / 10_000.0 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _weight_map(config: EncoderConfig | DecoderConfig) -> WeightMap:
    """The names of the tensors, and the computed table of the angles."""
    names = body("roformer", config) | LABELS | HEADS
    names |= {
        "transformer.inputs.projection": "roformer.embeddings_project",
        "heads.label.dense.linear": "classifier.dense",
        "heads.label.output": "classifier.out_proj",
    }
    sizes = config.position.max_length, config.head_width
    table = Constant(sizes, partial(rotary_table, *sizes))
    constants = {"roformer.encoder.embed_positions.weight": table}
    return replace(named(names, BIAS, config), constants=constants)


FORMATS = (
    ModelFormat(
        model_type="roformer",
        config_map=ConfigMap(
            partial(encoder_or_decoder, pooler=None),
            (
                *READS_ENCODER,
                *FIELDS,
                Computed(_read_positions, _write_positions),
                embedding_size(None),
            ),
        ),
        weight_map=_weight_map,
        architectures=(
            Architecture("RoFormerForMaskedLM", MaskedLMTask()),
            Architecture("RoFormerForSequenceClassification", _SequenceClassification()),
            Architecture("RoFormerForMultipleChoice", LastPositionChoiceTask()),
            Architecture("RoFormerForTokenClassification", TokenClassificationTask()),
            Architecture("RoFormerForQuestionAnswering", QuestionAnsweringTask()),
            Architecture("RoFormerModel", Task()),
            causal("RoFormerForCausalLM"),
        ),
        prefix="roformer.",
        copies=head_copies("roformer"),
        harmless=("summary_*",),  # except for multiple choice, whose task reads them
        defaults={"vocab_size": 50000, "max_position_embeddings": 1536},
    ),
)
