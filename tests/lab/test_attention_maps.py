"""`lab attention`: the maps, their pictures and their page."""

import base64
import json
import re
import shutil

import numpy as np
import pytest
from pages import Outline
from typed_commands import printed, refused

import jaxformer
from jaxformer.errors import ArgumentError, DataError
from jaxformer.lab.attention.maps import AttentionMaps, PatchGrid, image_maps, text_maps
from jaxformer.lab.attention.pictures import layer_page, overview, patch_weights
from jaxformer.lab.attention.report import write_maps
from jaxformer.lab.attention.viewer import viewer_fragment
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor

pytestmark = pytest.mark.more

TEXT = "Nobody sells the red boat."


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("models") / "vit"
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 24}
    patches = {"image_size": (16, 24), "patch_size": 8, "intermediate_size": 40}
    model = transformers.ViTModel(transformers.ViTConfig(**sizes, **patches)).eval()
    model.save_pretrained(folder)
    reading = {"size": {"height": 16, "width": 24}}
    transformers.ViTImageProcessor(**reading).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    from PIL import Image

    file = tmp_path_factory.mktemp("images") / "picture.png"
    pixels = np.random.default_rng(0).integers(0, 255, (30, 50, 3), np.uint8)
    Image.fromarray(pixels).save(file)
    return file


def theirs(folder, kind, **inputs):
    """The attention weights of transformers, by name, `[layers, heads, T, S]`."""
    import torch
    import transformers

    names = {"t5": "AutoModelForSeq2SeqLM", "vit": "AutoModel"}
    model = getattr(transformers, names.get(kind, "AutoModel")).from_pretrained(
        folder, attn_implementation="eager"
    )
    inputs = {name: torch.tensor(np.asarray(value)) for name, value in inputs.items()}
    with torch.no_grad():
        outputs = model.eval()(**inputs, output_attentions=True)
    return {
        name: np.stack([layer[0].numpy() for layer in value])
        for name, value in outputs.items()
        if name.endswith("attentions") and value
    }


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@pytest.mark.quick("gpt2")
def test_the_maps_are_those_of_transformers(kind, folders):
    from transformers import AutoTokenizer

    (maps,) = text_maps(jaxformer.load(folders[kind]), TEXT)
    ids = AutoTokenizer.from_pretrained(folders[kind])(TEXT)["input_ids"]
    expected = theirs(folders[kind], kind, input_ids=[ids])["attentions"]
    np.testing.assert_allclose(maps.weights, expected, atol=2e-5)
    assert maps.queries == maps.keys
    assert len(maps.keys) == len(ids)
    assert "".join(maps.keys).replace("[CLS]", "").replace("[SEP]", "") == TEXT.replace(" ", "")
    assert maps.causal == (kind == "gpt2")
    if maps.causal:
        assert (np.triu(maps.weights, k=1) == 0).all()


@pytest.mark.torch
def test_an_encoder_decoder_has_three_kinds(folders):
    from transformers import AutoTokenizer

    encoder, decoder, cross = text_maps(jaxformer.load(folders["t5"]), TEXT, "the lake")
    tokenizer = AutoTokenizer.from_pretrained(folders["t5"])
    read = [0, *tokenizer("the lake")["input_ids"][:-1]]
    inputs = {"input_ids": [tokenizer(TEXT)["input_ids"]], "decoder_input_ids": [read]}
    expected = theirs(folders["t5"], "t5", **inputs)
    for maps, name in ((encoder, "encoder"), (decoder, "decoder"), (cross, "cross")):
        np.testing.assert_allclose(maps.weights, expected[f"{name}_attentions"], atol=2e-5)
    assert cross.queries == decoder.queries == decoder.keys
    assert cross.keys == encoder.keys
    assert decoder.queries[0] == "<pad>"
    assert decoder.causal
    assert not cross.causal


