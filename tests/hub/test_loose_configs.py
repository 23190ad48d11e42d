"""Files config.json with fields that change nothing, as people publish them, are read."""

import pytest
from published_files import FILES
from saved_folders import change_settings

import jaxformer
from jaxformer.errors import ConfigError
from jaxformer.hub.checkpoint import read_checkpoint, warn_about_ignored_fields
from jaxformer.hub.hf_config import HFConfig
from jaxformer.zoo import FORMATS

IGNORED = {
    "bert_trainer_extras": {"max_seq_length", "label_smoothing"},
    "clip_text_config_dict": set(),
    "clip_vit_base": set(),
    "cross_encoder_2025": {"sentence_transformers"},
    "cross_encoder_old": {"sbert_ce_default_activation_function"},
    "embeddinggemma": set(),
    "llama_finetune_version": {"unsloth_fixed", "unsloth_version"},
    "llama_max_sequence_length": {"max_sequence_length"},
    "llama_mirror_fixed": {"unsloth_fixed"},
    "llama_model_max_length": {"model_max_length"},
    "qwen2_dual_chunk": {"dual_chunk_attention_config"},
    "roberta_squad2": {"language", "name"},
    "smollm2": {"is_llama_config"},
    "t5gemma-9b-2b": set(),
}


@pytest.mark.parametrize(("name", "ignored"), IGNORED.items(), ids=IGNORED)
def test_what_is_ignored_is_named_and_changes_nothing(name, ignored, caplog):
    values = FILES[name]
    checkpoint = read_checkpoint(HFConfig(values), FORMATS)
    assert set(checkpoint.hf_config.ignored) == ignored
    warn_about_ignored_fields(checkpoint.hf_config)
    messages = [record.message for record in caplog.records]
    assert len(messages) == bool(ignored)
    assert all(each in message for message in messages for each in ignored)
    assert not any("\n" in message for message in messages)
    bare = {field: value for field, value in values.items() if field not in ignored}
    assert read_checkpoint(HFConfig(bare), FORMATS, strict=True).config == checkpoint.config
    if ignored:
        with pytest.raises(ConfigError, match=min(ignored)):
            read_checkpoint(HFConfig(values), FORMATS, strict=True)


def test_what_other_programs_honour_is_said(caplog):
    hf_config = HFConfig(FILES["qwen2_dual_chunk"], "other.json")
    warn_about_ignored_fields(read_checkpoint(hf_config, FORMATS).hf_config)
    assert "other programs" in caplog.text


def test_yarns_attn_factor_is_ignored_as_in_transformers():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    values = {"model_type": "llama", "max_position_embeddings": 512}
    plain = read_checkpoint(HFConfig(values | {"rope_scaling": yarn}), FORMATS)
    other = HFConfig(values | {"rope_scaling": yarn | {"attn_factor": 0.878}})
    assert read_checkpoint(other, FORMATS).config == plain.config
    assert other.ignored == {"rope_scaling.attn_factor": 0.878}


@pytest.mark.parametrize(("model_type", "head_dim"), [("phi", 64), ("gpt_neox", 96), ("vit", 64)])
def test_a_size_that_the_class_derives_may_be_said(model_type, head_dim):
    read_checkpoint(HFConfig({"model_type": model_type, "head_dim": head_dim}), FORMATS)
    with pytest.raises(ConfigError, match="head_dim = 80"):
        read_checkpoint(HFConfig({"model_type": model_type, "head_dim": 80}), FORMATS)


@pytest.mark.torch
def test_load_warns_once_and_strict_refuses(spoiled, caplog):
    change_settings(spoiled, trained_by="somebody")
    for _ in range(2):
        jaxformer.load(spoiled)
    assert sum("trained_by" in record.message for record in caplog.records) == 1
    with pytest.raises(ConfigError, match="trained_by = 'somebody'"):
        jaxformer.load(spoiled, strict=True)


def test_a_class_of_code_in_the_folder_is_no_misspelling():
    values = FILES["bert_trainer_extras"] | {
        "architectures": ["JinaBertForMaskedLM"],
        "auto_map": {"AutoModelForMaskedLM": "org/code--modeling_bert.JinaBertForMaskedLM"},
    }
    with pytest.raises(ConfigError, match="auto_map") as raised:
        read_checkpoint(HFConfig(values), FORMATS)
    assert "did you mean" not in str(raised.value)
