"""Plans of runs with several models: teachers, references, dual encoders, composites."""

from dataclasses import replace

import pytest
from plan_cases import shrunk, tiny
from tiny_models import tiny_composite, tiny_encoder, tiny_vision

from jaxformer.checkpoints.run_dir import open_run_folder
from jaxformer.config import DPO, Distillation
from jaxformer.data import SpanCorruption
from jaxformer.data.chat import PreferenceData
from jaxformer.data.tasks import ImageTextPairs
from jaxformer.distributed.slices import parse_chips
from jaxformer.errors import ConfigError
from jaxformer.models import DualEncoderConfig
from jaxformer.models.parameters import AbstractModel
from jaxformer.nn.config import RematNames
from jaxformer.plan import report, search
from jaxformer.plan.closed_form import work_of
from jaxformer.plan.layout import layout_of
from jaxformer.plan.memory import estimate
from jaxformer.plan.report import notes_of
from jaxformer.plan.search import best, evaluate, largest_batch
from jaxformer.plan.trace import trace_step
from jaxformer.training.logging.report import bytes_per_device, short_bytes

pytestmark = pytest.mark.more

SLICE = parse_chips("v5e:2x2")
EVEN = {"model_dim": 32, "num_heads": 4, "num_kv_heads": 4, "mlp_dim": 64, "head_dim": 8}
EVEN |= {"num_layers": 1}


def training(config, **changes):
    return replace(config, train=replace(config.train, **changes))


@pytest.fixture
def larger(tmp_path):
    """A run of a model that has more layers."""
    config = tiny((1, 4, 1))
    model = replace(config.model, num_layers=config.model.num_layers + 2)
    folder = tmp_path / "larger"
    folder.mkdir()
    open_run_folder(folder, replace(config, model=model))
    return folder, model


def dual_encoder(rows=64, remat="none"):
    even = EVEN | {"heads": (), "remat": remat}
    size = {"image_size": (8, 12), "channels": 3}
    model = DualEncoderConfig(
        text=tiny_encoder(vocab_size=2048, **even), image=tiny_vision(**even, **size)
    )
    config = tiny((1, 4, 1))
    data = ImageTextPairs(
        batch_size=rows, sequence_length=16, tokenizer=config.data.tokenizer, **size
    )
    return replace(config, model=model, data=data)


@pytest.mark.slow
def test_a_teacher_that_is_here_is_counted(larger):
    folder, model = larger
    config = tiny((1, 4, 1))
    alone = trace_step(config, SLICE)
    taught = Distillation(str(folder), cosine_weight=0.0)
    step = trace_step(training(config, distillation=taught), SLICE)
    cut = sum(x.size for x in AbstractModel(model.build).shapes.values())
    parts, parameters = estimate(step).parts, step.train_program.loss.parameters
    # Norms are whole on every device.
    assert cut / 4 <= bytes_per_device(parameters) / 4 <= 1.1 * cut / 4
    assert parts["other models"] == layout_of(SLICE.chip).bytes_of_tree(parameters)
    assert parts["parameters"] == estimate(alone).parts["parameters"]
    work, work_alone = (work_of(each.config, SLICE) for each in (step, alone))
    products = model.flops(config.row_lengths).products * step.tokens / 4
    assert work.products == pytest.approx(work_alone.products + products)
    assert work.attention > work_alone.attention
    assert not list(notes_of(step))


def test_a_teacher_that_is_not_here_is_said_not_to_be_counted():
    config = training(tiny((1, 4, 1)), distillation=Distillation("runs/none", cosine_weight=0.0))
    step = trace_step(config, SLICE)
    (note,) = notes_of(step)
    assert "teacher" in note
    assert "train.distillation.teacher = 'runs/none'" in note
    assert "other models" not in estimate(step).parts


def test_a_teacher_that_does_not_fit_is_refused(larger):
    folder, _ = larger
    config = training(tiny((1, 4, 1)), distillation=Distillation(str(folder), cosine_weight=0.0))
    config = replace(config, model=replace(config.model, vocab_size=4096))
    with pytest.raises(ConfigError, match=r"train\.distillation\.teacher .*vocab_size is 2048"):
        trace_step(config, SLICE)


