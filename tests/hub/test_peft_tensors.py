"""Adapters with more than factors, merged here, give the outputs of PEFT."""

import numpy as np
import pytest
from hf_checkpoints import save_checkpoint
from peft_models import check_logits, torch_model, trained
from saved_folders import assert_same_parameters, save_tiny

import jaxformer
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.peft.tensors import Base, adapted_tensors
from jaxformer.hub.weights.tensors import Tensor
from jaxformer.parity.examples import example_inputs
from jaxformer.training.transfer.origin import open_named
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

peft = pytest.importorskip("peft")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IDS = np.random.default_rng(0).integers(5, 50, size=(2, 7))
LLAMA = {
    "vocab_size": 60,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "attention_bias": True,
}


def lora(*targets, **fields):
    return peft.LoraConfig(r=2, lora_alpha=3, target_modules=list(targets), **fields)


def ia3(*targets, **fields):
    return peft.IA3Config(target_modules=list(targets), **fields)


BOTH = ["embed_tokens", "lm_head"]
CASES = {
    "whole": lambda: lora("q_proj", modules_to_save=BOTH),
    "table": lambda: lora("q_proj", modules_to_save=["embed_tokens"]),
    "embedding": lambda: lora("embed_tokens", "q_proj"),
    "head": lambda: lora("lm_head"),
    "tied": lambda: lora("embed_tokens", ensure_weight_tying=True),
    "tokens": lambda: lora("q_proj", trainable_token_indices=[30, 5, 52]),
    "only_tokens": lambda: peft.TrainableTokensConfig(token_indices=[30, 5]),
    "dora": lambda: lora("q_proj", "down_proj", use_dora=True, rank_pattern={"down_proj": 3}),
    "dora_table": lambda: lora("embed_tokens", "o_proj", use_dora=True),
    "dora_one_layer": lambda: lora("q_proj", use_dora=True, layers_to_transform=[1]),
    "bias": lambda: lora("q_proj", bias="all"),
    "own_bias": lambda: lora("q_proj", bias="lora_only"),
    "bias_of_factors": lambda: lora("q_proj", lora_bias=True),
    "layers": lambda: lora("q_proj", layer_replication=[[0, 2], [1, 3]]),
    "ia3": lambda: ia3("k_proj", "v_proj", "down_proj", feedforward_modules=["down_proj"]),
}


def llama(tie):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**LLAMA, tie_word_embeddings=tie)
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.quick("dora-False", "ia3-False")
def test_adapters_of_llama(case, tie, tmp_path):
    llama(tie).save_pretrained(tmp_path / "base")
    model = torch_model(tmp_path / "base")
    theirs = trained(model, CASES[case](), tmp_path / "it")
    ours = jaxformer.load(tmp_path / "base", adapter=tmp_path / "it")
    check_logits(ours, theirs, {"input_ids": IDS})
    named = jaxformer.load(tmp_path / "base", adapters={"it": tmp_path / "it"}).with_adapters("it")
    assert_same_parameters(named, ours)
    jaxformer.save(ours, tmp_path / "merged")
    merged, same = jaxformer.load(tmp_path / "merged"), np.testing.assert_array_equal
    saved = open_named(tmp_path / "it", "init_from")
    start = saved.read(saved.shapes)
    for name, array in ours.parameters.items():
        same(merged.parameters[name], array)
        same(start[name], array)


