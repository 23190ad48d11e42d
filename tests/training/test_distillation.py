"""Learning from a teacher: torch's losses and gradients, on every mesh, in parts; whole runs."""

import shutil
from dataclasses import replace
from functools import lru_cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_folders import copy_of
from tiny_models import (
    batch_for,
    random_arrays,
    random_parameters,
    structure_of,
    tiny,
    tiny_encoder,
    tiny_encoder_decoder,
    tiny_vision,
)
from tiny_run import hash_of, tiny_config, train_until
from train_steps import program_of, stepped

from jaxformer.checkpoints import files as checkpoint_files
from jaxformer.checkpoints.restore import read_arrays
from jaxformer.checkpoints.saved_run import write_run
from jaxformer.config import Distillation
from jaxformer.data import Datasets, MaskedLM
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.distributed.sharding import parameter_shardings
from jaxformer.errors import ConfigError
from jaxformer.models import Regression, Span
from jaxformer.models.heads.base import DEFAULT_OPTIONS
from jaxformer.models.lora import AbstractLoraModel, LoRA
from jaxformer.optim import SGD, Constant
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.loop import train
from jaxformer.training.loss import DistillationLoss
from jaxformer.training.teacher import check_teacher, check_teacher_data, distillation_loss
from jaxformer.training.transfer.origin import open_named

pytestmark = pytest.mark.more

RATE = 0.1
OPTIMIZER = SGD(schedule=Constant(learning_rate=RATE, warmup_steps=0), momentum=0.0)
SETTINGS = Distillation("teacher", temperature=1.7, soft_weight=3.0, hard_weight=0.7)
SHARDED = {"model_dim": 24, "num_heads": 4, "mlp_dim": 16, "vocab_size": 32}
STUDENTS = {
    "encoder": tiny_encoder(num_layers=1),
    "decoder": tiny(num_layers=1),
    "encoder-decoder": tiny_encoder_decoder(num_decoder_layers=2),
    "vision": tiny_vision(num_layers=1),
}
COMMON = {
    "encoder": ["masked_language_model", "label"],
    "decoder": ["language_model"],
    "encoder-decoder": ["language_model"],
    "vision": ["label"],
}


def teacher_of(model):
    """Deeper, and wider where the width may differ."""
    return replace(model, num_layers=2, mlp_dim=32)


def run(model, common, mesh=(1, 1, 1), settings=SETTINGS, steps=1, parts=1):
    teacher = structure_of(teacher_of(model))
    shardings = parameter_shardings(make_mesh(MeshConfig(*mesh)), teacher.axes, teacher.shapes)
    parameters = jax.device_put(random_parameters(teacher_of(model), 5), shardings)
    heads = [head.name for head in model.heads]
    loss = DistillationLoss(heads, settings, teacher, parameters, common)
    options = {"clip_norm": None, "gradient_accumulation": parts}
    program = program_of(model, mesh, OPTIMIZER, loss, **options)
    state, history = stepped(program, batch_for(model), random_parameters(model, 1), steps)
    return program, state, history[-1]


# Against torch ------------------------------------------------------------------------------------


def outputs(model, parameters, batch, common):
    """What the terms are made of: the hidden states and the common heads' scores."""
    module = structure_of(model).module(parameters)
    states = module.outputs(batch)
    return states.hidden, {name: module.heads[name].scores(states) for name in common}


