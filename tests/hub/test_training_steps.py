"""Steps of our training from imported weights are PyTorch's; those of our LoRA are PEFT's."""

import numpy as np
import pytest
from hf_checkpoints import save_checkpoint
from peft_models import adapter_of, torch_model
from safetensors.numpy import load_file
from saved_folders import save_tiny
from train_steps import gradients, program_of, stepped

from jaxformer.hub.peft.config import PeftConfig, task_of
from jaxformer.hub.peft.files import TENSORS, write_adapter
from jaxformer.models.lora import LoRA, is_factor
from jaxformer.optim import AdamW, Constant
from jaxformer.optim.parameter_roles import decay_mask
from jaxformer.parity.compare import beyond_rounding, errors
from jaxformer.parity.reference import Reference
from jaxformer.pretrained.auto import load

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

RANDOM = np.random.default_rng(0)
IDS, TARGETS = RANDOM.integers(5, 60, (2, 4, 9), dtype=np.int32)
CHOSEN = RANDOM.random((4, 9)) < 0.4
LABELS, ONES = np.array([0, 2, 1, 1], np.int32), np.ones((4, 9), np.float32)
SEGMENTS = ONES.astype(np.int32)
START = np.concatenate([np.zeros_like(TARGETS[:, :1]), TARGETS[:, :-1]], axis=1)
# Our batches, and theirs.
CAUSAL = (
    {"inputs": IDS[:, :-1], "targets": IDS[:, 1:], "weights": ONES[:, 1:]},
    {"input_ids": IDS, "labels": IDS},
)
MASKED = (
    {"inputs": IDS, "targets": TARGETS, "weights": CHOSEN.astype(np.float32)},
    {"input_ids": IDS, "labels": np.where(CHOSEN, TARGETS, -100)},
)
LABELLED = (
    {"inputs": IDS, "segments": SEGMENTS, "label": LABELS, "label_weights": ONES[:, 0]},
    {"input_ids": IDS, "labels": LABELS},
)
FORCED = (
    {"inputs": IDS, "segments": SEGMENTS, "decoder_inputs": START}
    | {"targets": TARGETS, "weights": ONES},
    {"input_ids": IDS, "decoder_input_ids": START, "labels": TARGETS},
)
SETTINGS = {"z_loss": 0.0, "clip_norm": 1.0}
NO_DROPOUT = {"dropout": 0.0, "self_attention.dropout": 0.0}


def adamw(rate):
    return AdamW(schedule=Constant(learning_rate=rate, warmup_steps=0), weight_decay=0.1)


def their_losses(forward, batch, decayed, others, rate, steps, at_start=lambda: None):
    """Those of PyTorch's steps, which change parameters; the gradients of the first are looked at.

    Args:
        forward: Their model.
        batch: What it reads.
        decayed: Parameters that decay.
        others: Parameters that do not.
        rate: The learning rate.
        steps: How many.
        at_start: Is called when the first gradients are there.
    """
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))
    losses = []
    for step in range(steps):
        loss = forward(batch).loss
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            at_start()
        torch.nn.utils.clip_grad_norm_([*decayed, *others], 1.0)
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