OTHERS = {
    "gpt2": lambda: lora("c_attn", "c_fc", fan_in_fan_out=True),
    "bert_classifier": lambda: peft.LoraConfig(
        r=2, lora_alpha=3, target_modules="all-linear", task_type="SEQ_CLS"
    ),
    "t5": lambda: lora("q", "v", "wo", use_rslora=True),
    "gpt_neox": lambda: lora("query_key_value"),
    "falcon": lambda: lora("query_key_value", "dense", rank_pattern={"dense": 3}),
    "gpt2, DoRA": lambda: lora("c_attn", "c_proj", use_dora=True, fan_in_fan_out=True, bias="all"),
    "bert_classifier, DoRA": lambda: lora("query", "dense", use_dora=True, task_type="SEQ_CLS"),
    "t5, IA3": lambda: ia3("k", "v", "wo", feedforward_modules=["wo"]),
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.quick("gpt2*", "t5")
def test_adapters_of_other_systems(case, tmp_path):
    kind = case.partition(",")[0]
    save = save_tiny if kind in ("gpt_neox", "falcon") else save_checkpoint
    base = save(kind, tmp_path / "base")
    theirs = trained(torch_model(base), OTHERS[case](), tmp_path / "it")
    inputs = {"input_ids": IDS} | ({"decoder_input_ids": IDS[:, :4]} if kind == "t5" else {})
    logits = check_logits(jaxformer.load(base, adapter=tmp_path / "it"), theirs, inputs)
    without = jaxformer.forward(jaxformer.load(base), inputs)["logits"]
    assert np.abs(logits - without).max() > 0.01


@pytest.mark.parametrize("dora", [True, False])
@pytest.mark.parametrize("kind", ["vit", "beit", "dinov2"])
@pytest.mark.quick("vit-True")
def test_convolutions_under_the_names_of_modules(kind, dora, tmp_path):
    base = save_tiny(kind, tmp_path / "base")
    targets = ("q_proj", "o_proj", "projection", "fc1")
    config = lora(*targets, use_dora=dora, modules_to_save=["classifier"])
    theirs = trained(torch_model(base), config, tmp_path / "it")
    ours = jaxformer.load(base, adapter=tmp_path / "it")
    inputs = {"pixel_values": example_inputs(ours.checkpoint)["pixel_values"]}
    check_logits(ours, theirs, inputs)


def test_scaled_convolutions_are_refused(tmp_path):
    base = save_tiny("vit", tmp_path / "base")
    trained(torch_model(base), ia3("projection", feedforward_modules=[]), tmp_path / "it")
    with pytest.raises(DataError, match="merge the adapter with PEFT"):
        jaxformer.load(base, adapter=tmp_path / "it")


@pytest.mark.parametrize("tie", [True, False])
def test_a_resized_vocabulary(tie, tmp_path):
    model = llama(tie)
    model.save_pretrained(tmp_path / "base")
    model.resize_token_embeddings(64)
    theirs = trained(model, lora("q_proj", modules_to_save=BOTH), tmp_path / "it")
    ours = jaxformer.load(tmp_path / "base", adapter=tmp_path / "it")
    assert ours.config.vocab_size == 64
    check_logits(ours, theirs, {"input_ids": IDS + 10})


@pytest.mark.parametrize("tie", [True, False])
def test_a_resized_table_without_its_head_is_refused(tie, tmp_path):
    model = llama(tie)
    model.save_pretrained(tmp_path / "base")
    model.resize_token_embeddings(64)
    trained(model, lora("q_proj", modules_to_save=["embed_tokens"]), tmp_path / "it")
    with pytest.raises(DataError, match="resize_token_embeddings, save_pretrained"):
        jaxformer.load(tmp_path / "base", adapter=tmp_path / "it")


@pytest.mark.parametrize("tie", [True, False])
def test_a_weighted_sum_is_that_of_peft(tie, tmp_path):
    llama(tie).save_pretrained(tmp_path / "base")
    folders, configs = {}, {
        "a": lora("q_proj", "embed_tokens"),
        "b": lora("q_proj", "down_proj", use_rslora=True, rank_pattern={"down_proj": 3}),
    }  # fmt: skip
    model = torch_model(tmp_path / "base")
    for name, config in configs.items():
        folders[name] = tmp_path / name
        base = torch_model(tmp_path / "base")
        trained(base, config, folders[name])
    theirs = peft.PeftModel.from_pretrained(model, folders["a"], adapter_name="a")
    theirs.load_adapter(folders["b"], adapter_name="b")
    weights = {"a": 0.75, "b": -2.0}
    theirs.base_model.set_adapter(["a", "b"])
    for name, weight in weights.items():
        for module in theirs.modules():
            if name in (getattr(module, "lora_A", None) or getattr(module, "lora_embedding_A", ())):
                module.scaling[name] *= weight
    ours = jaxformer.load(tmp_path / "base", adapters=folders)
    both = ours.with_adapters(weights)
    check_logits(both, theirs.eval(), {"input_ids": IDS})
    shared = [n for n, array in both.parameters.items() if array is ours.parameters.get(n)]
    assert any("norm" in name for name in shared)
    assert not any(name.endswith(("query.kernel", "down.kernel", "table")) for name in shared)


@pytest.mark.parametrize("weights", [{"it": 0.5}, {"it": 1.0, "other": 1.0}])
def test_only_factors_have_weights(weights, tmp_path):
    llama(True).save_pretrained(tmp_path / "base")
    trained(llama(True), lora("q_proj", use_dora=True), tmp_path / "it")
    trained(llama(True), lora("q_proj"), tmp_path / "other")
    folders = {name: tmp_path / name for name in ("it", "other")}
    model = jaxformer.load(tmp_path / "base", adapters=folders)
    with pytest.raises(ConfigError, match="merge it separately"):
        model.with_adapters(weights)


def test_two_heads_are_not_summed(tmp_path):
    llama(False).save_pretrained(tmp_path / "base")
    folders = {name: tmp_path / name for name in ("a", "b")}
    for folder in folders.values():
        trained(llama(False), lora("q_proj", modules_to_save=["lm_head"]), folder)
    model = jaxformer.load(tmp_path / "base", adapters=folders)
    with pytest.raises(ConfigError, match=r"each replaces lm_head\.weight: choose one"):
        model.with_adapters({"a": 1.0, "b": 1.0})


def test_a_table_that_nothing_reads_in_peft(tmp_path):
    base = save_checkpoint("t5", tmp_path / "base")
    trained(torch_model(base), lora("q", "shared"), tmp_path / "it")
    with pytest.raises(DataError, match="neither the encoder nor the decoder reads"):
        jaxformer.load(base, adapter=tmp_path / "it")


def test_what_an_adapter_does_not_change_is_the_bases_own(tmp_path):
    trained(llama(False), lora("q_proj"), tmp_path)
    names = (f"model.layers.{n}.self_attn.{p}_proj.weight" for n in range(3) for p in "qk")
    arrays = {name: np.ones((48, 48), np.float32) for name in names}
    tensors = {name: Tensor(array.shape, array.dtype) for name, array in arrays.items()}
    base = Base(tensors, arrays.__getitem__, FORMATS["llama"], frozenset(), "", "", "", {})
    files = adapted_tensors(tmp_path, base)
    assert files.tensors == tensors
    for name, array in arrays.items():
        assert (files.read(name) is array) == ("k_proj" in name)
    assert files.adapted == {name for name in arrays if "q_proj" in name}


def test_the_adapter_of_a_shallower_model_is_refused(tmp_path):
    torch.manual_seed(0)
    deeper = transformers.LlamaConfig(**LLAMA | {"num_hidden_layers": 4})
    transformers.LlamaForCausalLM(deeper).save_pretrained(tmp_path / "deeper")
    trained(llama(tie=False), lora("q_proj", "down_proj"), tmp_path / "all")
    some = lora("q_proj", "down_proj", layers_to_transform=[0, 1, 2])
    trained(llama(tie=False), some, tmp_path / "some")
    for load in (
        lambda adapter: jaxformer.load(tmp_path / "deeper", adapter=adapter),
        lambda adapter: jaxformer.load(tmp_path / "deeper", adapters={"it": adapter}),
    ):
        with pytest.raises(DataError, match=r"no factors for model\.layers\.3\..*shallower"):
            load(tmp_path / "all")
        load(tmp_path / "some")
