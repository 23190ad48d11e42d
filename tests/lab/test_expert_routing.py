"""`lab experts`: the routing of a text, its statistics, their pictures and the command."""

import itertools
import json
import math

import numpy as np
import pytest
from saved_folders import save_tiny
from typed_commands import printed, refused

import jaxformer
from jaxformer.errors import ArgumentError
from jaxformer.lab.experts import routing as module
from jaxformer.lab.experts.pictures import agreement_picture, class_picture
from jaxformer.lab.experts.report import table, write_experts
from jaxformer.lab.experts.routing import CLASSES, Routing, expert_routing
from jaxformer.pretrained.inspection.tokens import Token

TEXT = "the dog runs the dog the cat runs dog dog runs the runs"


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    return save_tiny("mixtral", tmp_path_factory.mktemp("models") / "mixtral")


def random_routing(seed=0, layers=3, tokens=23, num=7, per_token=2):
    random = np.random.default_rng(seed)
    ids = random.integers(0, 6, tokens).astype(np.int32)
    ids[:2] = 90, 91  # These occur once.
    experts = np.argsort(random.normal(size=(layers, tokens, num)), axis=-1)[..., :per_token]
    return Routing(
        ids=ids,
        names=tuple(f"t{id_}" for id_ in ids),
        classes=ids % 4,
        num=num,
        layers=tuple(range(1, layers + 1)),
        experts=experts,
        entropies=random.uniform(0, 1, (layers, tokens)).astype(np.float32),
    )


def shared(one, other):
    return len(set(one.tolist()) & set(other.tolist())) / len(one)


def test_load_and_its_entropy_are_their_formulas():
    routing = random_routing()
    chosen = routing.classes == 1
    for place, experts in enumerate(routing.experts):
        for load, rows in (
            (routing.load()[place], experts),
            (routing.load(chosen)[place], experts[chosen]),
        ):
            expected = [np.sum(rows == expert) / (rows.size / 7) for expert in range(7)]
            np.testing.assert_allclose(load, expected, rtol=1e-12)
        shares = [np.mean(experts == expert) for expert in range(7)]
        entropy = -sum(share * math.log(share) for share in shares if share)
        np.testing.assert_allclose(routing.load_entropies()[place], entropy, rtol=1e-12)


def test_agreement_is_that_of_all_pairs_of_occurrences():
    routing = random_routing()
    found, chance = routing.agreements(), routing.chance()
    for place, experts in enumerate(routing.experts):
        expected = []
        for t, id_ in enumerate(routing.ids):
            others = [s for s in np.flatnonzero(routing.ids == id_) if s != t]
            shares = [shared(experts[t], experts[s]) for s in others]
            expected.append(np.mean(shares) if shares else np.nan)
        np.testing.assert_allclose(found[place], expected, rtol=1e-12)
        pairs = itertools.permutations(range(len(routing.ids)), 2)
        any_two = np.mean([shared(experts[t], experts[s]) for t, s in pairs])
        np.testing.assert_allclose(chance[place], any_two, rtol=1e-12)
        chosen = routing.classes == 1
        mean = np.nanmean(np.array(expected)[chosen])
        np.testing.assert_allclose(routing.mean_agreements(chosen)[place], mean, rtol=1e-12)


def test_agreement_is_one_where_the_token_decides_and_unknown_without_a_second_occurrence():
    routing = random_routing(tokens=8)
    by_token = {id_: routing.experts[:, t] for t, id_ in enumerate(routing.ids)}
    experts = np.stack([by_token[id_] for id_ in routing.ids], axis=1)
    decided = Routing(**vars(routing) | {"experts": experts})
    np.testing.assert_array_equal(decided.mean_agreements(), 1)
    once = Routing(**vars(routing) | {"ids": np.arange(8)})
    assert np.isnan(once.agreements()).all()
    assert np.isnan(once.mean_agreements()).all()


