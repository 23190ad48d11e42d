"""A config.json of an encoder as versions 2 to 4 of transformers wrote it."""

from math import prod

import pytest

from jaxformer.errors import ConfigError
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import config_values
from jaxformer.hub.hf_config import HFConfig
from jaxformer.models import AbstractModel
from jaxformer.zoo import FORMATS

_BERT = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
_NEWER = {
    "gradient_checkpointing": False,
    "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0",
    "use_cache": True,
}
_ROBERTA = _BERT | {
    "architectures": ["RobertaForMaskedLM"],
    "bos_token_id": 0,
    "eos_token_id": 2,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "roberta",
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 50265,
}
_ELECTRA = _BERT | {
    "architectures": ["ElectraForPreTraining"],
    "embedding_size": 128,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "model_type": "electra",
    "num_attention_heads": 4,
    "position_embedding_type": "absolute",
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
    "summary_type": "first",
    "summary_use_proj": True,
    "transformers_version": "4.6.0.dev0",
}
_ALBERT = _BERT | {
    "architectures": ["AlbertForMaskedLM"],
    "attention_probs_dropout_prob": 0,
    "bos_token_id": 2,
    "classifier_dropout_prob": 0.1,
    "down_scale_factor": 1,
    "embedding_size": 128,
    "eos_token_id": 3,
    "gap_size": 0,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0,
    "inner_group_num": 1,
    "model_type": "albert",
    "net_structure_type": 0,
    "num_hidden_groups": 1,
    "num_memory_blocks": 0,
    "vocab_size": 30000,
}
_DISTILBERT = {
    "activation": "gelu",
    "architectures": ["DistilBertForMaskedLM"],
    "attention_dropout": 0.1,
    "dim": 768,
    "dropout": 0.1,
    "hidden_dim": 3072,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "model_type": "distilbert",
    "n_heads": 12,
    "n_layers": 6,
    "pad_token_id": 0,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False,
    "tie_weights_": True,
    "transformers_version": "4.10.0.dev0",
    "vocab_size": 30522,
}
_VERSION_2 = {
    "architectures": ["BertForSequenceClassification"],
    "bos_token_id": 0,
    "do_sample": False,
    "eos_token_ids": 0,
    "finetuning_task": "mrpc",
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "is_decoder": False,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "length_penalty": 1.0,
    "max_length": 20,
    "num_beams": 1,
    "num_labels": 2,
    "num_return_sequences": 1,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_past": True,
    "pruned_heads": {},
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "torchscript": False,
    "use_bfloat16": False,
    "xla_device": None,
}
_POOLER = {
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
}
_XLM = {
    "architectures": ["XLMRobertaForMaskedLM"],
    "model_type": "xlm-roberta",
    "output_past": True,
    "position_embedding_type": "absolute",
    "transformers_version": "4.17.0.dev0",
    "use_cache": True,
    "vocab_size": 250002,
}

# The values of config.json -> the parameters of the model, in millions.
PUBLISHED = {
    "bert-base-uncased": (_BERT | _NEWER, 109.5),
    "bert-base-cased": (_BERT | _NEWER | {"vocab_size": 28996}, 108.3),
    "bert-base-chinese": (_BERT | _POOLER | {"vocab_size": 21128}, 102.3),
    "bert-base-multilingual-cased": (_BERT | _POOLER | {"vocab_size": 119547}, 178.0),
    "a classifier of version 2": (_BERT | _VERSION_2, 109.5),
    "all-MiniLM-L6-v2": (
        _BERT
        | _NEWER
        | {
            "_name_or_path": "nreimers/MiniLM-L6-H384-uncased",
            "architectures": ["BertModel"],
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 6,
        },
        22.7,
    ),
    "roberta-base": (_ROBERTA, 124.7),
    "xlm-roberta-base": (_ROBERTA | _XLM, 278.3),
    "electra-small-discriminator": (_ELECTRA, 13.5),
    "electra-small-generator": (_ELECTRA | {"architectures": ["ElectraForMaskedLM"]}, 13.5),
    "albert-base-v2": (_ALBERT, 11.2),
    "distilbert-base-uncased": (_DISTILBERT, 67.0),
    "distilbert-base-uncased-finetuned-sst-2-english": (
        _DISTILBERT
        | {
            "architectures": ["DistilBertForSequenceClassification"],
            "finetuning_task": "sst-2",
            "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
            "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
            "output_past": True,
        },
        67.0,
    ),
    "mpnet-base": (
        {name: value for name, value in _ROBERTA.items() if name != "type_vocab_size"}
        | {
            "architectures": ["MPNetForMaskedLM"],
            "model_type": "mpnet",
            "relative_attention_num_buckets": 32,
            "vocab_size": 30527,
        },
        109.5,
    ),
    "roformer_chinese_base": (
        _BERT
        | {
            "architectures": ["RoFormerForMaskedLM"],
            "embedding_size": 768,
            "eos_token_id": 102,
            "gradient_checkpointing": False,
            "max_position_embeddings": 1536,
            "model_type": "roformer",
            "rotary_value": False,
            "use_cache": True,
            "vocab_size": 50000,
        },
        124.1,
    ),
}

# What classes leave out of the count of the whole model (MaskedLM has no pooler), in millions.
_LESS = 0.7


@pytest.mark.parametrize(("values", "millions"), PUBLISHED.values(), ids=PUBLISHED)
def test_the_file_is_read_and_stays_as_it_was(values, millions):
    checkpoint = read_checkpoint(HFConfig(values), FORMATS)
    assert config_values(checkpoint) == values
    assert checkpoint.architecture.name == values["architectures"][0]
    shapes = AbstractModel(checkpoint.config.build).shapes.values()
    assert abs(sum(prod(x.shape) for x in shapes) / 1e6 - millions) < _LESS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"hidden_act": "mish"}, "hidden_act = 'mish' is not supported"),
    ],
)
def test_what_would_change_the_outputs_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        read_checkpoint(HFConfig(_BERT | changes), FORMATS)
