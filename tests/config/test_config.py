"""The experiment as a whole: its files, what it checks, what may change when a run goes on."""

import operator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from jaxformer.config import Config, TrainConfig, load_config, validate
from jaxformer.config.experiment import (
    CHANGEABLE_FIELDS,
    changed_fields,
    check_heads,
    check_vocabulary,
)
from jaxformer.config.overrides import parse
from jaxformer.data import DataConfig, MaskedLM, PrefixLM, SpanCorruption
from jaxformer.data.tasks import Images, LabelledText, MaskedImages, ParallelText
from jaxformer.distributed import MeshConfig
from jaxformer.errors import ConfigError
from jaxformer.functional import ALiBi, Learned
from jaxformer.io.serialization import from_json, to_json
from jaxformer.models import (
    Classification,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    MaskedLanguageModel,
    VisionConfig,
)

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "configs").glob("*.py"))
SIZES = {"num_layers": 2, "model_dim": 32, "num_heads": 4, "mlp_dim": 64}
TEXT, IMAGE = SIZES | {"vocab_size": 5000}, {"image_size": (8, 8), "patch_size": (2, 2)}
MODEL, ENCODER, BOTH = DecoderConfig(**TEXT), EncoderConfig(**TEXT), EncoderDecoderConfig(**TEXT)
VISION = VisionConfig(**SIZES, **IMAGE, channels=1, position=Learned(17))
CONFIG, PAIR = Config(MODEL), Config(BOTH, DataConfig(objective=SpanCorruption()))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_survives_json_and_the_command_line(path):
    config = load_config(str(path))
    if config.model is None:
        with pytest.raises(ConfigError, match="model = None"):
            validate(config, 1)
    assert from_json(to_json(config), Config) == config
    assert parse(config, [], "train.py") == config


def test_what_parts_demand_of_each_other_is_checked():
    validate(CONFIG, 1)
    validate(replace(CONFIG, mesh=MeshConfig(data=-1)), 8)
    validate(replace(CONFIG, mesh=MeshConfig(tensor=2), model=replace(MODEL, num_kv_heads=1)), 2)
    with pytest.raises(ConfigError, match=r"batch_size = 16.*1 x 32 = 32"):
        validate(replace(CONFIG, mesh=MeshConfig(data=32)), 32)
    for config, name, size in (
        (CONFIG, "num_kv_heads", 2),
        (CONFIG, "mlp_dim", 66),
        (PAIR, "encoder_heads", 2),
        (PAIR, "encoder_mlp_dim", 66),
    ):
        model = replace(config.model, **{name: size})
        with pytest.raises(ConfigError, match=f"model.{name} = {size} is not divisible"):
            validate(replace(config, mesh=MeshConfig(tensor=4), model=model), 4)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (MODEL, DataConfig(objective=PrefixLM())),
        (MODEL, DataConfig(objective=MaskedLM())),
        (ENCODER, DataConfig(objective=MaskedLM())),
        (BOTH, DataConfig(objective=SpanCorruption())),
        (BOTH, ParallelText()),
        (VISION, Images()),
    ],
)
def test_data_that_a_family_can_read(model, data):
    validate(Config(model, data), 1)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (ENCODER, DataConfig(), "CausalLM: next-token prediction needs causal attention"),
        (ENCODER, DataConfig(objective=PrefixLM()), "use MaskedLM, or a DecoderConfig"),
        (
            BOTH,
            DataConfig(),
            "EncoderDecoderConfig has a decoder, for which CausalLM provides no inputs",
        ),
        (BOTH, LabelledText(), "a decoder, for which LabelledText provides no inputs"),
        (MODEL, DataConfig(objective=SpanCorruption()), "use an EncoderDecoderConfig"),
        (ENCODER, ParallelText(), "ParallelText provides separate encoder and decoder inputs"),
        (MODEL, Images(), "DecoderConfig reads text, which Images does not make"),
        (VISION, DataConfig(), "VisionConfig reads images, which CausalLM does not make"),
        (VISION, Images(image_size=(8, 16)), r"data.image_size = \(8, 16\)"),
        (VISION, MaskedImages(patch_size=(2, 4)), r"data.patch_size = \(2, 4\)"),
        (VISION, Images(channels=3), "data.channels = 3"),
    ],
)
def test_data_that_a_family_cannot_read(model, data, message):
    with pytest.raises(ConfigError, match=message):
        validate(Config(model, data), 1)


def test_a_head_must_find_its_labels():
    model = replace(ENCODER, heads=(MaskedLanguageModel(), Classification(label="next_sentence")))
    names = {"inputs", "segments", "targets", "weights"}
    check_heads(model.heads, names | {"next_sentence", "next_sentence_weights"})
    message = r"head 'next_sentence' .* reads next_sentence, next_sentence_weights, but the data "
    with pytest.raises(
        ConfigError, match=message + "provides inputs, segments, targets, weights: "
    ):
        check_heads(model.heads, names)


def test_a_padded_vocabulary_is_fine_and_a_short_one_is_not():
    check_vocabulary(CONFIG.model.vocab_size, 4999)
    with pytest.raises(ConfigError, match=r"5001 tokens.*model\.vocab_size = 5000"):
        check_vocabulary(CONFIG.model.vocab_size, 5001)


def test_fields_that_may_change_exist():
    for name in CHANGEABLE_FIELDS:
        path, _, field = name.rpartition(".")
        kind = type(operator.attrgetter(path)(CONFIG))
        assert field in {item.name for item in fields(kind)}, name


def test_what_may_change_when_a_run_goes_on():
    mesh = MeshConfig(data=2)
    train = TrainConfig(steps=9, keep=1)
    model = replace(MODEL, remat="full", attention="reference")
    assert changed_fields(CONFIG, replace(CONFIG, mesh=mesh, train=train, model=model)) == {}
    other = replace(CONFIG, model=replace(MODEL, position=ALiBi()), data=DataConfig(seed=1))
    assert set(changed_fields(CONFIG, other)) == {"model.position.type", "data.seed"}


def test_an_experiment_may_take_an_argument(tmp_path):
    path = tmp_path / "experiment.py"
    path.write_text(
        "from jaxformer.config.experiment import Config\n"
        "from jaxformer.models import DecoderConfig\n"
        "def get_config(depth='1'):\n"
        "    return Config(model=DecoderConfig(vocab_size=8, num_layers=int(depth), model_dim=8,\n"
        "                                      num_heads=1, mlp_dim=8))\n"
    )
    assert load_config(str(path)).model.num_layers == 1
    assert load_config(f"{path}:3").model.num_layers == 3
    with pytest.raises(ConfigError, match="takes no argument"):
        load_config(f"{ROOT}/configs/tiny_decoder.py:3")
