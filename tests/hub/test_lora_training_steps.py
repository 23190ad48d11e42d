"""Twenty steps of our LoRA are twenty of PEFT's: outputs, gradients and losses in float32."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from peft_models import adapter_of, torch_model
from safetensors.numpy import load_file

import jaxformer
from jaxformer.config import TrainConfig
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.functional.arrays import on_mesh
from jaxformer.hub.peft.config import PeftConfig, task_of
from jaxformer.hub.peft.files import TENSORS, write_adapter
from jaxformer.models.lora import LoRA, is_factor
from jaxformer.optim import AdamW, Constant
from jaxformer.training.step import TrainProgram

pytestmark = pytest.mark.torch

peft = pytest.importorskip("peft")
torch = pytest.importorskip("torch")

from hf_checkpoints import save_checkpoint  # noqa: E402

STEPS, RATE = 20, 2e-3  # At 1e-2 rounding grows by 1.8 a step in T5.
RANDOM = np.random.default_rng(0)
IDS, TARGETS = RANDOM.integers(5, 60, (2, 4, 9), dtype=np.int32)
LABELS, ONES = np.array([0, 2, 1, 1], np.int32), np.ones((4, 9), np.float32)
START = np.concatenate([np.zeros_like(TARGETS[:, :1]), TARGETS[:, :-1]], axis=1)
CAUSAL = (
    {"inputs": IDS[:, :-1], "targets": IDS[:, 1:], "weights": ONES[:, 1:]},
    {"input_ids": IDS, "labels": IDS},
)
SEGMENTS = ONES.astype(np.int32)
CASES = {
    "llama": (LoRA(rank=3, alpha=5.0), CAUSAL),
    # PEFT's factors of GPT-2's c_attn are one pair for queries, keys and values together.
    "gpt2": (LoRA(rank=3, targets=("up", "down", "*.attention.output.kernel")), CAUSAL),
    "bert_classifier": (
        LoRA(rank=3, targets=("all-linear",), exclude=("down",)),
        (
            {"inputs": IDS, "segments": SEGMENTS, "label": LABELS, "label_weights": ONES[:, 0]},
            {"input_ids": IDS, "labels": LABELS},
        ),
    ),
    "t5": (
        LoRA(rank=3, use_rslora=True, targets=("query", "output")),
        (
            {"inputs": IDS, "segments": SEGMENTS, "decoder_inputs": START}
            | {"targets": TARGETS, "weights": ONES},
            {"input_ids": IDS, "decoder_input_ids": START, "labels": TARGETS},
        ),
    ),
}


def started(model, lora):
    """Our program, and its state with the model's weights and factors that are not zero."""
    changes = {"dropout": 0.0, "self_attention.dropout": 0.0, "compute_dtype": "float32"}
    config = model.config.with_fields(**changes)
    optimizer = AdamW(schedule=Constant(learning_rate=RATE, warmup_steps=0), weight_decay=0.1)
    train = TrainConfig(steps=STEPS, clip_norm=1.0, lora=lora)
    program = TrainProgram(config, optimizer, train, make_mesh(MeshConfig()))
    state, random = program.init(0), np.random.default_rng(1)
    values = {name: np.asarray(array) for name, array in model.parameters.items()}
    for name, shape in program.abstract_model.shapes.items():
        if is_factor(name):
            values[name] = (random.normal(size=shape.shape) * 0.1).astype(np.float32)
    placed = {n: jax.device_put(x, state.params[n].sharding) for n, x in values.items()}
    return program, replace(state, params=placed)


def learning(theirs):
    """The tensors that learn, matrices and others."""
    found = [p for p in theirs.parameters() if p.requires_grad]
    return [p for p in found if p.ndim > 1], [p for p in found if p.ndim == 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_twenty_steps_are_those_of_peft(kind, tmp_path):
    lora, (batch, their_batch) = CASES[kind]
    base = save_checkpoint(kind, tmp_path / "base", dropout_rate=0.0)
    model = jaxformer.load(base)
    program, state = started(model, lora)
    their_class = model.checkpoint.architecture.name
    config = PeftConfig(3, lora.alpha, lora.use_rslora, base=str(base), task=task_of(their_class))
    (tmp_path / "adapter").mkdir()
    adapter = adapter_of(program.abstract_model, state.params, lora.scale)
    write_adapter(tmp_path / "adapter", adapter, model.placements, config)
    theirs = torch_model(base)
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter", is_trainable=True).train()
    inputs = {name: torch.tensor(array.astype(np.int64)) for name, array in their_batch.items()}
    matrices, vectors = learning(theirs)
    counts = [sum(p.numel() for p in matrices + vectors)]
    counts += [sum(state.params[name].size for name in program.trained)]
    assert counts[0] == counts[1]

    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=RATE, betas=(0.9, 0.95),
    )  # fmt: skip
    batch = {name: jax.device_put(x, program.batch_sharding) for name, x in batch.items()}
    losses = []
    for step in range(STEPS):
        loss = theirs(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            check_gradients(program, state, batch, theirs, tmp_path, model, config)
        torch.nn.utils.clip_grad_norm_(matrices + vectors, 1.0)
        optimizer.step()
        state, metrics = program.train_step(state, batch)
        losses.append((float(metrics["loss"]), loss.item()))
    losses = np.array(losses)
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=0, atol=1e-4)
    assert losses[0, 0] - losses[-1, 0] > 0.05
    for name, value in model.parameters.items():
        if name not in program.trained:
            np.testing.assert_array_equal(state.params[name], value, err_msg=name)


def check_gradients(program, state, batch, theirs, folder, model, config):
    """Writes both gradients as if they were adapters of PEFT."""
    with torch.no_grad():
        kept = [(p, p.data.clone()) for p in theirs.parameters() if p.requires_grad]
        for parameter, _ in kept:
            parameter.data.copy_(parameter.grad)
        theirs.save_pretrained(folder / "theirs")
        for parameter, value in kept:
            parameter.data.copy_(value)
    with on_mesh(program.mesh):
        gradients, _ = jax.jit(program._gradients)(state.params, {}, batch, jax.random.key(0))
    (folder / "ours").mkdir()
    found = adapter_of(program.abstract_model, state.params | gradients, 1.0)
    write_adapter(folder / "ours", found, model.placements, config)
    ours, expected = (load_file(folder / x / TENSORS) for x in ("ours", "theirs"))
    assert ours.keys() == expected.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
