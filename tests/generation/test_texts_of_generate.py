"""`jaxformer.generate`: the tokens of every system, their scores, beams and drafts."""

import jax
import numpy as np
import pytest
from generate_cases import NEW, padded_on_the_right, prompts, theirs
from saved_folders import save_tiny

import jaxformer
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.errors import ConfigError
from jaxformer.hub.model_format import CountedByIds
from jaxformer.hub.tasks.classes import CausalLMTask, Seq2SeqLMTask, UnshiftedCausalLMTask
from jaxformer.parity.reference import save_random
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.more

GENERATIVE = [
    (format, architecture)
    for format in FORMATS.values()
    for architecture in format.architectures
    # Composites are in test_captions, and Whisper is in test_whisper.
    if isinstance(architecture.task, CausalLMTask | Seq2SeqLMTask)
    and format.bind is None
    and format.model_type != "whisper"
]
CAUSAL = [each for each in GENERATIVE if isinstance(each[1].task, CausalLMTask)]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("format", "architecture"), GENERATIVE, ids=[each.name for _, each in GENERATIVE]
)
@pytest.mark.quick("GPT2LMHeadModel", "T5*")
def test_greedy_text_is_that_of_transformers(format, architecture, tmp_path):
    torch = pytest.importorskip("torch")
    folder = tmp_path / "model"
    save_random(format.model_type, architecture.name, folder)
    ours = jaxformer.load(folder)
    inputs, count = prompts(ours.config.vocab_size), NEW
    if ours.config.position.changes_at(np.ones(1)) is not None:
        # There such frequencies depend on the longest row, and on what was asked before. Ours are
        # those of the full pass, see test_engine.
        inputs, count = {name: array[1:2] for name, array in inputs.items()}, 1
    options = {"do_sample": False, "max_new_tokens": count}
    if isinstance(format.positions, CountedByIds):
        # generate() of transformers counts from 0, its forward pass from behind the padding's id.
        padding, real = ours.config.embeddings.padding_id, inputs["attention_mask"]
        options["position_ids"] = torch.tensor(padding + np.cumsum(real, axis=1) * real)
    if isinstance(architecture.task, UnshiftedCausalLMTask):
        # Transformers counts padding as positions in these. Ours are those of the row alone.
        inputs = {name: array[1:2] for name, array in inputs.items()}
    expected = theirs(folder, architecture.name, inputs, **options)
    found = jaxformer.generate(ours, inputs, max_new_tokens=count, output_scores=True)
    np.testing.assert_array_equal(found["sequences"], expected.sequences.numpy())
    scores = np.stack([each.numpy() for each in expected.scores])
    largest = np.abs(np.where(np.isfinite(scores), scores, 0)).max()
    np.testing.assert_allclose(found["scores"], scores, atol=2e-5 * largest)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("format", "architecture"),
    CAUSAL,
    ids=[each.name for _, each in CAUSAL],
)
@pytest.mark.slow
def test_every_step_is_that_of_the_full_pass(format, architecture, tmp_path):
    save_random(format.model_type, architecture.name, tmp_path)
    ours = jaxformer.load(tmp_path)
    left = prompts(ours.config.vocab_size)
    for inputs in (left, padded_on_the_right(left)):
        # Without an end, since a finished row has no scores.
        ends = {"eos_token_id": None, "forced_eos_token_id": None}
        options = {"max_new_tokens": 4, "output_scores": True} | ends
        found = jaxformer.generate(ours, inputs, **options)
        count = found["scores"].shape[0]
        mask = np.concatenate([inputs["attention_mask"], np.ones((3, count), int)], axis=1)
        for row in range(3):
            for step in range(count):
                # A text so far, alone: a frequency may depend on its length.
                text = found["sequences"][row, : 9 + step][mask[row, : 9 + step] > 0]
                logits = jaxformer.forward(ours, {"input_ids": text[None]})["logits"][0, -1]
                largest = np.abs(logits).max()
                np.testing.assert_allclose(found["scores"][step, row], logits, atol=1e-5 * largest)


def test_scores_of_continuations(gpt2):
    inputs = prompts(131)
    greedy = jaxformer.generate(gpt2, inputs, max_new_tokens=4)
    said = greedy["sequences"][:, 9:]
    other = said.copy()
    other[:, -1] = (said[:, -1] + 1) % 131
    found = jaxformer.score(
        gpt2, inputs, [[list(a), list(b)] for a, b in zip(said, other, strict=True)]
    )
    for row, (one, two) in enumerate(found):
        np.testing.assert_allclose(one.token_log_probs, greedy["log_probs"][row], atol=1e-4)
        assert one.is_greedy
        assert not two.is_greedy


def test_beams_are_laid_out_alike(t5):
    options = {"max_new_tokens": 5, "num_beams": 3, "num_return_sequences": 2}
    found = jaxformer.generate(t5, prompts(131), **options)
    assert found["sequences"].shape[0] == 6
    assert (np.diff(found["sequences_scores"].reshape(3, 2), axis=1) <= 0).all()


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "seed": 4}])
@pytest.mark.more
@pytest.mark.quick("options0")
def test_a_draft_changes_no_greedy_text(gpt2, tmp_path, options):
    draft = jaxformer.load(save_tiny("gpt2", tmp_path / "draft", "LMHeadModel", n_layer=1))
    asked = {"max_new_tokens": NEW, **options}
    found = jaxformer.generate(gpt2, prompts(131), draft=draft, proposals=3, **asked)
    assert found["sequences"].shape == (3, 9 + NEW)
    if not options:
        alone = jaxformer.generate(gpt2, prompts(131), **asked)
        np.testing.assert_array_equal(found["sequences"], alone["sequences"])


def test_a_draft_must_fit(gpt2, t5, tmp_path):
    other = jaxformer.load(save_tiny("gpt2", tmp_path / "other", "LMHeadModel", vocab_size=17))
    for draft, options, message in (
        (other, {}, "vocabulary has 17"),
        (gpt2, {"num_beams": 2}, "num_beams = 2"),
        (t5, {}, "both models must be decoders"),
    ):
        with pytest.raises(ConfigError, match=message):
            jaxformer.generate(gpt2, prompts(131), draft=draft, max_new_tokens=4, **options)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_here")
@pytest.mark.parametrize(
    ("kind", "options"), [("llama", {}), ("llama", {"num_beams": 3}), ("t5", {})]
)
def test_tokens_of_prompts_may_be_on_several_devices(kind, options, tmp_path):
    folder = save_tiny(kind, tmp_path / "model")
    tokens = np.random.default_rng(0).integers(5, 120, (2, 12))
    real = np.arange(12) >= 5 * np.arange(2)[:, None]
    inputs = {"input_ids": tokens, "attention_mask": real.astype(int)}
    mesh = make_mesh(MeshConfig(sequence=4), jax.devices()[:4])
    expected, actual = (
        jaxformer.generate(model, inputs, max_new_tokens=5, **options)["sequences"]
        for model in (jaxformer.load(folder), jaxformer.load(folder, mesh=mesh))
    )
    np.testing.assert_array_equal(actual, expected)
