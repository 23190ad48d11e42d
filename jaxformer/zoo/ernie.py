"""ERNIE: BERT that masks entities and phrases; later versions add a table of task types."""

from dataclasses import replace
from typing import Any

from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import Computed
from jaxformer.hub.hf_config import HFConfig
from jaxformer.models import EncoderConfig, MaskedLanguageModel
from jaxformer.zoo.common.bert_like import bert, bert_format, causal
from jaxformer.zoo.system import System

_EMBEDDINGS = replace(EncoderConfig.embeddings, token_types=4)

SYSTEMS = (
    System(
        "ernie-2.0-base-en",
        bert(12, 768, 12, embeddings=_EMBEDDINGS, pooler=None, heads=(MaskedLanguageModel(),)),
        "110M",
        "Sun et al., 2019, pre-training settings (the sizes of BERT), https://arxiv.org/abs/1907.12412",
        "ernie.py:2.0-base-en",
    ),
    System(
        "ernie-3.0-base-zh",
        bert(
            12,
            768,
            12,
            vocab_size=40000,
            position=Learned(max_length=2048),
            embeddings=replace(_EMBEDDINGS, task_types=3),
            pooler=None,
            heads=(MaskedLanguageModel(),),
        ),
        "118M",
        "the released checkpoint; Sun et al., 2021, https://arxiv.org/abs/2107.02137",
        "ernie.py:3.0-base-zh",
    ),
)


def _read_task_types(hf_config: HFConfig) -> dict[str, Any]:
    task_types = hf_config.number("task_type_vocab_size", 3)
    return {"embeddings.task_types": task_types if hf_config.take("use_task_id", False) else 0}


def _write_task_types(config: EncoderConfig) -> dict[str, Any]:
    task_types = config.embeddings.task_types
    sizes = {"task_type_vocab_size": task_types} if task_types else {}
    return {"use_task_id": task_types > 0} | sizes


FORMATS = (
    bert_format("Ernie", causal("ErnieForCausalLM"), Computed(_read_task_types, _write_task_types)),
)
