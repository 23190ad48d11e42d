"""Files that hold another class than config.json names, and heads that are tied in any layout."""

import numpy as np
import pytest
from saved_folders import change_settings, change_tensors, save_tiny
from variants import check_gradients, check_outputs, models

import jaxformer
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.hub.weights.fitting import tied_tables
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference
from jaxformer.pretrained.import_run import import_folder
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

BODIES = [
    ("mpnet", "MPNetForMaskedLM", {}),
    ("roberta", "RobertaForMaskedLM", {}),
    ("distilbert", "DistilBertForMaskedLM", {}),
    ("bert", None, {}),
    ("qwen3", "Qwen3ForCausalLM", {"tie_word_embeddings": False}),
    ("electra", "ElectraForPreTraining", {}),
]


def body(folder, kind, named, **changes):
    """The files of a body, under the name of another class."""
    save_tiny(kind, folder, "Model", **changes)
    change_settings(folder, *(["architectures"] if named is None else []))
    if named is not None:
        change_settings(folder, architectures=[named])
    return folder


def without_labels(checkpoint):
    inputs = example_inputs(checkpoint)
    return {name: array for name, array in inputs.items() if "label" not in name}


@pytest.mark.parametrize(("kind", "named", "changes"), BODIES)
@pytest.mark.quick("mpnet", "qwen3")
def test_a_body_alone_loads_with_one_warning(kind, named, changes, tmp_path, caplog):
    folder = body(tmp_path / "theirs", kind, named, **changes)
    ours = jaxformer.load(folder)
    assert len(caplog.records) == 1
    assert ours.checkpoint.architecture.name.endswith("Model")
    inputs = without_labels(ours.checkpoint)
    theirs = Reference(folder, ours.checkpoint.architecture.name).outputs(inputs)
    outputs = jaxformer.forward(ours, inputs)
    np.testing.assert_allclose(outputs["last_hidden_state"], theirs["last_hidden_state"], atol=2e-5)
    import_folder(folder, tmp_path / "run")
    jaxformer.save(jaxformer.load(tmp_path / "run"), tmp_path / "again")
    again = jaxformer.forward(jaxformer.load(tmp_path / "again"), inputs)
    np.testing.assert_array_equal(again["last_hidden_state"], outputs["last_hidden_state"])


def test_a_pooler_may_be_missing(tmp_path, caplog):
    folder = body(tmp_path / "theirs", "xlm-roberta", "XLMRobertaForMaskedLM")
    whole = jaxformer.load(folder)
    inputs = without_labels(whole.checkpoint)
    expected = jaxformer.forward(whole, inputs)["last_hidden_state"]
    caplog.clear()
    change_tensors(folder, lambda x: [x.pop(n) for n in list(x) if n.startswith("pooler")])
    outputs = jaxformer.forward(jaxformer.load(folder), inputs)
    assert len(caplog.records) == 1
    assert "pooler_output" not in outputs
    np.testing.assert_array_equal(outputs["last_hidden_state"], expected)


def test_architecture_chooses_the_class(tmp_path):
    folder = save_tiny("bert", tmp_path / "bert", "ForPreTraining")
    names = ("BertModel", "BertForMaskedLM")
    for name in names:
        assert jaxformer.load(folder, architecture=name).checkpoint.architecture.name == name
    with pytest.raises(DataError, match=r"classifier\.bias is missing"):
        jaxformer.load(folder, architecture="BertForTokenClassification")
    with pytest.raises(ConfigError, match="must be one of"):
        jaxformer.load(folder, architecture="BertForNothing")
    import_folder(folder, tmp_path / "run", architecture="BertModel")
    assert jaxformer.load(tmp_path / "run").checkpoint.architecture.name == "BertModel"
    with pytest.raises(ArgumentError, match="architecture = 'BertModel'"):
        jaxformer.load(tmp_path / "run", architecture="BertModel")


TIED = {
    "bert": "ForMaskedLM",
    "llama": "ForCausalLM",
    "gpt2": "LMHeadModel",
    "gpt_neox": "ForCausalLM",
    "t5": "ForConditionalGeneration",
    "bart": "ForConditionalGeneration",
    "marian": "MTModel",
    "modernbert": "ForMaskedLM",
}


@pytest.mark.parametrize("layout", ["equal", "different", "head"])
@pytest.mark.parametrize("kind", TIED)
@pytest.mark.quick("equal-bert", "different-llama", "different-marian", "head-t5")
def test_tied_heads_are_read_as_transformers_reads_them(kind, layout, tmp_path):
    name = next(x.name for x in FORMATS[kind].architectures if x.name.endswith(TIED[kind]))
    folder = save_tiny(kind, tmp_path / "theirs", name, tie_word_embeddings=True)
    model_format = FORMATS[kind]
    head = {"gpt_neox": "embed_out.weight"}.get(kind) or next(
        copy for copy in model_format.copies if "embed_tokens" not in copy and "weight" in copy
    )

    def change(tensors):
        table = max((n for n in tensors if "shared" in n or "embed" in n or "wte" in n),
                    key=lambda n: tensors[n].shape[0])  # fmt: skip
        tensors[head] = tensors[table] * (2.0 if layout == "different" else 1.0)
        if layout == "head":
            tensors.pop(table)

    change_tensors(folder, change)
    ours, theirs = models(folder)
    inputs = example_inputs(ours.checkpoint, "none")
    check_outputs(ours, theirs, inputs)
    check_gradients(ours, theirs, inputs)
    jaxformer.save(ours, tmp_path / "ours")
    again = Reference(tmp_path / "ours", name).outputs(inputs)
    np.testing.assert_array_equal(again["logits"], theirs.outputs(inputs)["logits"])


@pytest.mark.slow
def test_what_never_learns_has_no_gradient(tmp_path):
    folder = save_tiny("pegasus", tmp_path, "ForConditionalGeneration")
    ours = jaxformer.load(folder)
    found = jaxformer.gradients(ours, example_inputs(ours.checkpoint, "none"))
    assert not any("embed_positions" in name or "final_logits_bias" in name for name in found)
    assert len(found) > 10


def test_the_tables_that_a_head_may_be_tied_to(tmp_path):
    for kind, (head, table) in {
        "llama": ("lm_head.weight", "model.embed_tokens.weight"),
        "bert": ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    }.items():
        folder = save_tiny(kind, tmp_path / kind, tie_word_embeddings=True)
        (tied,) = tied_tables(jaxformer.load(folder).checkpoint)
        assert (tied.head, tied.table) == (head, table)
        assert not tied.untied.tie_embeddings
