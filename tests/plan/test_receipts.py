"""Receipts: what they keep, and that recipes need no more memory than theirs say."""

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import jax
import numpy as np
import plan_receipt as receipts
import pytest
from pods import CHIP, GIB, bytes_of, custom_calls

from jaxformer.distributed import make_mesh
from jaxformer.distributed.compiler_options import has_sparse_cores
from jaxformer.distributed.slices import parse_chips
from jaxformer.errors import DataError
from jaxformer.plan import compiler
from jaxformer.plan.compiler import compile_step
from jaxformer.plan.memory import ERROR
from jaxformer.training.step import TrainProgram

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[2]
FILE = ROOT / "benchmarks" / "results" / "plan_receipts.json"
KEPT = receipts.read(FILE)
# The last size of each recipe, whose prediction `make test-tpu` makes again; the others are slow.
LAST_SIZES = {recipe.partition(":")[0]: recipe for recipe in KEPT}.values()
# Compiled again by `make test-tpu`: large and small, on chips without SparseCores and with them.
COMPILED_AGAIN = ("gpt2.py:small", "gpt3.py:medium", "llama.py:llama3-8b")


def spec_of(receipt):
    return str(ROOT / "configs" / receipt.recipe)


@lru_cache
def compiled_again(recipe):
    """The experiment of a recipe, its slice and the step that is compiled for it."""
    receipt = KEPT[recipe]
    config, slice_ = receipts.experiment(spec_of(receipt), receipt.mesh), parse_chips(receipt.chips)
    return config, slice_, compile_step(config, slice_)


def sent(collectives):
    """Bytes by kind."""
    total = Counter()
    for each in collectives:
        total[each["kind"]] += each["bytes"]
    return total


def test_a_file_of_receipts_is_read_back(tmp_path):
    receipts.write(tmp_path / "kept.json", KEPT)
    assert receipts.read(tmp_path / "kept.json") == KEPT


@pytest.mark.parametrize("text", ["", "{}", '{"receipts": [{}]}', '{"receipts": [{"recipe": 1}]}'])
def test_what_is_no_file_of_receipts_is_refused(tmp_path, text):
    path = tmp_path / "kept.json"
    path.write_text(text)
    with pytest.raises(DataError, match="must be a file of receipts"):
        receipts.read(path)


def test_the_closed_form_predicts_nine_of_ten_peaks():
    assert all(receipt.fits for receipt in KEPT.values())
    errors = [abs(receipt.ratio - 1) for receipt in KEPT.values()]
    assert np.quantile(errors, 0.9) <= ERROR
    assert max(errors) < 0.3


@pytest.mark.parametrize("receipt", KEPT.values(), ids=KEPT)
def test_on_sparse_cores_products_do_not_go_around_a_ring(receipt):
    bytes_of = sent(receipt.collectives)
    if has_sparse_cores(parse_chips(receipt.chips).chip.device_kind):
        assert bytes_of["collective-permute"] < 0.1 * bytes_of.total()


@pytest.mark.slow
@pytest.mark.parametrize(
    "receipt",
    [
        pytest.param(KEPT[name], id=name, marks=[pytest.mark.tpu_compiler] * (name in LAST_SIZES))
        for name in KEPT
    ],
)
def test_the_closed_form_still_predicts_what_it_did(receipt):
    now = receipts.predicted(receipt, spec_of(receipt))
    assert now.predicted_bytes == pytest.approx(receipt.predicted_bytes, rel=receipts.GROWTH - 1)


@pytest.mark.slow
@pytest.mark.tpu_compiler
@pytest.mark.skipif(not compiler.is_installed(), reason="needs libtpu")
@pytest.mark.parametrize("recipe", COMPILED_AGAIN)
def test_a_recipe_needs_and_sends_no_more_than_its_receipt_says(recipe):
    receipt, (_, _, step) = KEPT[recipe], compiled_again(recipe)
    assert step.peak_bytes < receipts.GROWTH * receipt.peak_bytes
    assert step.fits == receipt.fits
    kept = sent(receipt.collectives)
    for kind, size in sent(each._asdict() for each in step.collectives).items():
        assert size < receipts.GROWTH * kept[kind] + 0.01 * kept.total()


@pytest.mark.slow
@pytest.mark.tpu_compiler
@pytest.mark.skipif(not compiler.is_installed(), reason="needs libtpu")
def test_llama_3_8b_fits_64_chips():
    config, slice_, step = compiled_again("llama.py:llama3-8b")
    devices = compiler.topology_devices(slice_)
    mesh = make_mesh(config.mesh, devices)
    program = TrainProgram(config.model, config.optimizer, config.train, mesh)
    rows, length = config.data.batch_size, config.data.sequence_length
    text = program.lower(rows, config.row_lengths).as_text()
    assert custom_calls(text) == 4
    # The state, donated, is the only thing that stays: parameters, two moments, the batch.
    donated = text.count("tf.aliasing_output") + text.count("jax.buffer_donor")
    assert donated >= len(jax.tree.leaves(program.state_shapes))
    _, share = bytes_of(program.state_shapes)
    assert step.argument_bytes < 1.02 * share
    # With full remat a layer keeps its input; the loss has a chunk of logits and their gradients.
    model = config.model
    inputs_of_layers = model.num_layers * model.model_dim * 2 * rows * length // len(devices)
    logits = 4 * model.vocab_size * config.train.loss_chunk * rows // len(devices)
    assert step.temporary_bytes < inputs_of_layers + 3 * logits + 8 * GIB
    assert step.argument_bytes + step.temporary_bytes < CHIP


@pytest.mark.slow
@pytest.mark.tpu_compiler
@pytest.mark.skipif(not compiler.is_installed(), reason="needs libtpu")
def test_the_peak_is_that_of_the_finished_program(tmp_path):
    receipt = KEPT["gpt2.py:small"]
    config, slice_ = receipts.experiment(spec_of(receipt), receipt.mesh), parse_chips(receipt.chips)
    # Generating the code of the whole model would take minutes.
    model = replace(config.model, num_layers=2, model_dim=256, mlp_dim=512, num_heads=4)
    config = replace(config, model=model)
    memory = compiler.compile_into(tmp_path, config, slice_)
    step = compiler.read_dump(tmp_path, config, slice_)
    assert step.peak_bytes == memory.peak_memory_in_bytes
    # The finished program also has scalars of its kernels.
    assert step.temporary_bytes == pytest.approx(memory.temp_size_in_bytes, rel=1e-4)


def test_growth_is_measured_against_the_receipt():
    receipt = next(iter(KEPT.values()))
    larger = replace(receipt, predicted_bytes=2 * receipt.peak_bytes)
    assert larger.ratio == 2
    assert f"({larger.ratio:.2f})" in receipts.line(larger)