def torch_loss(torch, settings, student, teacher, model, batch):
    """The loss and its terms, written for one batch with torch's own functions."""
    (hidden, scores), (true_hidden, true_scores) = student, teacher
    prefix = "decoder_" if "decoder_inputs" in batch else ""
    valid = torch.tensor(np.array(batch.get(prefix + "segments", np.ones(hidden.shape[:2])) > 0))
    weights = {
        "masked_language_model": valid.double(),
        "language_model": torch.tensor(batch["weights"]).double(),
        "label": torch.tensor(batch["label_weights"]).double(),
    }
    hard_weights = weights | {"masked_language_model": torch.tensor(batch["weights"]).double()}
    targets = {name: batch["label" if name == "label" else "targets"] for name in scores}
    tau, soft, hard = settings.temperature, 0.0, 0.0
    for name, x in scores.items():
        kl = torch.nn.functional.kl_div(
            torch.log_softmax(x / tau, -1),
            torch.softmax(true_scores[name] / tau, -1),
            reduction="none",
        ).sum(-1)
        soft = soft + tau**2 * (kl * weights[name]).sum() / weights[name].sum()
        target = torch.tensor(targets[name]).long()
        cross_entropy = torch.nn.functional.cross_entropy(
            x.flatten(0, -2), target.flatten(), reduction="none"
        )
        weight = hard_weights[name].flatten()
        hard = hard + (cross_entropy * weight).sum() / weight.sum()
    chosen, wanted = hidden[valid], true_hidden[valid]
    cosine = torch.nn.CosineEmbeddingLoss()(chosen, wanted, torch.ones(len(chosen)).double())
    total = settings.soft_weight * soft + settings.hard_weight * hard
    total = total + settings.cosine_weight * cosine
    return total, {"soft_loss": soft, "loss": hard, "cosine_loss": cosine, "total_loss": total}


@pytest.mark.torch
@pytest.mark.parametrize("family", STUDENTS)
@pytest.mark.slow
def test_values_and_gradients_are_torchs(family):
    torch = pytest.importorskip("torch")
    model, common = replace(STUDENTS[family], dropout=0.0), COMMON[family]
    if family == "encoder":
        model = model.with_fields(**{"self_attention.dropout": 0.0})
    _, state, metrics = run(model, common)
    batch = batch_for(model)
    start = random_parameters(model, 1)
    student, pull = jax.vjp(lambda p: outputs(model, p, batch, common), start)
    teacher_model = teacher_of(model)
    teacher = outputs(teacher_model, random_parameters(teacher_model, 5), batch, common)

    def in_torch(tree, learn):
        return jax.tree.map(
            lambda x: torch.tensor(np.asarray(x, np.float64), requires_grad=learn), tree
        )

    inputs = in_torch(student, True)
    total, terms = torch_loss(torch, SETTINGS, inputs, in_torch(teacher, False), model, batch)
    total.backward()
    for name, value in terms.items():
        np.testing.assert_allclose(metrics[name], value.item(), rtol=2e-5, err_msg=name)
    cotangent = jax.tree.map(lambda x: jnp.asarray(x.grad.numpy(), jnp.float32), inputs)
    (gradients,) = pull(cotangent)
    for name, gradient in gradients.items():
        update = (np.asarray(start[name]) - np.asarray(state.params[name])) / RATE
        largest = max(float(np.abs(gradient).max()), 0.1)
        np.testing.assert_allclose(update, gradient, atol=1e-4 * largest, rtol=0, err_msg=name)


# However it is computed ---------------------------------------------------------------------------

MESHED = tiny_encoder(
    **SHARDED, num_kv_heads=4, num_layers=1, dropout=0.0, **{"self_attention.dropout": 0.0}
)


@lru_cache
def reference():
    _, state, metrics = run(MESHED, COMMON["encoder"], steps=2)
    return jax.tree.map(np.asarray, state.params), metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "parts"), [((8, 1, 1), 1), ((2, 2, 2), 1), ((2, 1, 2), 4), ((1, 1, 1), 8)]
)
def test_every_mesh_and_all_parts_make_the_same_update(mesh, parts):
    _, state, metrics = run(MESHED, COMMON["encoder"], mesh, steps=2, parts=parts)
    expected, values = reference()
    chex.assert_trees_all_close(state.params, expected, rtol=2e-4, atol=2e-5)
    chex.assert_trees_all_close(metrics, values, rtol=1e-4)


@pytest.mark.slow
def test_rows_without_padding_on_a_mesh():
    # All tokens are real and nothing in the batch says so.
    model = replace(STUDENTS["vision"], model_dim=24, num_heads=4, num_kv_heads=4, mlp_dim=16)
    (_, one, first), (_, other, second) = (
        run(model, COMMON["vision"], mesh) for mesh in ((1, 1, 1), (2, 2, 2))
    )
    chex.assert_trees_all_close(other.params, one.params, rtol=2e-4, atol=2e-5)
    assert second["cosine_loss"] == pytest.approx(first["cosine_loss"], rel=1e-5)


