"""Greedy translations: as in transformers, and a fixed point of teacher forcing, on all meshes."""

from types import SimpleNamespace

import hf_mapping
import jax
import numpy as np
import pytest
from corpora import write_rows
from tiny_models import random_parameters, scores_of, tiny_encoder_decoder
from train_steps import on_devices, program_of

from jaxformer.data import Bytes, TrainTokenizer
from jaxformer.data.tasks import WER, AnswerText, ParallelText, SummaryText
from jaxformer.data.tokenizers.specs import ByteTokenizer
from jaxformer.models.heads.metrics import answer_scores, error_scores, summary_scores
from jaxformer.nn import VocabularyLogits
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.training.evaluation.conclusion import GeneratedText, shown
from jaxformer.training.evaluation.evaluate import Evaluator
from jaxformer.training.evaluation.generated_text import generate_texts

pytestmark = pytest.mark.more

ROWS, LENGTH, START, PAD, END = 6, 9, 1, 1, 2


class Letters(ByteTokenizer):
    """Shows the tokens themselves."""

    def __init__(self, end):
        self.end_of_text_id = end

    def decode(self, ids):
        return " ".join(map(str, np.asarray(ids).tolist()))


def sources(rows=ROWS, vocab_size=31, seed=0):
    """A batch of parallel text whose targets are not to be looked at."""
    random = np.random.default_rng(seed)
    lengths = random.integers(3, 8, rows)[:, None]
    valid = np.arange(7) < lengths
    decoder_inputs = random.integers(3, vocab_size, (rows, LENGTH))
    decoder_inputs[:, 0] = START
    return {
        "inputs": np.where(valid, random.integers(3, vocab_size, valid.shape), PAD).astype("i4"),
        "segments": valid.astype(np.int32),
        "decoder_inputs": decoder_inputs.astype(np.int32),
        "row": np.arange(rows, dtype=np.int32)[::-1],
    }


def translated(config, params, batch, mesh=(1, 1, 1), end=END):
    """The tokens of each translation, up to the end of the text."""
    program = program_of(config, mesh)
    params = on_devices(program, params)
    placed = jax.device_put(batch, program.batch_sharding)
    pairs = [(f"source {n}", f"target {n}") for n in range(len(batch["row"]))]
    references = [(target,) for _, target in pairs]
    examples = SimpleNamespace(pairs=pairs, references=references, given=1)
    found = generate_texts(program, params, [placed], examples, Letters(end))
    real = [row for row in batch["row"] if row >= 0]
    assert [item[:2] for item in found] == [pairs[row] for row in real]
    return [list(map(int, item.text.split())) for item in found]


def teacher_forced(config, params, batch, texts):
    """The likeliest token after each of some texts' tokens, all computed at once."""
    forced = np.full((len(texts), LENGTH), PAD, np.int32)
    for row, text in zip(forced, texts, strict=True):
        row[: len(text) + 1] = [START, *text][:LENGTH]
    scores = scores_of(config, params, batch | {"decoder_inputs": forced})
    return np.asarray(scores["language_model"].argmax(-1)).tolist()


def assert_likeliest(config, params, batch, texts):
    """Each token is the likeliest after those before it."""
    for text, likeliest in zip(texts, teacher_forced(config, params, batch, texts), strict=True):
        assert likeliest[: len(text) + 1] == [*text, END][:LENGTH]


def ending_parameters(config):
    """Random parameters of a model that ends some texts early and some late."""
    params = random_parameters(config)
    params["heads.language_model.bias"] = params["heads.language_model.bias"].at[END].add(3.0)
    return params


SMALL = {"num_layers": 1, "num_decoder_layers": 2}
CONFIG = tiny_encoder_decoder(
    vocab_size=32,
    model_dim=24,
    num_heads=8,
    num_kv_heads=4,
    mlp_dim=16,
    logits=VocabularyLogits(bias=True),
    **SMALL,
)


def test_each_token_is_the_likeliest_after_those_before_it():
    params, batch = ending_parameters(CONFIG), sources()
    texts = translated(CONFIG, params, batch)
    assert_likeliest(CONFIG, params, batch, texts)
    lengths = {len(text) for text in texts}
    assert LENGTH in lengths, "one that fills the row"
    assert min(lengths) < LENGTH - 1, "and one that ends before"


@pytest.mark.parametrize("mesh", [(8, 1, 1), (2, 2, 2), (1, 1, 4)])
@pytest.mark.slow
def test_every_mesh_writes_the_same(mesh):
    params, batch = ending_parameters(CONFIG), sources(rows=8)
    batch["row"][-2:] = -1  # rows that only fill the batch
    assert translated(CONFIG, params, batch, mesh) == translated(CONFIG, params, batch)


@pytest.mark.slow
def test_decoders_with_a_table_of_their_own():
    for tied in (True, False):
        config = tiny_encoder_decoder(share_embeddings=False, tie_embeddings=tied, **SMALL)
        params, batch = random_parameters(config), sources()
        assert_likeliest(config, params, batch, translated(config, params, batch))