def test_the_tokens_of_an_expert_are_those_beyond_its_share():
    routing = random_routing()
    for place, experts in enumerate(routing.experts):
        for expert, tops in enumerate(routing.top_tokens(4)[place]):
            beyond = {}
            for id_ in np.unique(routing.ids):
                taken = np.sum(experts[routing.ids == id_] == expert)
                beyond[id_] = taken - np.sum(routing.ids == id_) * np.mean(experts == expert) * 2
            positive = sorted((b for b in beyond.values() if b > 1e-9), reverse=True)
            np.testing.assert_allclose([beyond[top.id] for top in tops], positive[:4], atol=1e-9)
            for top in tops:
                own = routing.ids == top.id
                assert (top.occurrences, top.name) == (np.sum(own), f"t{top.id}")
                assert top.routed == np.sum(experts[own] == expert)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mixtral", "deepseek_v3"])
def test_rows_are_routed_as_by_the_model_and_padding_does_not_count(kind, tmp_path):
    model = jaxformer.load(save_tiny(kind, tmp_path / kind))
    found = expert_routing(model, TEXT, length=5)
    settings = model.config.feed_forward
    ids = model.tokenizer.encode(TEXT).ids
    assert len(ids) == 13, "the last of three rows has three tokens and two of padding"
    assert found.ids.tolist() == ids
    assert found.names == tuple(TEXT.split())
    assert found.layers == tuple(range(settings.dense_layers, model.config.num_layers))
    assert found.experts.shape == (len(found.layers), 13, settings.per_token)
    names = ("*.hook_router_logits", "*.hook_expert_indices")
    for start in range(0, 13, 5):
        row = np.array([ids[start : start + 5]])
        _, cache = jaxformer.run_with_cache(model, {"input_ids": row}, names)
        for place, layer in enumerate(found.layers):
            prefix, own = f"blocks.{layer}.mlp.", slice(start, start + 5)
            experts = cache[f"{prefix}hook_expert_indices"][0]
            np.testing.assert_array_equal(found.experts[place, own], experts)
            logits = cache[f"{prefix}hook_router_logits"][0]
            probabilities = np.asarray(settings.router.probabilities(logits), np.float64)
            entropies = -np.sum(probabilities * np.log(probabilities), axis=-1)
            np.testing.assert_allclose(found.entropies[place, own], entropies, atol=1e-5)


