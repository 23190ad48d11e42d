"""Three steps of our training from imported weights are three of PyTorch's."""

import numpy as np
import pytest
from saved_folders import save_tiny
from train_steps import program_of, stepped

from jaxformer.optim import AdamW, Constant
from jaxformer.optim.parameter_roles import decay_mask
from jaxformer.parity.compare import beyond_rounding, errors
from jaxformer.parity.reference import Reference
from jaxformer.pretrained.auto import load

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

STEPS, RATE = 3, 1e-3
RANDOM = np.random.default_rng(0)
IDS, TARGETS = RANDOM.integers(5, 131, (2, 4, 9), dtype=np.int32)
CHOSEN = RANDOM.random((4, 9)) < 0.4
WEIGHTS = np.ones((4, 9), np.float32)


def causal():
    ours = {"inputs": IDS[:, :-1], "targets": IDS[:, 1:], "weights": WEIGHTS[:, 1:]}
    return ours, {"input_ids": IDS, "labels": IDS}


def masked():
    ours = {"inputs": IDS, "targets": TARGETS, "weights": CHOSEN.astype(np.float32)}
    return ours, {"input_ids": IDS, "labels": np.where(CHOSEN, TARGETS, -100)}


def forced():
    start = np.zeros_like(TARGETS[:, :1])
    decoder_inputs = np.concatenate([start, TARGETS[:, :-1]], axis=1)
    ours = {"inputs": IDS, "decoder_inputs": decoder_inputs, "targets": TARGETS, "weights": WEIGHTS}
    return ours, {"input_ids": IDS, "decoder_input_ids": decoder_inputs, "labels": TARGETS}


CASES = {
    ("llama", "LlamaForCausalLM"): causal,
    ("bert", "BertForMaskedLM"): masked,
    ("t5", "T5ForConditionalGeneration"): forced,
}


def our_losses(model, batch):
    """Those of our training's steps from the model's parameters."""
    optimizer = AdamW(schedule=Constant(learning_rate=RATE, warmup_steps=0), weight_decay=0.1)
    settings = {"steps": STEPS, "z_loss": 0.0, "clip_norm": 1.0}
    program = program_of(model.config, optimizer=optimizer, **settings)
    _, history = stepped(program, batch, model.parameters, STEPS)
    return np.array([metrics["loss"] for metrics in history])


def their_losses(theirs, model, batch):
    """Those of PyTorch's steps, which change their model; ours says which parameters decay."""
    groups = {True: [], False: []}
    decayed = decay_mask(model.abstract_model.axes)
    tensors = dict(theirs.model.named_parameters())
    for placement in model.placements:
        if placement.tensor in tensors:
            groups[decayed[placement.places[0].parameter]].append(tensors[placement.tensor])
    assert sum(map(len, groups.values())) == len(tensors)
    optimizer = torch.optim.AdamW(
        [{"params": groups[True], "weight_decay": 0.1}, {"params": groups[False]}],
        lr=RATE,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.0,
    )
    batch = {name: array.astype(np.int64) for name, array in batch.items()}
    losses = []
    for _ in range(STEPS):
        loss = theirs.forward(batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


@pytest.mark.parametrize(("case", "batches"), CASES.items(), ids=["llama", "bert", "t5"])
@pytest.mark.quick("llama")
def test_three_adamw_steps_have_pytorchs_losses(case, batches, tmp_path):
    kind, name = case
    save_tiny(kind, tmp_path, name)
    # `Reference` has no dropout either.
    model = load(tmp_path, scan_layers=False, dropout=0.0, **{"self_attention.dropout": 0.0})
    theirs, (ours_batch, theirs_batch) = Reference(tmp_path, name), batches()
    exact = their_losses(theirs.exact, model, theirs_batch)
    assert exact[0] - exact[-1] > 0.01  # what the steps change is far from rounding
    found = (our_losses(model, ours_batch), their_losses(theirs, model, theirs_batch), exact)
    assert not beyond_rounding(errors(*({"losses": losses} for losses in found), {}))
