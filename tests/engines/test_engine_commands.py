"""`export --format` and `verify --engines`: what is refused, and what engines compute."""

import json
import sys

import pytest
from engine_exports import exported, receipt_of
from saved_folders import save_tiny
from tiny_models import random_model, random_parameters, tiny, tiny_vision

from jaxformer.checkpoints.run_dir import prepared_data
from jaxformer.checkpoints.saved_run import write_run
from jaxformer.cli import main as cli
from jaxformer.cli.hub.checkpoints import Export
from jaxformer.config import Config
from jaxformer.data import Bytes, DataConfig, TextFiles
from jaxformer.data.chat import ChatData
from jaxformer.engines import export
from jaxformer.engines.converter_input import save_for_converter
from jaxformer.engines.export import ENGINE_FORMATS
from jaxformer.engines.tiny import PLAIN, save_plain
from jaxformer.errors import ConfigError
from jaxformer.functional import ALiBi
from jaxformer.models import DecoderConfig
from jaxformer.pretrained.auto import load

ENGINES = ("ctranslate2", "gguf", "mlx", "onnx")
MEASURED = {
    "ctranslate2": ("llama", "gpt2", "bert", "t5"),
    "mlx": ("llama", "qwen3", "olmo2"),
    "onnx": ("bert", "gemma2", "t5", "whisper"),
    "stablehlo": ("gpt2", "gemma2", "bert", "t5", "bart", "whisper"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A decoder that reads bytes, with two documents of validation data."""
    home = tmp_path_factory.mktemp("runs")
    (home / "texts").mkdir()
    for number in range(8):
        (home / "texts" / f"{number}.txt").write_text(f"The dog {number} chased a dog. " * 40)
    model = DecoderConfig(vocab_size=320, num_layers=2, model_dim=64, num_heads=4, mlp_dim=128)
    data = DataConfig(
        source=TextFiles(str(home / "texts")), tokenizer=Bytes(), sequence_length=32, batch_size=2
    )
    write_run(home / "run", Config(model, data), 3, random_parameters(model, scale=0.1))
    prepared_data(data, home / "run")
    return home / "run"


def refused(capsys, *arguments):
    """The message of a command that must be refused."""
    assert cli.main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err


def test_the_command_has_every_format():
    names = Export.__dataclass_fields__["format"].type.__args__
    assert names == ("hf", "flax", *ENGINE_FORMATS)


def test_a_quantisation_that_the_format_lacks(run, tmp_path, capsys):
    out = tmp_path / "out"
    message = refused(capsys, "export", run, out, "--format", "mlx", "--quantise", "int3")
    assert "int8 or int4" in message
    message = refused(capsys, "export", run, out, "--quantise", "int8")
    assert "--format hf" in message
    assert message.endswith("compressed-tensors, ctranslate2, gguf, mlx have quantised weights\n")
    message = refused(capsys, "export", run, out, "--format", "gguf", "--quantise", "q4_k")
    assert "q8_0" in message
    assert "llama-quantize" in message
    assert not out.exists()


COARSE = tiny(vocab_size=64, model_dim=48, num_heads=4, mlp_dim=64)
REFUSED = [
    (COARSE, "compressed-tensors", {"quantise": "int4"}, "48 inputs: must be a multiple of 32"),
    (COARSE, "compressed-tensors", {}, "int8 or int4"),
    (
        tiny(vocab_size=320, model_dim=64, num_heads=4, head_dim=16, mlp_dim=96),
        "mlx",
        {"quantise": "int4"},
        "96 inputs: must be a multiple of 64",
    ),
    (COARSE, "onnx", {"dtype": "bfloat16"}, "--dtype bfloat16: must be float32 or float16"),
    (tiny(position=ALiBi()), "onnx", {}, "formats that can hold it: stablehlo, hf with"),
    (tiny_vision(), "stablehlo", {}, "a model of texts"),
]


@pytest.mark.parametrize(("config", "name", "options", "message"), REFUSED)
def test_what_a_format_lacks_is_refused_before_anything_is_written(
    config, name, options, message, tmp_path
):
    with pytest.raises(ConfigError, match=message):
        export.export_model(
            random_model(config), tmp_path / "out", format=name, source="here", **options
        )
    assert not (tmp_path / "out").exists()


def test_files_of_an_engine_are_not_split(run, tmp_path, capsys):
    out = tmp_path / "out"
    options = ("--format", "mlx", "--max-shard-gb", "1")
    assert "--max-shard-gb" in refused(capsys, "export", run, out, *options)


@pytest.mark.parametrize("name", ENGINES)
def test_a_missing_engine_is_named_with_its_extra(name, run, tmp_path, capsys, monkeypatch):
    for module in ("ctranslate2", "gguf", "mlx_lm", "onnx"):
        monkeypatch.setitem(sys.modules, module, None)
    message = refused(capsys, "export", run, tmp_path / "out", "--format", name)
    assert f"pip install 'jaxformer[{name}]'" in message
    assert not (tmp_path / "out").exists()


def test_an_engine_that_does_not_read_the_folder(run, tmp_path, capsys):
    assert cli.main(["export", str(run), str(tmp_path / "hf")]) == 0
    message = refused(capsys, "verify", tmp_path / "hf", "--engines", "ctranslate2")
    assert "transformers, mlx" in message


def test_a_source_that_is_gone(run, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    described = {"format": "mlx", "source": str(tmp_path / "gone")}
    (tmp_path / export.DESCRIPTION).write_text(json.dumps(described))
    with pytest.raises(export.ConfigError, match="--reference"):
        export.verify_export(tmp_path, [])


@pytest.mark.parametrize(("name", "kind"), [("ctranslate2", "deberta"), ("mlx", "bert")])
def test_a_system_that_the_engine_lacks(name, kind, tmp_path, capsys):
    folder = save_tiny(kind, tmp_path / kind)
    message = refused(capsys, "export", folder, tmp_path / "out", "--format", name)
    assert f"a {kind!r}" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["t5", "gemma2", "whisper"])
def test_an_engine_that_lacks_the_model_of_a_folder(kind, tmp_path, monkeypatch):
    folder = save_tiny(kind, tmp_path / kind)
    for engine in export.HF_ENGINES:
        monkeypatch.setattr(type(engine), "require", lambda self: None)
    with pytest.raises(ConfigError, match="--engines mlx: must be left out"):
        export.engines_for(folder, ["mlx"])
    assert [engine.name for engine in export.engines_for(folder, ["all"])] == ["transformers"]


@pytest.mark.torch
def test_a_head_that_the_engine_lacks(tmp_path, capsys):
    folder = save_tiny("bert", tmp_path / "bert", "ForTokenClassification")
    message = refused(capsys, "export", folder, tmp_path / "out", "--format", "ctranslate2")
    assert "BertForTokenClassification" in message
    assert "--architecture" in message


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "quantise"),
    [
        (name, quantise)
        for name in ENGINES
        for quantise in (None, *ENGINE_FORMATS[name].quantisations[:1])
    ],
)
@pytest.mark.quick("ctranslate2-int8", "gguf-*")
def test_a_run_in_an_engine(name, quantise, run, tmp_path, capsys):
    pytest.importorskip(ENGINE_FORMATS[name].engines[0].module)
    options = () if quantise is None else ("--quantise", quantise)
    command = ["export", str(run), str(tmp_path / "out"), "--format", name, *options]
    assert cli.main(command) == 0
    assert cli.main(["verify", str(tmp_path / "out"), "--engines", "all"]) == 0
    (receipt,) = json.loads((tmp_path / "out" / "receipt.json").read_text())["engines"]
    assert receipt["engine"] == ENGINE_FORMATS[name].engines[0].name
    assert receipt["agrees"]
    assert (receipt["perplexity"] is None) == (quantise is None)
    if quantise is None:
        tolerance = ENGINE_FORMATS[name].engines[0].tolerance
        assert receipt["max_difference"] <= tolerance * max(1, receipt["largest"])
        assert receipt["equal_greedy_tokens"] == receipt["greedy_tokens"] == export_length(run)


def export_length(run):
    return min(256, load(run).checkpoint.hf_config.values["max_position_embeddings"])


@pytest.mark.more
def test_conversations_give_the_rows_of_a_perplexity(tmp_path, monkeypatch):
    messages = [{"role": role, "content": role} for role in ("user", "assistant")]
    rows = [json.dumps({"messages": messages})] * 40
    (tmp_path / "chat.jsonl").write_text("\n".join(rows))
    data = ChatData(
        train=str(tmp_path / "chat.jsonl"),
        tokenizer=Bytes(),
        template="ChatML",
        sequence_length=256,
        batch_size=2,
    )
    model = DecoderConfig(vocab_size=320, num_layers=1, model_dim=32, num_heads=2, mlp_dim=48)
    write_run(tmp_path / "run", Config(model, data), 3, random_parameters(model, scale=0.1))
    prepared = prepared_data(data, tmp_path / "run")
    packed = next(iter(prepared.validation.rows()))
    texts = export.validation_rows(str(tmp_path / "run"), count=3)
    one = prepared.tokenizer.decode(texts[0].tolist())
    assert one.count("user") == 2  # the role and the words
    assert all(text.tolist() == texts[0].tolist() for text in texts)
    assert texts[0].tolist() == packed["inputs"][packed["segments"] == 1].tolist()
    assert len(texts) == min(3, packed["segments"].max())


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, kinds in MEASURED.items() for kind in kinds]
)
@pytest.mark.quick("ctranslate2-t5", "ctranslate2-bert", "stablehlo-bart")
def test_systems_in_engines(name, kind, tmp_path):
    engine = ENGINE_FORMATS[name].engines[0]
    for module in (engine.module, *["onnxscript"] * (name == "onnx")):
        pytest.importorskip(module)
    shallow = {"encoder_layers": 1, "decoder_layers": 1} if kind == "bart" else {}
    receipt = receipt_of(exported(kind, tmp_path, name, **shallow)[1], engine.name)
    assert not receipt.problems
    tolerance = 2e-5 if name == "stablehlo" else 1e-4
    assert receipt.max_difference <= tolerance * max(1, receipt.largest)
    assert receipt.equal_greedy_tokens == receipt.greedy_tokens


@pytest.mark.torch
def test_converters_get_a_token_for_every_row(tmp_path):
    save_plain("llama", tmp_path / "hf")
    assert "llama" in PLAIN
    model = load(tmp_path / "hf", dtype=None)
    save_for_converter(model, tmp_path / "out", None)
    again = load(tmp_path / "out")
    assert again.tokenizer.get_vocab_size() == model.config.vocab_size > 0
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["bos_token"] == settings["eos_token"]
