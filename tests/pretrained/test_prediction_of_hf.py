"""Predictions of Hugging Face checkpoints equal those of the pipelines of transformers."""

import json
import shutil

import numpy as np
import pytest
from hf_checkpoints import LABELS, SENTENCES, save_checkpoint

from jaxformer.data.files.record import Record
from jaxformer.errors import ConfigError, DataError
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor

pytestmark = pytest.mark.torch

TEXTS = [*SENTENCES[:7], "lake", "Zürich's théorem U.N. 10:45!", "She paints " * 20]
TEXTS += ["[SEP] is [MASK]ed <|im_end|>"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Saves a kind of checkpoint once; changes are fields of its configuration."""
    home = tmp_path_factory.mktemp("models")

    def save(kind, **changes):
        folder = home / "-".join([kind, *(f"{k}={v}" for k, v in changes.items())])
        return folder if folder.exists() else save_checkpoint(kind, folder, **changes)

    return save


def records(texts, column="text"):
    return [Record(f"in.csv:{n}", {column: text}) for n, text in enumerate(texts, start=2)]


def predicted(folder, rows, **options):
    config = PredictionConfig(**{"batch_size": 4} | options)
    return open_predictor(folder, config).predict(rows)


def pipeline(task, folder, **options):
    transformers = pytest.importorskip("transformers")
    return transformers.pipeline(task, model=str(folder), **options)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("bert_classifier", {}),
        ("bert_classifier", {"problem_type": "multi_label_classification"}),
        ("llama_classifier", {}),
        ("llama_classifier", {"pad_token_id": None}),
        ("gpt2_classifier", {"pad_token_id": None}),
    ],
    ids=str,
)
@pytest.mark.quick("bert_classifier-{}", "llama*")
def test_labels_and_scores_are_those_of_the_pipeline(saved, kind, changes):
    folder = saved(kind, **changes)
    found = predicted(folder, records(TEXTS), scores=True)
    reference = pipeline("text-classification", folder)
    for text, row in zip(TEXTS, found, strict=True):
        wanted = {
            each["label"]: each["score"] for each in reference(text, top_k=None, truncation=True)
        }
        assert row["label"] == max(wanted, key=wanted.get)
        assert row["score"] == max(row[f"score_{label}"] for label in wanted)
        for label, score in wanted.items():
            assert row[f"score_{label}"] == pytest.approx(score, abs=1e-5), (text, label)


@pytest.mark.parametrize("names", [None, ["input_ids", "token_type_ids", "attention_mask"]])
@pytest.mark.quick("None")
def test_a_pair_of_texts(saved, tmp_path, names):
    folder = shutil.copytree(saved("bert_classifier"), tmp_path / "model")
    if names is not None:
        file = folder / "tokenizer_config.json"
        settings = json.loads(file.read_text()) | {"model_input_names": names}
        file.write_text(json.dumps(settings))
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    rows = [Record("x", {"sentence1": a, "sentence2": b, "id": 1}) for a, b in pairs]
    classify = pipeline("text-classification", folder)
    for (text, pair), row in zip(pairs, predicted(folder, rows), strict=True):
        wanted = classify({"text": text, "text_pair": pair}, truncation=True)
        assert row["label"] == wanted["label"]
        assert row["score"] == pytest.approx(wanted["score"], abs=1e-5)


@pytest.mark.more
def test_a_single_output_is_a_number(saved):
    folder = saved("bert_classifier", num_labels=1, problem_type="regression", id2label={0: "x"})
    wanted = pipeline("text-classification", folder)(TEXTS, truncation=True)
    for row, each in zip(predicted(folder, records(TEXTS)), wanted, strict=True):
        assert row == {"score": pytest.approx(each["score"], abs=1e-5)}


NER = {0: "O", 1: "B-PER", 2: "I-PER"}


@pytest.mark.parametrize("kind", ["bert_tagger", "gpt2_tagger"])
@pytest.mark.quick("bert_tagger")
def test_entities_are_those_of_the_pipeline(saved, kind):
    folder = saved(kind, id2label=NER, label2id={name: key for key, name in NER.items()})
    texts = TEXTS[:9]
    found = predicted(folder, records(texts), scores=True)
    reference = pipeline("token-classification", folder, aggregation_strategy="first")
    kinds = set()
    for text, row in zip(texts, found, strict=True):
        wanted = reference(text)
        assert [(e["start"], e["end"], e["entity_group"]) for e in row["entities"]] == [
            (e["start"], e["end"], e["entity_group"]) for e in wanted
        ]
        scores = [float(e["score"]) for e in wanted]
        np.testing.assert_allclose([e["score"] for e in row["entities"]], scores, atol=1e-5)
        assert all(e["word"] == text[e["start"] : e["end"]] for e in row["entities"])
        assert len(row["words"]) == len(row["tags"]) == len(row["tag_scores"])
        kinds |= set(row["tags"])
    assert len(kinds) > 1


@pytest.mark.more
def test_words_have_the_tag_of_their_first_piece(saved):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = saved("bert_tagger")
    rows = [text.split() for text in TEXTS[:9]] + [["U.N.", "painting" * 3, "lake"]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    found = predicted(folder, [Record("x", {"tokens": words}) for words in rows])
    for words, row in zip(rows, found, strict=True):
        inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            best = model(**inputs).logits[0].argmax(-1)
        places = [inputs.word_ids().index(number) for number in range(len(words))]
        assert row == {"tags": [model.config.id2label[int(best[place])] for place in places]}


def test_words_beyond_the_cut_have_no_tag(saved):
    predictor = open_predictor(saved("bert_tagger"), PredictionConfig(max_length=8))
    (row,) = predictor.predict([Record("x", {"words": ["lake"] * 9})])
    known = [tag is not None for tag in row["tags"]]
    assert known == sorted(known, reverse=True)
    assert 0 < sum(known) < 9
    assert (predictor.cut, predictor.count) == (1, 1)


def reference_answer(folder, question, context, null):
    """The algorithm of transformers 4's question-answering pipeline, in one window."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder)
    encoded = tokenizer(question, context, return_tensors="pt")
    with torch.no_grad():
        outputs = model(**encoded)
    inside = np.array([side == 1 for side in encoded.sequence_ids()])
    allowed = inside.copy()
    allowed[0] = True
    sides = []
    for logits in (outputs.start_logits, outputs.end_logits):
        logits = np.where(allowed, logits[0].numpy(), -1e4)
        sides.append(np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum())
    nothing = sides[0][0] * sides[1][0]
    best = max(
        (sides[0][i] * sides[1][j], -i, -j)
        for i in np.flatnonzero(inside)
        for j in range(i, min(i + 30, len(inside)))
        if inside[j]
    )
    if null and nothing > best[0]:
        return "", nothing, None, None
    start, _ = encoded.word_to_chars(encoded.token_to_word(-best[1]), sequence_index=1)
    _, end = encoded.word_to_chars(encoded.token_to_word(-best[2]), sequence_index=1)
    return context[start:end], best[0], start, end


@pytest.mark.parametrize("null", [True, False])
@pytest.mark.quick("True")
def test_answers_are_the_most_probable_spans(saved, null):
    folder = saved("bert_reader")
    asked = [
        ("Who paints?", "She paints the red boat."),
        ("What did he count at 10:45?", "The old captain counted the seventh theorem, in Zürich!"),
        ("Lake?", "lake"),
        ("Nobody?", "My neighbour's dog doesn't like the frozen lake. " * 2),
    ]
    rows = [Record("x", {"question": q, "context": c}) for q, c in asked]
    found = predicted(folder, rows, null=null)
    for (question, context), row in zip(asked, found, strict=True):
        answer, score, start, end = reference_answer(folder, question, context, null)
        assert (row["answer"], row["start"], row["end"]) == (answer, start, end)
        assert row["score"] == pytest.approx(score, abs=1e-5)


def test_a_long_context_is_read_in_windows(saved):
    folder = saved("bert_reader")
    context = " ".join(f"{sentence}" for sentence in SENTENCES[:30])
    (row,) = predicted(folder, [Record("x", {"question": "Who?", "context": context})], null=False)
    assert row["answer"] == context[row["start"] : row["end"]] != ""
    with pytest.raises(DataError, match=r"in:3: a question of .* leaves no room"):
        predicted(
            folder, [Record("in:3", {"question": "Who? " * 60, "context": "x"})], max_length=20
        )


@pytest.mark.parametrize("kind", ["bert_base", "llama", "gpt2", "t5"])
@pytest.mark.more
@pytest.mark.quick("gpt2")
def test_embeddings_are_the_pooled_states(saved, kind):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = saved(kind)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    model = getattr(model, "encoder", model) if kind == "t5" else model
    poolings = {"mean": lambda h: h.mean(0), "first": lambda h: h[0], "last": lambda h: h[-1]}
    for pooling in poolings if kind == "bert_base" else ["last" if kind == "gpt2" else "mean"]:
        options = {"pooling": pooling, "normalize": pooling == "last"}
        task = None if kind == "bert_base" else "embeddings"
        found = predicted(folder, records(TEXTS[-6:]), task=task, **options)
        for text, row in zip(TEXTS[-6:], found, strict=True):
            with torch.no_grad():
                inputs = tokenizer(text, return_tensors="pt", truncation=True)
                inputs.pop("token_type_ids", None)
                hidden = model(**inputs).last_hidden_state[0].numpy()
            wanted = poolings[pooling](hidden)
            wanted = wanted / np.linalg.norm(wanted) if pooling == "last" else wanted
            np.testing.assert_allclose(row["embedding"], wanted, atol=2e-5)


def test_the_encoder_of_a_pair_reads_rows_of_any_length(saved):
    options = {"task": "embeddings", "max_length": 8}
    (cut,) = predicted(saved("t5"), records([SENTENCES[0] * 20]), **options)
    assert np.isfinite(cut["embedding"]).all()


@pytest.mark.parametrize(
    ("kind", "advice"), [("gpt2", "jaxformer generate"), ("bert", "--init-from")]
)
def test_a_model_that_predicts_tokens_is_refused(saved, kind, advice):
    with pytest.raises(ConfigError, match=f"its head .*{advice}.*--task embeddings"):
        open_predictor(saved(kind))


def test_columns_that_are_not_there(saved):
    folder = saved("bert_classifier")
    rows = [Record("in.csv:2", {"id": "1", "body": "lake"})]
    with pytest.raises(DataError, match=r"in\.csv:2: --text .* of 'id', 'body'"):
        predicted(folder, rows)
    assert predicted(folder, rows, text=("body",)) == predicted(folder, records(["lake"]))
    with pytest.raises(DataError, match=r"in\.csv:2: no column 'text'"):
        predicted(folder, rows, text=("text",))
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {str(k): v for k, v in LABELS["id2label"].items()}