@pytest.mark.torch
@pytest.mark.quick("mixtral")
@pytest.mark.parametrize("kind", ["mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "gpt_oss"])
def test_the_routing_is_that_of_transformers(kind, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    folder = save_tiny(kind, tmp_path / kind)
    found = expert_routing(jaxformer.load(folder), TEXT)
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        ids = torch.tensor(found.ids)[None].long()
        logits = theirs(ids, output_router_logits=True).router_logits
    assert len(logits) == len(found.layers)
    for place, each in enumerate(logits):
        probabilities = torch.softmax(each, dim=-1)
        best = probabilities.topk(found.experts.shape[-1]).indices.numpy()
        np.testing.assert_array_equal(found.experts[place], best)
        entropies = torch.distributions.Categorical(probabilities).entropy().numpy()
        np.testing.assert_allclose(found.entropies[place], entropies, atol=2e-5)


@pytest.mark.slow
def test_the_experts_of_a_token_can_be_replaced_and_have_no_gradient(mixtral):
    model = jaxformer.load(mixtral)
    inputs = {"input_ids": np.array([[1, 2, 4, 1]])}
    name = "blocks.1.mlp.hook_expert_indices"
    outputs, cache = jaxformer.run_with_cache(model, inputs, name)
    other = (cache[name] + 1) % model.config.feed_forward.num
    logits = jaxformer.run_with_hooks(model, inputs, {name: lambda _: other})["logits"]
    assert np.abs(logits - outputs["logits"]).max() > 1e-3
    gradients = jaxformer.activation_gradients(
        model, inputs, lambda outputs: outputs["logits"].sum(), "blocks.1.mlp.*"
    )
    assert list(gradients) == ["blocks.1.mlp.hook_router_logits"]


def test_tokens_have_classes_and_visible_names():
    text = "The dogs_ 42\n  (x)é"
    pieces = ["The", " dog", "s", "_", " 42", "\n  ", "(", "x", ")", "é"]
    starts = np.cumsum([0, *map(len, pieces)])
    marked = [piece.replace(" ", "Ġ") for piece in pieces]
    spans = zip(marked, starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    tokens = [Token(piece, 1, start, end, False) for piece, start, end in spans]
    tokens.append(Token("</s>", 2, None, None, True))
    word, inside, number, punctuation, space, special = CLASSES
    expected = [word, word, inside, inside, number, space, punctuation, word, punctuation, word]
    assert [module._class(token, text) for token in tokens] == [*expected, special]
    names = [module._name(token, text) for token in tokens]
    assert names[:6] == ["The", "␣dog", "s", "_", "␣42", "⏎␣␣"]
    assert names[-1] == "</s>"


@pytest.mark.more
def test_the_files_have_the_numbers(tmp_path):
    routing = random_routing()
    files = write_experts(tmp_path / "new" / "folder", "Title", "Setting.", routing)
    assert {file.name for file in files} == {
        "experts.html",
        "experts.json",
        *(f"experts-{name}.png" for name in ("load", "entropy", "agreement", "classes")),
    }
    numbers = json.loads(files[1].read_text())
    assert [layer["layer"] for layer in numbers["layers"]] == [1, 2, 3]
    np.testing.assert_allclose([x["load"] for x in numbers["layers"]], routing.load())
    assert numbers["tokens"] == 23 == sum(numbers["tokens_by_class"].values())
    page = files[0].read_text()
    assert page.count("data:image/png;base64,") == 4
    for row in table(routing):
        assert f"{row[1]:.4g}" in page


@pytest.mark.more
def test_a_text_whose_tokens_occur_once_has_pictures_too(tmp_path):
    routing = Routing(**vars(random_routing()) | {"ids": np.arange(23)})
    agreement_picture(routing)
    class_picture(routing.select([2]))
    assert [row[5] for row in table(routing)] == ["–"] * 3
    files = write_experts(tmp_path, "Title", "Setting.", routing)
    (first, *_) = json.loads(files[1].read_text())["layers"]
    assert first["same_token_agreement"] is None


@pytest.mark.slow
def test_the_command(mixtral, tmp_path, capsys):
    file = tmp_path / "text.txt"
    file.write_text(f"{TEXT}\n{TEXT}\n")
    options = ["--file", file, "--layers", "1", "--out", tmp_path / "out"]
    assert "26 tokens of text.txt" in printed(capsys, "lab", "experts", mixtral, *options)
    (layer,) = json.loads((tmp_path / "out" / "experts.json").read_text())["layers"]
    expected = expert_routing(jaxformer.load(mixtral), f"{TEXT}\n{TEXT}\n")
    np.testing.assert_allclose(layer["load"], expected.load()[1])


@pytest.mark.more
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--text"),
        (["--text", "the", "--file", "a.txt"], "--text"),
        (["--text", ""], "at least one token"),
        (["--text", "the dog", "--layers", "7"], "layers = 7"),
        (["--text", "the dog", "--length", "0"], "length = 0"),
    ],
)
@pytest.mark.quick("words0-*", "words1-*", "words2-*")
def test_the_command_refuses_in_a_sentence(words, message, mixtral, tmp_path, capsys):
    words = [mixtral, "--out", tmp_path / "out", *words]
    assert message in refused(capsys, "lab", "experts", *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_model_without_experts_is_refused(kind, tmp_path):
    model = jaxformer.load(save_tiny(kind, tmp_path / kind))
    with pytest.raises(ArgumentError, match=r"MLP: must be .* with Experts"):
        expert_routing(model, TEXT)
