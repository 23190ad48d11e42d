"""ONNX: graphs for any number of rows and tokens, with the cache of a decoder."""

import json

import numpy as np
import pytest
from engine_exports import exported
from saved_folders import save_tiny

from jaxformer.cli import main as cli
from jaxformer.engines.onnx import DECODER, ENCODER, FILE, WITH_PAST
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward


@pytest.mark.torch
@pytest.mark.parametrize("name", ["onnx", "stablehlo"])
def test_a_head_with_two_outputs_is_refused(name, tmp_path, capsys):
    folder = save_tiny("bert", tmp_path / "bert", "ForQuestionAnswering")
    assert cli.main(["export", str(folder), str(tmp_path / "out"), "--format", name]) == 2
    assert "BertForQuestionAnswering has end_logits, start_logits" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.torch
def test_rows_of_any_number_and_length_and_a_cache(tmp_path):
    pytest.importorskip("onnxscript")
    _, out = exported("llama", tmp_path, "onnx")
    model = load(tmp_path / "hf")
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(out / FILE, providers=["CPUExecutionProvider"])
    pasts = [each.name for each in session.get_inputs() if each.name.startswith("past_key_values")]
    assert pasts == [f"past_key_values.{n}.{part}" for n in (0, 1) for part in ("key", "value")]
    assert json.loads((out / "config.json").read_text())["model_type"] == "llama"
    assert (out / "tokenizer.json").is_file()
    outputs = [each.name for each in session.get_outputs()]

    def run(ids, start, past):
        positions = np.broadcast_to(np.arange(start, start + ids.shape[1]), ids.shape)
        mask = np.ones((len(ids), start + ids.shape[1]), np.int64)
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **past}
        found = dict(zip(outputs, session.run(None, inputs), strict=True))
        return found["logits"], {
            name: found[name.replace("past_key_values", "present")] for name in pasts
        }

    for rows, length in ((1, 7), (3, 5)):
        ids = np.random.default_rng(rows).integers(0, 320, (rows, length))
        right = forward(model, {"input_ids": ids.astype(np.int32)})["logits"]
        empty = dict.fromkeys(pasts, np.zeros((rows, 2, 0, 16), np.float32))
        logits, cache = run(ids[:, :3], 0, empty)
        np.testing.assert_allclose(logits, right[:, :3], atol=2e-5)
        logits, _ = run(ids[:, 3:], 3, cache)
        np.testing.assert_allclose(logits, right[:, 3:], atol=2e-5)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    "kind", ["t5", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bart", "whisper"))]
)
def test_sources_of_unequal_length_and_their_answers(kind, tmp_path):
    pytest.importorskip("onnxscript")
    _, out = exported(kind, tmp_path, "onnx")
    model = load(tmp_path / "hf")
    runtime = pytest.importorskip("onnxruntime")

    def run(name, arrays):
        session = runtime.InferenceSession(out / name, providers=["CPUExecutionProvider"])
        feeds = {each.name: arrays[each.name] for each in session.get_inputs()}
        names = [each.name for each in session.get_outputs()]
        return dict(zip(names, session.run(None, feeds), strict=True))

    random, rows = np.random.default_rng(0), 3
    answers = random.integers(2, 320, (rows, 5))
    if kind == "whisper":  # its encoder has no mask: silence is heard
        frames = (model.config.encoder.num_mel_bins, model.config.encoder.num_frames)
        source = {"input_features": random.normal(size=(rows, *frames)).astype(np.float32)}
        source["input_features"][1, :, 40:] = -1.0
        given = {}
    else:
        mask = np.arange(7) < np.array([[7], [4], [2]])
        ids = np.where(mask, random.integers(2, 320, mask.shape), 1)
        source = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
        given = {"encoder_attention_mask": source["attention_mask"]}
    inputs = {name: x.astype(np.int32) if x.dtype == int else x for name, x in source.items()}
    right = forward(model, inputs | {"decoder_input_ids": answers.astype(np.int32)})["logits"]

    given["encoder_hidden_states"] = run(ENCODER, source)["last_hidden_state"]
    first = run(DECODER, given | {"input_ids": answers[:, :3]})
    np.testing.assert_allclose(first["logits"], right[:, :3], atol=1e-5)
    given |= {name.replace("present", "past_key_values"): x for name, x in first.items()}
    later = run(WITH_PAST, given | {"input_ids": answers[:, 3:]})
    np.testing.assert_allclose(later["logits"], right[:, 3:], atol=1e-5)