@pytest.mark.slow
def test_the_teacher_is_an_argument_of_the_step_and_stays_as_it_is():
    program, state, first = run(MESHED, COMMON["encoder"])
    other = random_parameters(teacher_of(MESHED), 6)
    before = program.loss.parameters
    batch = jax.device_put(batch_for(MESHED), program.batch_sharding)
    program.loss.parameters = jax.device_put(other, jax.tree.map(lambda x: x.sharding, before))
    state, second = program.train_step(state, batch)
    assert program._update._cache_size() == 1
    assert abs(float(second["soft_loss"]) - first["soft_loss"]) > 0.1
    chex.assert_trees_all_equal(program.loss.parameters, other)  # neither donated nor learned
    for name, x in other.items():
        assert (np.asarray(before[name]) != x).any()
    assert set(state.params) == set(program.abstract_model.shapes)


@pytest.mark.slow
def test_dropout_is_the_students_alone():
    model = replace(MESHED, dropout=0.5)
    _, _, one = run(model, COMMON["encoder"])
    _, _, plain = run(MESHED, COMMON["encoder"])
    assert abs(one["soft_loss"] - plain["soft_loss"]) > 1e-3
    # The teacher that is the student itself, without dropout, has nothing to teach.
    twin = structure_of(MESHED)
    heads = [head.name for head in MESHED.heads]
    loss = DistillationLoss(heads, SETTINGS, twin, random_parameters(MESHED), heads)
    module, batch = twin.module(random_parameters(MESHED)), batch_for(MESHED)
    sums = jax.jit(lambda key: loss(module, loss.parameters, batch, DEFAULT_OPTIONS, key))(None)
    assert abs(loss.metrics(sums)["soft_loss"]) < 1e-4
    assert abs(loss.metrics(sums)["cosine_loss"]) < 1e-5


@pytest.mark.parametrize(
    ("settings", "terms"),
    [
        (replace(SETTINGS, cosine_weight=0.0), {"soft_loss", "total_loss"}),
        (replace(SETTINGS, soft_weight=0.0), {"cosine_loss", "total_loss"}),
    ],
)
@pytest.mark.quick("settings1-terms1")
def test_a_weight_of_zero_leaves_its_term_out(settings, terms):
    model = STUDENTS["decoder"]
    _, _, metrics = run(model, COMMON["decoder"], settings=settings)
    assert {name for name in metrics if name.endswith("_loss")} == terms


# Whole runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher") / "run"
    train(tiny_config(steps=6, ema_decay=0.5), folder)
    return folder


def student_config(teacher, **changes):
    config = tiny_config(steps=4, distillation=Distillation(str(teacher)))
    model = replace(config.model, **({"num_layers": 1} | changes))
    return replace(config, model=model)


@pytest.mark.slow
def test_a_run_learns_from_another_and_goes_on_where_it_was(teacher, tmp_path, capsys):
    before, config = hash_of(teacher, 6), student_config(teacher)
    train(config, tmp_path / "one")
    rows = read_metrics(tmp_path / "one", "train")
    for row in rows:
        total = 5 * row["soft_loss"] + 2 * row["loss"] + row["cosine_loss"]
        assert row["total_loss"] == pytest.approx(total, rel=1e-5)
    assert rows[-1]["soft_loss"] < rows[0]["soft_loss"]
    assert "soft" in capsys.readouterr().out
    saved = checkpoint_files.saved_steps(tmp_path / "one" / "checkpoints")[-1]
    names = {name for name, _ in read_arrays(tmp_path / "one" / "checkpoints" / str(saved))}
    learned = {name for name in names if name.startswith("params/")}
    assert learned == {f"params/{name}" for name in structure_of(config.model).shapes}
    assert hash_of(teacher, 6) == before
    train_until(3, config, tmp_path / "parts")
    train(config, tmp_path / "parts")
    assert hash_of(tmp_path / "parts", 4) == hash_of(tmp_path / "one", 4)