@pytest.mark.torch
def test_without_a_target_the_decoder_writes_its_own(folders):
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    _, decoder, _ = text_maps(jaxformer.load(folders["t5"]), TEXT, max_new_tokens=5)
    model = AutoModelForSeq2SeqLM.from_pretrained(folders["t5"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(folders["t5"])
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    written = model.generate(ids, max_new_tokens=5, do_sample=False)[0, :-1]
    assert decoder.queries == [tokenizer.decode([id_]).strip() for id_ in written]


@pytest.mark.torch
def test_the_maps_of_an_image(vit, picture):
    predictor = open_predictor(vit, PredictionConfig(task="embeddings"))
    maps = image_maps(predictor.subject.pretrained, predictor.reader, picture)
    pixels = predictor.reader.pixels(picture).transpose(2, 0, 1)[None]
    expected = theirs(vit, "vit", pixel_values=pixels)["attentions"]
    np.testing.assert_allclose(maps.weights, expected, atol=2e-5)
    assert maps.keys == [
        "[CLS]",
        *(f"patch {row},{column}" for row in (0, 1) for column in range(3)),
    ]
    assert (maps.grid.rows, maps.grid.columns, maps.grid.prefix) == (2, 3, 1)
    assert 0 == maps.grid.pixels.min() < maps.grid.pixels.max() == 1
    np.testing.assert_array_equal(patch_weights(maps)[1, 2].ravel(), maps.weights[1, 2, 0, 1:])


def random_maps(layers=2, heads=3, queries=4, keys=5, name="self-attention", grid=None):
    weights = np.random.default_rng(0).dirichlet(np.ones(keys), (layers, heads, queries))
    names = ["<script>", "</script>", "$x$", "a\nb", '"é"', "z", "y", "x"]
    numbers = tuple(range(layers)), tuple(range(heads))
    weights = weights.astype(np.float32)
    return AttentionMaps(name, weights, names[:queries], names[:keys], False, *numbers, grid)


def image_grid():
    return PatchGrid(np.linspace(0, 1, 8 * 4 * 3, dtype=np.float32).reshape(8, 4, 3), 2, 2, 1)


def test_some_layers_and_heads():
    maps = random_maps(4, 3)
    chosen = maps.select((3, 1), (2,))
    assert chosen.layers == (3, 1)
    assert chosen.heads == (2,)
    np.testing.assert_array_equal(chosen.weights, maps.weights[[3, 1]][:, [2]])
    with pytest.raises(ArgumentError, match="layers = 4: must be one of 0 to 3"):
        maps.select((4,))
    with pytest.raises(ArgumentError, match="heads = -1: must be one of 0 to 2"):
        maps.select(None, (-1,))


def data_of(html):
    pattern = r'<script type="application/json" id="attention-data">(.*?)</script>'
    (found,) = re.findall(pattern, html, re.DOTALL)
    return json.loads(found)


def test_the_page_holds_the_weights():
    maps = random_maps(), random_maps(1, 2, 5, 5, "of an image", image_grid())
    html = viewer_fragment(maps)
    data = data_of(html)
    for each, entry in zip(maps, data["maps"], strict=True):
        assert entry["queries"] == each.queries
        assert entry["keys"] == each.keys
        levels = np.frombuffer(base64.b64decode(entry["weights"]), "<u2")
        found = levels.reshape(each.weights.shape) / data["levels"]
        np.testing.assert_allclose(found, each.weights, atol=0.5001 / data["levels"])
    image = data["maps"][1]["image"]
    assert (image["height"], image["width"], image["prefix"]) == (8, 4, 1)
    assert image["source"].startswith("data:image/png;base64,")


def test_the_files_are_whole_and_load_nothing(tmp_path):
    maps = [random_maps(), random_maps(1, 2, 5, 5, "of an image", image_grid())]
    page, *pictures = write_maps(tmp_path / "out", "A title", maps)
    html = page.read_text()
    outline = Outline(html)
    assert all(link.startswith(("data:", "#")) for link in outline.values("src", "href"))
    assert "http" not in re.sub(r"<script type.*?</script>", "", html, flags=re.DOTALL)
    # Everything that the script looks for is there.
    used = {f"att-{name}" for name in re.findall(r'at\("([\w-]+)"\)', html)}
    assert used <= set(outline.values("id"))
    assert {path.name for path in pictures} == {
        "self-attention-overview.png",
        "self-attention-layer-00.png",
        "self-attention-layer-01.png",
        "of-an-image-overview.png",
        "of-an-image-layer-00.png",
    }
    assert all(path.stat().st_size > 5000 for path in pictures)


def test_a_page_that_no_browser_could_show(tmp_path):
    weights = np.broadcast_to(np.float32(0), (50, 64, 100, 101))
    names = ["x"] * 100
    numbers = tuple(range(50)), tuple(range(64))
    maps = AttentionMaps("self-attention", weights, names, [*names, "y"], True, *numbers)
    with pytest.raises(ArgumentError, match="would contain 32,320,000 weights: must be at most"):
        write_maps(tmp_path, "A title", [maps])


def test_pictures_name_their_tokens():
    maps = random_maps(1, 2, 3, 5)
    figure = layer_page(maps, 0)
    first, second = [axes for axes in figure.axes if axes.get_title().startswith("head")]
    names = [label.get_text() for label in first.get_xticklabels()]
    assert names == ["<script>", "</script>", r"\$x\$", "a·b", '"é"']
    assert [label.get_text() for label in first.get_yticklabels()] == names[:3]
    assert second.get_yticklabels() == []
    ticks = overview(random_maps(3, 4)).axes[0]
    assert [label.get_text() for label in ticks.get_xticklabels()] == ["0", "1", "2", "3"]
    assert [label.get_text() for label in ticks.get_yticklabels()] == ["0", "1", "2"]


# The command ------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.slow
def test_the_command_on_a_text_and_on_an_image(folders, vit, picture, tmp_path, capsys):
    target = ["--target", "the lake", "--layers", "1", "--format", "svg", "--out", tmp_path / "a"]
    text = printed(capsys, "lab", "attention", folders["t5"], "--text", TEXT, *target)
    assert "cross-attention: 1 layers, 6 heads" in text
    assert (tmp_path / "a" / "cross-attention-layer-01.svg").exists()
    words = ["--image", picture, "--heads", "2", "--out", tmp_path / "b"]
    text = printed(capsys, "lab", "attention", vit, *words)
    assert "self-attention: 2 layers, 1 heads, 7 queries, 7 keys" in text
    assert data_of((tmp_path / "b" / "attention.html").read_text())["maps"][0]["image"]["rows"] == 2


@pytest.mark.torch
@pytest.mark.slow
def test_mistakes_are_one_sentence(folders, vit, picture, capsys):
    cases = [
        ([folders["bert"]], "give either --text"),
        ([folders["bert"], "--text", "boat " * 70], "text: 72 tokens, special ones included"),
        ([folders["bert"], "--text", "a", "--target", "b"], "must be left out: the model has no"),
        ([folders["bert"], "--image", picture], "image: the model reads text"),
        ([vit, "--text", "a"], "text: the model reads images"),
        ([folders["gpt2"], "--text", ""], "must have at least one token"),
        ([folders["gpt2"], "--text", "a", "--heads", "9"], "heads = 9: must be one of 0 to 3"),
    ]
    for arguments, message in cases:
        assert message in refused(capsys, "lab", "attention", *arguments)


@pytest.mark.torch
def test_a_folder_without_a_tokenizer(folders, tmp_path):
    assert text_maps(jaxformer.load(folders["gpt2"]), "a")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folders["gpt2"] / name, tmp_path)
    with pytest.raises(DataError, match="has no tokenizer"):
        text_maps(jaxformer.load(tmp_path), "a")