CASES = {
    "llama": ("LlamaForCausalLM", CAUSAL),
    "bert": ("BertForMaskedLM", MASKED),
    "t5": ("T5ForConditionalGeneration", FORCED),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.quick("llama")
def test_three_adamw_steps_have_pytorchs_losses(kind, tmp_path):
    name, (batch, their_batch) = CASES[kind]
    save_tiny(kind, tmp_path, name)
    # `Reference` has no dropout either.
    model = load(tmp_path, scan_layers=False, **NO_DROPOUT)
    program = program_of(model.config, optimizer=adamw(1e-3), steps=3, **SETTINGS)
    _, history = stepped(program, batch, model.parameters, 3)
    decays = decay_mask(model.abstract_model.axes)

    def theirs(reference):
        tensors, groups = dict(reference.model.named_parameters()), {True: [], False: []}
        for placement in model.placements:
            if placement.tensor in tensors:
                decayed = decays[placement.places[0].parameter]
                groups[decayed].append(tensors[placement.tensor])
        assert sum(map(len, groups.values())) == len(tensors)
        inputs = {name: array.astype(np.int64) for name, array in their_batch.items()}
        return their_losses(reference.forward, inputs, groups[True], groups[False], 1e-3, 3)

    reference = Reference(tmp_path, name)
    exact = theirs(reference.exact)
    assert exact[0] - exact[-1] > 0.01  # what the steps change is far from rounding
    found = (np.array([metrics["loss"] for metrics in history]), theirs(reference), exact)
    assert not beyond_rounding(errors(*({"losses": losses} for losses in found), {}))


STEPS, RATE = 20, 2e-3  # At 1e-2 rounding grows by 1.8 a step in T5.
ADAPTED = {
    "llama": (LoRA(rank=3, alpha=5.0), CAUSAL),
    # PEFT's factors of GPT-2's c_attn are one pair for queries, keys and values together.
    "gpt2": (LoRA(rank=3, targets=("up", "down", "*.attention.output.kernel")), CAUSAL),
    "bert_classifier": (LoRA(rank=3, targets=("all-linear",), exclude=("down",)), LABELLED),
    "t5": (LoRA(rank=3, use_rslora=True, targets=("query", "output")), FORCED),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ADAPTED)
def test_twenty_steps_are_those_of_peft(kind, tmp_path):
    peft = pytest.importorskip("peft")
    lora, (batch, their_batch) = ADAPTED[kind]
    model = load(save_checkpoint(kind, tmp_path / "base", dropout_rate=0.0))
    config = model.config.with_fields(**NO_DROPOUT, compute_dtype="float32")
    program = program_of(config, optimizer=adamw(RATE), steps=STEPS, lora=lora, **SETTINGS)
    structure, random = program.abstract_model, np.random.default_rng(1)
    start = model.parameters | {
        name: (random.normal(size=shape.shape) * 0.1).astype(np.float32)
        for name, shape in structure.shapes.items()
        if is_factor(name)
    }
    task = task_of(model.checkpoint.architecture.name)
    base = str(model.folder)
    settings = PeftConfig(3, lora.alpha, lora.use_rslora, base=base, task=task)

    def write(name, arrays, scale):
        (tmp_path / name).mkdir()
        adapter = adapter_of(structure, arrays, scale)
        write_adapter(tmp_path / name, adapter, model.placements, settings)

    write("adapter", start, lora.scale)
    theirs = peft.PeftModel.from_pretrained(
        torch_model(model.folder), tmp_path / "adapter", is_trainable=True
    ).train()
    trained = [p for p in theirs.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == sum(start[name].size for name in program.trained)

    def check_gradients():
        """Compares both gradients as if they were adapters of PEFT."""
        kept = [p.data.clone() for p in trained]
        for parameter in trained:
            parameter.data.copy_(parameter.grad)
        theirs.save_pretrained(tmp_path / "theirs")
        for parameter, value in zip(trained, kept, strict=True):
            parameter.data.copy_(value)
        write("ours", start | gradients(program, batch, start)[0], 1.0)
        ours, expected = (load_file(tmp_path / x / TENSORS) for x in ("ours", "theirs"))
        assert ours.keys() == expected.keys()
        for name, value in ours.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)

    groups = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim == 1]
    inputs = {name: torch.tensor(array.astype(np.int64)) for name, array in their_batch.items()}
    expected = their_losses(
        lambda batch: theirs(**batch), inputs, *groups, RATE, STEPS, check_gradients
    )
    state, history = stepped(program, batch, start, STEPS)
    losses = np.array([metrics["loss"] for metrics in history])
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
    assert losses[0] - losses[-1] > 0.05
    for name, value in model.parameters.items():
        if name not in program.trained:
            np.testing.assert_array_equal(state.params[name], value, err_msg=name)
