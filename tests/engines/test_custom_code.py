"""`export --custom-code`: the modeling file computes the same, or a missing part is named."""

import json
from dataclasses import dataclass, replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import random_parameters

from jaxformer.checkpoints.saved_run import write_run
from jaxformer.cli import main as cli
from jaxformer.config import Config
from jaxformer.data import DataConfig
from jaxformer.engines.custom_code.description import described
from jaxformer.engines.export import CUSTOM_CODE, engines_for, export_model, verify_export
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional import (
    Activation,
    ALiBi,
    Binary,
    Integer,
    LayerNorm,
    Learned,
    NoPosition,
    RMSNorm,
    RoPE,
    Sinusoidal,
    T5Bias,
)
from jaxformer.functional.feedforward import ACTIVATIONS
from jaxformer.functional.norms import NoNorm
from jaxformer.functional.positions.rope_scaling import DynamicNTK, Llama3Scaling
from jaxformer.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from jaxformer.nn import MLP, DotProductAttention, TokenEmbeddings, VocabularyLogits
from jaxformer.nn.residual import (
    BranchNorm,
    Parallel,
    PostNorm,
    PreNorm,
    SandwichNorm,
    StreamNorm,
)
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward

SIZES = {
    "vocab_size": 96,
    "num_layers": 2,
    "model_dim": 32,
    "num_heads": 4,
    "mlp_dim": 48,
    "compute_dtype": "float32",
}
decoder = partial(DecoderConfig, **SIZES)
encoder = partial(EncoderConfig, **SIZES)
seq2seq = partial(EncoderDecoderConfig, **SIZES)
HALF = RoPE(fraction=0.5, layout="interleaved")
SCALED = RoPE(scaling=Llama3Scaling(4.0, 1.0, 4.0, 8))
SETTINGS = DotProductAttention(
    bias=True, output_bias=True, scale=0.3, scale_by_depth=True, clip=0.5, softcap=2.0
)
NORMED = DotProductAttention(query_key_norm=RMSNorm(), query_key_norm_over="each_head")
JOINT = DotProductAttention(query_key_norm=LayerNorm(), query_key_norm_over="all_heads")
MODELS = {
    "none": decoder(position=NoPosition()),
    "integer": decoder(position=Integer(max_length=64)),
    "binary": decoder(position=Binary(num_bits=6)),
    "sinusoidal": decoder(position=Sinusoidal(layout="half", endpoint=True, offset=2)),
    "learned": decoder(position=Learned(max_length=64, offset=2)),
    "rope": decoder(position=replace(HALF, values=True), num_kv_heads=2),
    "llama3": decoder(position=SCALED, value_dim=12),
    "alibi": decoder(position=ALiBi(), num_heads=6, model_dim=36),
    "falcon": decoder(position=ALiBi(factor=0.5, rounded=True)),
    "t5": decoder(position=T5Bias(bidirectional=False)),
    "own tables": decoder(position=T5Bias(bidirectional=False, shared=False)),
    "two schemes": encoder(relative_position=T5Bias(bidirectional=True, num_buckets=8)),
    "after the norm": decoder(
        position=Learned(max_length=64, after_norm=True),
        embeddings=TokenEmbeddings(norm=LayerNorm()),
    ),
    "windows": decoder(windows=(4, None), window_position=RoPE(theta=100.0)),
    "no rotation": decoder(windows=(4, None), rope_layers=(True, False)),
    "windows ahead": encoder(windows=(3,), position=HALF),
    "post-norm": decoder(residual=PostNorm(output_scale=0.5)),
    "branch norm": decoder(residual=BranchNorm(layer_scale=0.5)),
    "stream norm": decoder(residual=StreamNorm()),
    "sandwich": decoder(residual=SandwichNorm(), norm=RMSNorm(unit_offset=True)),
    "parallel": decoder(residual=Parallel(), norm=LayerNorm(bias=False)),
    "apart": decoder(residual=Parallel(shared_norm=False), norm=LayerNorm(scale=False)),
    "no first norm": decoder(residual=PreNorm(first_norm=False), windows=(4, None)),
    "no norm": decoder(norm=NoNorm()),
    "attention": decoder(self_attention=SETTINGS, feed_forward=MLP(activation="quick_gelu")),
    "norm of heads": decoder(self_attention=NORMED, feed_forward=MLP(activation="gelu_tanh")),
    "joint norm": decoder(self_attention=JOINT, feed_forward=MLP(activation="relu", gated=False)),
    "shared layers": decoder(num_layers=4, layer_repeats=2),
    "untied": decoder(
        tie_embeddings=False, logits=VocabularyLogits(bias=True, softcap=3.0, scale=0.5)
    ),
    "types": encoder(
        position=ALiBi(),
        embeddings=TokenEmbeddings(norm=LayerNorm(eps=1e-12), token_types=2),
        pooler="tanh",
    ),
    "body": encoder(position=ALiBi(), heads=(), pooler="tanh"),
    "t5 bias": seq2seq(encoder_heads=2, encoder_mlp_dim=40, num_decoder_layers=3),
    "2017": seq2seq(
        position=Sinusoidal(),
        decoder_position=Sinusoidal(),
        norm=LayerNorm(),
        embeddings=TokenEmbeddings(scale=5.0),
        decoder_embedding_scale=4.0,
        share_embeddings=False,
        feed_forward=MLP(activation="relu", gated=False, bias=True),
    ),
    "relative": seq2seq(position=ALiBi(), decoder_position=RoPE(), tie_embeddings=False),
}