@pytest.mark.torch
def test_translations_are_those_of_transformers(tmp_path):
    import torch

    tokens = {"pad_token_id": PAD, "decoder_start_token_id": START, "eos_token_id": None}
    fields = TINY["t5"] | tokens | {"vocab_size": 53}
    theirs = hf_mapping.random_model("T5ForConditionalGeneration", fields)
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path, dtype=None, compute_dtype="float32")
    batch = sources(rows=16, vocab_size=53)
    written = theirs.generate(
        torch.tensor(batch["inputs"]).long(),
        attention_mask=torch.tensor(batch["segments"]).long(),
        max_new_tokens=LENGTH,
        do_sample=False,
        num_beams=1,
    )
    written = written[:, 1:].tolist()
    end = written[0][5]  # a token that comes up, to end the texts
    expected = [row[: row.index(end)] if end in row else row for row in written]
    assert len({len(row) for row in expected}) > 2
    assert translated(ours.config, ours.parameters, batch, end=end) == expected


@pytest.fixture
def data(tmp_path):
    """Thirteen pairs, so that the last batch is not full."""
    files = {name: str(tmp_path / name) for name in ("source", "target")}
    for name, line in (("source", "number {}\n"), ("target", "Zahl\t{} \n")):
        (tmp_path / name).write_text("".join(map(line.format, range(13))))
    return ParallelText(
        **files,
        **{f"validation_{name}": file for name, file in files.items()},
        tokenizer=TrainTokenizer(kind="bpe", vocab_size=300),
        source_length=12,
        target_length=12,
        batch_size=4,
        max_validation_batches=None,
    )


def test_a_run_ends_with_translations_of_every_source(data, tmp_path):
    prepared, said = data.prepare(tmp_path / "run"), []
    end = concluded(prepared, said.append, vocab_size=300)
    assert said == ["writing translations for 13 validation sources"]
    assert [item[:2] for item in end.texts] == prepared.validation.examples.pairs
    assert set(end.metrics) == {"loss", "bleu", "chrf"}
    files = end.save(tmp_path / "evaluation.json", tmp_path, data)
    assert [file.name for file in files] == ["evaluation.json", "translations.txt"]
    header, *lines = files[1].read_text().split("\n")[:-1]
    assert header == "source\treference\ttranslation"
    assert lines[3].startswith("number 3\tZahl 3\t")
    assert all(line.count("\t") == 2 for line in lines)
    assert len(lines) == 13
    files = end.save(tmp_path / "dev.json", tmp_path, data)
    assert [file.name for file in files] == ["dev.json", "dev-translations.txt"]


def concluded(prepared, say=lambda _: None, vocab_size=264):
    """The end of a run of random parameters on prepared data."""
    model = tiny_encoder_decoder(vocab_size=vocab_size, **SMALL)
    program = program_of(model)
    params = on_devices(program, random_parameters(model))
    return Evaluator(program, prepared, None).conclude(params, 5, say, {"loss": 1.0})


def data_of(kind, folder, rows):
    file = write_rows(folder / "rows.jsonl", rows)
    fields = {"source_length": 64, "target_length": 12, "batch_size": 4}
    return kind(train=file, validation=file, tokenizer=Bytes(), **fields)


def test_a_run_ends_with_summaries_and_rouge(tmp_path):
    rows = [{"document": f"Story {n}", "summary": f"It is {n}"} for n in range(5)]
    data = data_of(SummaryText, tmp_path, rows)
    end = concluded(data.prepare(tmp_path / "run"))
    assert [item.reference for item in end.texts] == [row["summary"] for row in rows]
    assert end.texts[2].source == "summarize: Story 2"
    assert set(end.metrics) == {"loss", "rouge1", "rouge2", "rougeL", "rougeLsum"}
    texts, wanted = [t.text for t in end.texts], [t.reference for t in end.texts]
    assert summary_scores(texts, wanted).items() <= end.metrics.items()
    assert WER().scores(texts, [t.references for t in end.texts]) == error_scores(texts, wanted)
    files = end.save(tmp_path / "evaluation.json", tmp_path, data)
    assert files[1].name == "summaries.txt"
    assert files[1].read_text().startswith("source\treference\tsummary\n")


def test_a_run_ends_with_answers(tmp_path):
    rows = [
        {"question": "Who?", "context": "He did.", "answers": {"text": [], "answer_start": []}},
        {"question": "Who?", "context": "Ann.", "answers": {"text": ["Ann"], "answer_start": [0]}},
    ]
    data = data_of(AnswerText, tmp_path, rows)
    end = concluded(data.prepare(tmp_path / "run"))
    assert [item.references for item in end.texts] == [(), ("Ann",)]
    expected = answer_scores([t.text for t in end.texts], [[], ["Ann"]])
    assert {"exact_match", "f1"} == set(expected)
    assert expected.items() <= end.metrics.items()
    files = end.save(tmp_path / "evaluation.json", tmp_path, data)
    assert files[1].name == "answers.txt"


def test_a_few_are_shown():
    many = [GeneratedText(f"a{n}", f"b{n}", f"c{n}") for n in range(20)]
    text = shown(many, "translation")
    assert text.count("source") == 5
    assert text.startswith("source       a0\nreference    b0\ntranslation  c0\n\nsource       a4\n")
    assert shown(many[:2], "translation").count("source") == 2