def loss_for(config, data, mesh):
    teacher = open_named(config.train.distillation.teacher, "train.distillation.teacher")
    check_teacher(config, teacher, dict(mesh.shape))
    check_teacher_data(data, teacher)
    return distillation_loss(config.train.distillation, config.model, teacher, mesh)


def parameters_of(config):
    data, mesh = Datasets(None, None), make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    return loss_for(config, data, mesh).parameters


@pytest.mark.slow
def test_the_averages_of_the_teacher_are_taken(teacher, capsys):
    parameters = parameters_of(student_config(teacher))
    saved = dict(read_arrays(teacher / "checkpoints" / "6", ("ema/", "params/")))
    chex.assert_trees_all_equal(parameters, {name: saved[f"ema/{name}"] for name in parameters})
    assert (saved["params/embedding.table"] != saved["ema/embedding.table"]).any()
    words = f"teacher {teacher} at step 6, 29.1k parameters: teaches the predictions of language_mo"
    assert words in capsys.readouterr().out


def test_the_factors_of_the_teacher_are_multiplied_out(tmp_path):
    config = tiny_config(lora=LoRA(rank=2))
    abstract_model = AbstractLoraModel(structure_of(config.model), config.train.lora)
    saved = random_arrays(abstract_model.shapes, scale=1.0)
    write_run(tmp_path / "run", config, 3, saved)
    parameters = parameters_of(student_config(tmp_path / "run"))
    chex.assert_trees_all_close(parameters, abstract_model.merged(saved), rtol=1e-6, atol=1e-6)


def refused(config, mesh=(1, 1, 1), special_tokens=()):
    """What is wrong with the teacher of an experiment."""
    data = Datasets(None, None, config.data.tokenizer.fit([], special_tokens))
    with pytest.raises(ConfigError) as error:
        loss_for(config, data, make_mesh(MeshConfig(*mesh)))
    message = str(error.value)
    assert message.startswith("train.distillation.teacher")
    return message


@pytest.mark.parametrize(
    ("changes", "mesh", "message"),
    [
        (
            {"model_dim": 40, "num_heads": 4},
            (1, 1, 1),
            "(model.model_dim = 32 there, 40 here), so their cosine is undefined: set "
            "train.distillation.cosine_weight = 0",
        ),
        (
            {"heads": (Regression(),)},
            (1, 1, 1),
            "it has the heads language_model, this model label: they share no head that predicts",
        ),
        ({"heads": (Span(),)}, (1, 1, 1), "they share no head that predicts tokens or labels"),
        ({"num_heads": 8}, (1, 1, 8), "model.num_heads = 4 is not divisible by mesh.tensor"),
    ],
)
def test_a_teacher_that_does_not_fit(teacher, changes, mesh, message):
    assert message in refused(student_config(teacher, **changes), mesh)


def test_a_teacher_of_another_family(teacher):
    model = tiny_encoder(vocab_size=264, model_dim=32)
    config = replace(student_config(teacher), model=model)
    assert "its type is DecoderConfig, this model's EncoderConfig" in refused(config)


def test_a_teacher_with_another_tokenizer(teacher, tmp_path):
    message = refused(student_config(teacher), special_tokens=MaskedLM.special_tokens)
    assert "it has a different tokenizer" in message
    assert f"--data.tokenizer TokenizerFile --data.tokenizer.path {teacher}/tokenizer" in message
    # Its tokenizer is the one in its folder, whatever its configuration says.
    exchanged = copy_of(teacher, tmp_path / "copy") / "tokenizer"
    shutil.rmtree(exchanged)
    tiny_config().data.tokenizer.fit([], MaskedLM.special_tokens).save(exchanged)
    assert str(exchanged) in refused(student_config(tmp_path / "copy"))


def test_a_teacher_with_other_labels(teacher, monkeypatch):
    opened = open_named(str(teacher), "train.distillation.teacher")
    monkeypatch.setitem(vars(opened), "labels", ("b", "a"))
    check_teacher_data(Datasets(None, None, labels=("b", "a")), opened)
    message = "it was trained on the labels b, a, but the data has a, b"
    with pytest.raises(ConfigError, match=message):
        check_teacher_data(Datasets(None, None, labels=("a", "b")), opened)