@dataclass(frozen=True)
class Squares(Activation):
    """An activation of a user."""

    def __call__(self, x, **parameters):
        return jnp.square(x)


@pytest.fixture
def exported(tmp_path):
    """Exports a model; returns its folder and the model that jaxformer loads."""

    def export(config):
        run = tmp_path / "run"
        parameters = random_parameters(config, scale=0.3)
        write_run(run, Config(config, DataConfig()), 3, parameters)
        model = load(run)
        export_model(model, tmp_path / "out", format=CUSTOM_CODE.name, source=str(run))
        return tmp_path / "out", model

    return export


@pytest.mark.parametrize("name", MODELS)
def test_every_part_is_described(name):
    fields = described(MODELS[name])
    assert json.loads(json.dumps(fields)) == fields


@pytest.mark.torch
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.quick("2017", "t5 bias")
def test_outputs_and_greedy_tokens_are_equal(name, exported):
    import torch
    import transformers

    config = MODELS[name]
    folder, model = exported(config)
    values = json.loads((folder / "config.json").read_text())
    auto = getattr(transformers, list(values["auto_map"])[-1])
    theirs, report = auto.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    generator = np.random.default_rng(0)
    inputs = {"input_ids": generator.integers(0, 96, (2, 20))}
    inputs["attention_mask"] = np.where(np.arange(20) < [[20], [13]], 1, 0)
    if config.type_sizes:
        inputs["token_type_ids"] = generator.integers(0, 2, (2, 20))
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = generator.integers(0, 96, (2, 9))
    right = forward(model, {key: value.astype(np.int32) for key, value in inputs.items()})
    with torch.no_grad():
        found = theirs(**{key: torch.tensor(value) for key, value in inputs.items()})
    real = inputs["attention_mask"] > 0
    for key in ("logits", "last_hidden_state", "pooler_output"):
        if key not in found:
            continue
        ours, other = np.asarray(right[key]), found[key].numpy()
        if key != "pooler_output" and not config.is_encoder_decoder:
            ours, other = ours[real], other[real]
        np.testing.assert_allclose(other, ours, rtol=0, atol=1e-5 * max(1, np.abs(ours).max()))
    if config.predicts_next_token:
        prompt = torch.tensor(inputs["input_ids"][:1, :12])
        start = {"decoder_start_token_id": 1} if config.is_encoder_decoder else {}
        options = {"do_sample": False, "max_new_tokens": 16, "eos_token_id": None}
        written = theirs.generate(prompt, **options, **start)
        check_greedy(model, prompt.numpy().astype(np.int32), written.numpy().astype(np.int32))


def check_greedy(model, prompt, written):
    """Checks that jaxformer finds each of the 16 written tokens the likeliest."""
    both = model.config.is_encoder_decoder
    inputs = {"input_ids": prompt, "decoder_input_ids": written} if both else {"input_ids": written}
    logits = np.asarray(forward(model, inputs)["logits"])
    assert written.shape[1] == (17 if both else 28)
    assert logits[0, -17:-1].argmax(-1).tolist() == written[0, -16:].tolist()


@pytest.mark.torch
def test_the_receipt_of_the_command(tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "out"
    config = MODELS["learned"]
    write_run(run, Config(config, DataConfig()), 3, random_parameters(config, scale=0.3))
    assert cli.main(["export", str(run), str(tmp_path / "plain")]) == 2
    assert "--custom-code" in capsys.readouterr().err
    assert cli.main(["export", str(run), str(out), "--format", "hf", "--custom-code"]) == 0
    assert cli.main(["verify", str(out), "--engines", "all"]) == 0
    (receipt,) = json.loads((out / "receipt.json").read_text())["engines"]
    assert receipt["agrees"]
    assert receipt["equal_greedy_tokens"] == receipt["greedy_tokens"] > 0


@pytest.mark.torch
def test_the_modeling_file_has_the_activations_that_a_config_can_name():
    import torch

    from jaxformer.engines.custom_code.modeling_jaxformer import ACTIVATIONS as THEIRS

    x = np.linspace(-3.0, 3.0, 13, dtype=np.float32)
    assert THEIRS.keys() == ACTIVATIONS.keys()
    for name, function in THEIRS.items():
        found = function(torch.tensor(x)).numpy()
        np.testing.assert_allclose(found, ACTIVATIONS[name](x), rtol=0, atol=1e-6)


@pytest.mark.torch
def test_other_code_is_not_run(exported):
    folder, _ = exported(MODELS["alibi"])
    (folder / "modeling_jaxformer.py").write_text("raise SystemExit")
    with pytest.raises(DataError, match="export the model again"):
        verify_export(folder, engines_for(folder, ["transformers"]))


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (decoder(feed_forward=MLP(activation=Squares())), "Squares"),
        (
            decoder(position=RoPE(scaling=DynamicNTK(factor=2.0, original_max_length=8))),
            "DynamicNTK",
        ),
        (encoder(embeddings=TokenEmbeddings(dim=16)), r"embeddings\.dim"),
        (encoder(embeddings=TokenEmbeddings(zero_padding=True)), r"embeddings\.zero_padding"),
    ],
)
def test_a_part_that_the_modeling_file_lacks_is_named(config, part):
    with pytest.raises(ConfigError, match=part):
        described(config)


@pytest.mark.parametrize("other", [("--format", "gguf"), ("--adapter",)])
def test_only_the_hugging_face_folder_has_code(other, tmp_path, capsys):
    command = ["export", str(tmp_path), str(tmp_path / "out"), "--custom-code", *other]
    assert cli.main(command) == 2
    assert "--custom-code" in capsys.readouterr().err