def test_preferences_are_traced_as_pairs(larger):
    folder, model = larger
    config = tiny((1, 4, 1))
    data = PreferenceData(batch_size=8, sequence_length=64, tokenizer=config.data.tokenizer)
    single = trace_step(tiny((1, 4, 1), sequence_length=64), SLICE)
    step = trace_step(training(replace(config, data=data), preference=DPO()), SLICE)
    assert step.batch["inputs"].shape == (8, 2, 64)
    assert step.tokens == 2 * single.tokens
    assert work_of(step.config, SLICE).products == pytest.approx(
        2 * work_of(single.config, SLICE).products
    )
    assert "the model itself" in next(notes_of(step))
    parameters = trace_step(replace(config, model=model), SLICE).train_program.state_shapes.params
    held = bytes_per_device(parameters)
    other = training(step.config, preference=DPO(reference=str(folder)))
    assert f"its parameters take {short_bytes(held)} of each device" in next(
        notes_of(trace_step(other, SLICE))
    )
    unknown = training(step.config, preference=DPO(reference="runs/none"))
    assert "time and memory are not counted" in next(notes_of(trace_step(unknown, SLICE)))


@pytest.mark.slow
def test_a_dual_encoder_is_planned(monkeypatch):
    monkeypatch.setattr(search, "MOST_TRACES", 1)
    monkeypatch.setattr(search, "largest_batch", lambda *_: 64)
    made = report.plan(dual_encoder(remat="full"), SLICE, compiling=False, progress=lambda _: None)
    assert made.fits
    assert "tokens" in made.notes[0]
    remat = made.best.config.model.text.remat
    assert made.best_options.endswith(f"--model.text.remat {remat} --model.image.remat {remat}")


@pytest.mark.slow
def test_rows_that_are_compared_are_not_cut_into_parts(monkeypatch):
    monkeypatch.setattr(search, "MOST_TRACES", 3)
    config = dual_encoder(2**14)
    needed = evaluate(config, SLICE).memory.peak
    found = best(config, shrunk(SLICE, 0.9 * needed))
    assert all(each.config.train.gradient_accumulation == 1 for each in found)


@pytest.mark.slow
def test_the_largest_batch_of_compared_rows_is_found_though_memory_grows_with_their_square():
    config = dual_encoder()
    rows = largest_batch(config, shrunk(SLICE, 2e9))
    assert 0.8 * 2e9 < evaluate(dual_encoder(rows), SLICE).memory.peak <= 2e9


@pytest.mark.slow
def test_a_composite_is_planned(monkeypatch):
    config = tiny((1, 4, 1))
    even = EVEN | {"vocab_size": 2048}
    model = tiny_composite(tiny_encoder(**even), **even)
    data = replace(config.data, objective=SpanCorruption(), sequence_length=16, batch_size=64)
    monkeypatch.setattr(search, "MOST_TRACES", 1)
    found = best(replace(config, model=model, data=data), SLICE)
    assert found[0].fits


@pytest.mark.parametrize(
    ("remat", "words"),
    [
        (RematNames(save=("attention_context",)), "remat save attention_context"),
        (RematNames(offload=("mlp_hidden",)), "remat offload mlp_hidden"),
        (RematNames(), "remat full"),
    ],
)
@pytest.mark.quick("remat1-remat offload mlp_hidden")
def test_activations_that_are_named(remat, words, monkeypatch):
    monkeypatch.setattr(search, "MOST_TRACES", 1)
    config = tiny((1, 4, 1), remat)
    assert words in evaluate(config, SLICE).name
    tried = {each.model.remat for each in search._candidates(config, SLICE)}
    assert tried == {"none", "dots", "full", remat}
    step = trace_step(config, SLICE)
    model, tokens = config.model, step.tokens / 4
    width = model.mlp_dim * (2 if model.feed_forward.gated else 1) * model.dtype.itemsize
    size = model.num_layers * tokens * width if remat.offload else 0
    notes = [f"{short_bytes(size)} of activations"] if size else []
    assert [note[: len(notes[0])] for note in notes_of(step)] == notes
