"""Names and values are those of TransformerLens, with the weights of the same folder."""

import numpy as np
import pytest
from saved_folders import save_tiny

import jaxformer

pytestmark = [pytest.mark.torch, pytest.mark.slow]

IDS = np.random.default_rng(0).integers(8, 30, (2, 7))
# What a block has; those of rotated queries and keys are only in versions before 4.
COMMON = [
    "hook_resid_pre",
    "hook_attn_out",
    "hook_mlp_out",
    "hook_resid_post",
    *(f"attn.hook_{name}" for name in ("q", "k", "v", "z", "attn_scores", "pattern")),
    "ln1.hook_normalized",
    "ln1.hook_out",
    "ln2.hook_normalized",
    "ln2.hook_out",
    "mlp.hook_pre",
    "mlp.hook_post",
]
SYSTEMS = {
    "gpt2": [*COMMON, "hook_resid_mid"],
    "gpt_neox": COMMON,  # Pythia
}


@pytest.mark.parametrize(("kind", "names"), SYSTEMS.items(), ids=SYSTEMS)
def test_every_activation_is_that_of_transformer_lens(kind, names, tmp_path, monkeypatch):
    bridge = pytest.importorskip("transformer_lens.model_bridge")
    import torch
    import transformers

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = save_tiny(kind, tmp_path, "CausalLM" if kind != "gpt2" else "LMHeadModel")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    special = {"pad_token": "[PAD]", "eos_token": "[SEP]", "bos_token": "[CLS]"}
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder, **special)
    theirs = bridge.TransformerBridge.boot_transformers(
        str(folder), hf_model=theirs, tokenizer=tokenizer, device="cpu"
    )
    theirs.enable_compatibility_mode(no_processing=True, disable_warnings=True)
    with torch.no_grad():
        logits, expected = theirs.run_with_cache(torch.tensor(IDS))
    model = jaxformer.load(folder)
    outputs, actual = jaxformer.run_with_cache(model, {"input_ids": IDS})
    np.testing.assert_allclose(outputs["logits"], logits, atol=2e-5)
    layers = range(model.config.num_layers)
    everywhere = ["hook_embed", "ln_final.hook_normalized"]
    for name in [*everywhere, *(f"blocks.{n}.{name}" for n in layers for name in names)]:
        ours, wanted = np.asarray(actual[name]), expected[name].numpy()
        assert ours.shape == wanted.shape, name
        if name.endswith("scores"):  # Masked ones are -inf, or the smallest number there is.
            ours, wanted = (np.where(x < -1e30, 0, x) for x in (ours, wanted))
        np.testing.assert_allclose(ours, wanted, atol=2e-5, err_msg=name)
