"""Three steps of our training from imported weights are three of PyTorch's."""

import jax
import numpy as np
import pytest
import torch
from saved_folders import save_tiny

from jaxformer.hub.reference import Reference
from jaxformer.loading import load
from jaxformer.sharding import MeshConfig, make_mesh
from jaxformer.training.config import TrainConfig
from jaxformer.training.optim import AdamW
from jaxformer.training.parameter_roles import decay_mask
from jaxformer.training.schedules import Constant
from jaxformer.training.step import TrainProgram

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
    ours = {
        "inputs": IDS,
        "decoder_inputs": decoder_inputs,
        "targets": TARGETS,
        "weights": WEIGHTS,
    }
    return ours, {"input_ids": IDS, "decoder_input_ids": decoder_inputs, "labels": TARGETS}


CASES = {
    ("llama", "LlamaForCausalLM"): causal,
    ("bert", "BertForMaskedLM"): masked,
    ("t5", "T5ForConditionalGeneration"): forced,
}


@pytest.mark.parametrize(("case", "batches"), CASES.items(), ids=["llama", "bert", "t5"])
def test_three_adamw_steps_have_pytorchs_losses(case, batches, tmp_path):
    kind, name = case
    save_tiny(kind, tmp_path, name)
    # `Reference` has no dropout either.
    model = load(tmp_path, scan_layers=False, dropout=0.0, attention_dropout=0.0)
    theirs = Reference(tmp_path, name).model
    ours_batch, theirs_batch = batches()

    train = TrainConfig(steps=STEPS, z_loss=0.0, clip_norm=1.0)
    optimizer = AdamW(schedule=Constant(learning_rate=RATE, warmup_steps=0), weight_decay=0.1)
    program = TrainProgram(model.config, optimizer, train, make_mesh(MeshConfig(data=1)))
    state = program.init(0)
    placed = {n: jax.device_put(x, state.params[n].sharding) for n, x in model.parameters.items()}
    state.params.update(placed)
    batch = {n: jax.device_put(x, program.batch_sharding) for n, x in ours_batch.items()}

    groups = {True: [], False: []}
    decayed = decay_mask(model.template.axes)
    tensors = dict(theirs.named_parameters())
    for placement in model.placements:
        if placement.tensor in tensors:
            groups[decayed[placement.places[0].parameter]].append(tensors[placement.tensor])
    assert sum(map(len, groups.values())) == len(tensors)
    torch_optimizer = torch.optim.AdamW(
        [{"params": groups[True], "weight_decay": 0.1}, {"params": groups[False]}],
        lr=RATE,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.0,
    )
    arrays = {n: torch.tensor(x).long() for n, x in theirs_batch.items()}
    for _ in range(STEPS):
        state, metrics = program.train_step(state, batch)
        loss = theirs(**arrays).loss
        torch_optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        torch_optimizer.step()
        np.testing.assert_allclose(float(metrics["loss"]), loss.item(), rtol=2e-6)
