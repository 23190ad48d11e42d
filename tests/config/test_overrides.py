"""Command-line overrides: typed values, component choices, errors that help."""

import abc
import dataclasses
import inspect
import itertools
import typing
from dataclasses import dataclass
from typing import Literal

import pytest

from jaxformer.config import Config
from jaxformer.config.overrides import component_choices, parse
from jaxformer.data import DataConfig, Files
from jaxformer.data.chat.config import ChatData
from jaxformer.data.tasks import ImageFolder, Images, TaggedText
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.components import all_types, union_members


class Position(abc.ABC):
    """A base class; not a choice itself."""

    @abc.abstractmethod
    def rotate(self):
        """What makes it abstract."""


@dataclass(frozen=True)
class Linear:
    factor: float = 1.0


@dataclass(frozen=True)
class RoPE(Position):
    """Rotary."""

    theta: float
    """Base of the frequencies."""
    scaling: Linear | None = None
    """Stretching."""

    def rotate(self):
        pass

    def __post_init__(self):
        if self.theta <= 0:
            raise ConfigError(f"theta must be positive, got {self.theta}")


@dataclass(frozen=True)
class ALiBi(Position):
    """Linear biases."""

    def rotate(self):
        pass


@dataclass(frozen=True)
class Norm(abc.ABC):  # noqa: B024
    """A base whose own word says so."""

    eps: float = 1.0


@dataclass(frozen=True)
class Plain(Norm):
    """It can be chosen although another derives from it."""


@dataclass(frozen=True)
class Gained(Plain):
    """The other."""

    gain: float = 3.0


@dataclass(frozen=True)
class Model:
    num_layers: int = 4
    """Blocks."""
    windows: tuple[int | None, ...] = (None,)
    position: Position = RoPE(theta=1e4)
    dropout: float | None = None
    pooler: Literal["tanh", "relu"] | Norm | None = "tanh"
    norms: tuple[Norm, ...] = (Plain(), Plain(eps=2.0))
    tied: bool = False

    def __post_init__(self):
        if self.num_layers < 1:
            raise ConfigError(f"num_layers must be positive, got {self.num_layers}")


@dataclass(frozen=True)
class Experiment:
    model: Model = Model()
    steps: int = 10


def run(*arguments):
    return parse(Experiment(model=Model(num_layers=2)), arguments, "train.py")


def test_values_are_typed_and_the_rest_stays():
    result = run("--model.num-layers", "6", "--steps=3", "--model.windows", "8", "None")
    assert result == Experiment(Model(num_layers=6, windows=(8, None)), steps=3)
    assert run() == Experiment(Model(num_layers=2))
    assert run("--model.num_layers", "7").model.num_layers == 7


@pytest.mark.parametrize(("option", "value"), [("--model.tied", True), ("--model.no-tied", False)])
def test_flags(option, value):
    assert run(option).model.tied is value


def test_components_are_chosen_by_name_in_any_order():
    assert run("--model.position", "alibi").model.position == ALiBi()
    arguments = ["--model.position.theta", "5e5", "--model.position", "RoPE"]
    assert run(*arguments).model.position == RoPE(theta=5e5)
    nested = ["--model.position.scaling.factor", "2", "--model.position.scaling", "Linear"]
    assert run(*nested).model.position == RoPE(theta=1e4, scaling=Linear(2.0))
    assert run(*nested[2:]).model.position.scaling == Linear()
    assert run("--model.position.scaling", "None").model.position.scaling is None


def test_words_stand_beside_components():
    assert run("--model.pooler", "relu").model.pooler == "relu"
    assert run("--model.pooler", "plain", "--model.pooler.eps", "3").model.pooler == Plain(3.0)
    assert run("--model.pooler", "None").model.pooler is None


def test_several_components_of_one_field():
    assert run("--model.norms.1.eps", "3").model.norms == (Plain(), Plain(3.0))
    several = ["--model.norms.2.gain", "5", "--model.norms", "Plain", "Plain", "Gained"]
    assert run(*several).model.norms == (Plain(), Plain(), Gained(gain=5.0))
    assert run("--model.norms").model.norms == ()


def test_a_field_of_the_only_component_chooses_it():
    assert run("--model.position.scaling.factor", "2").model.position == RoPE(1e4, Linear(2.0))
    with pytest.raises(ConfigError, match=r"did you mean --model.position.scaling.factor"):
        run("--model.position.scaling.facter", "2")
    with pytest.raises(ConfigError, match=r"Unknown option --model.position.scaling.factor"):
        run("--model.position.scaling.factor", "2", "--model.position.scaling", "None")
    with pytest.raises(ConfigError, match=r"Unknown option --model.dropout.rate"):
        run("--model.dropout.rate", "2")


def test_component_choices_leave_the_base_out():
    assert list(component_choices(Model(), "position")) == ["RoPE", "ALiBi"]
    assert list(component_choices(Model(), "norms")) == ["Plain", "Gained"]
    assert list(component_choices(Model(), "pooler")) == ["Plain", "Gained", "tanh", "relu", "None"]
    assert list(component_choices(RoPE(theta=1.0), "scaling")) == ["Linear", "None"]
    assert component_choices(Model(), "num_layers") == {}
    assert component_choices(Experiment(), "model") == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.num-layer", "6"], "--model.num-layer; did you mean --model.num-layers?"),
        (["--modle.num-layers", "6"], "did you mean --model.num-layers?"),
        (["--num-layers", "6"], "did you mean --model.num-layers?"),
        (["--step", "x"], "did you mean --steps?"),
        (["--layers", "6"], "did you mean --model.num-layers?"),
        (["--max-steps", "6"], "did you mean --steps?"),
        (["--nl", "6"], "did you mean --model.num-layers?"),
        (["--model.theta", "6"], "did you mean --model.position.theta?"),
        (["--model.norms.2.eps", "6"], "did you mean --model.norms.0.eps or --model.norms.1.eps?"),
        (["--model.norms", "Plain", "Gain"], "choose one of Plain, Gained; did you mean 'Gained'"),
        (["--model.pooler", "thin"], "choose one of Plain, Gained, tanh, relu, None"),
        (["--model.qqq", "6"], "options are --model.num-layers, --model.windows"),
        (["--mesh", "6"], "Unknown option --mesh"),
        (["stray"], "Unknown option"),
        (["--model.position", "Ropes"], "choose one of RoPE, ALiBi; did you mean 'RoPE'"),
        (["--model.position"], "choose one of RoPE, ALiBi"),
        (["--model.tied", "True"], "write one of --model.tied, --model.no-tied"),
        (["--model.no-tied", "1"], "write one of --model.tied, --model.no-tied"),
    ],
)
def test_mistakes_name_what_would_be_right(arguments, message):
    with pytest.raises(ConfigError) as error:
        run(*arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.num-layers", "x"], "--model.num-layers"),
        (["--model.position", "rope"], "--model.position.theta"),  # required and not given
    ],
)
def test_values_that_do_not_fit_exit_with_status_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        run(*arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.num-layers", "0"], "num_layers must be positive, got 0"),
        (["--model.position.theta", "-1"], "theta must be positive"),
    ],
)
def test_what_a_dataclass_refuses_is_raised_in_its_own_words(arguments, message, capsys):
    with pytest.raises(ConfigError, match=f"^{message}"):
        run(*arguments)
    assert capsys.readouterr().err == ""


def test_help_lists_options_and_components(capsys):
    with pytest.raises(SystemExit) as error:
        run("--help")
    assert error.value.code == 0
    text = capsys.readouterr().out
    assert "Blocks. (default: 2)" in text
    assert "--model.position {RoPE,ALiBi} (now RoPE)" in text
    assert "--model.norms {Plain,Gained} (now Plain Plain)" in text
    assert "--model.pooler {Plain,Gained,tanh,relu,None} (now tanh)" in text
    assert text.count("--model.pooler {Plain,Gained,tanh,relu,None}") == 2  # an option like others
    assert "positional" not in text


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("ner.txt", "-DOCSTART- O\n\nParis B-LOC\n", "ColumnFile"),
        ("dev.tsv", "1\tParis\tPROPN\n", "ColumnFile"),
        ("ud.txt", "# text = a\n1-2\tdu" + "\t_" * 8 + "\n", "ConllU"),
        ("rows.jsonl", "{}\n", "TagTable"),
        ("folder", None, "TagTable"),
    ],
)
def test_the_kind_of_a_tag_source_is_taken_from_the_content(tmp_path, name, text, kind):
    path = tmp_path / name
    path.mkdir() if text is None else path.write_text(text)
    found = parse(TaggedText(), ["--train", str(path)], "p")
    assert (type(found.train).__name__, found.train.path) == (kind, str(path))


def test_a_path_names_a_source_of_texts_or_images(tmp_path):
    assert parse(DataConfig(), ["--source", "a/*.txt"], "p").source == Files("a/*.txt")
    found = parse(DataConfig(), ["--source", "a.parquet", "--source.field", "body"], "p")
    assert found.source == Files("a.parquet", field="body")
    assert parse(Images(), ["--source", str(tmp_path)], "p").source == ImageFolder(str(tmp_path))
    with pytest.raises(ConfigError, match="did you mean 'Digits'"):
        parse(Images(), ["--source", "digit"], "p")
    with pytest.raises(DataError, match=r"none\.txt does not exist"):
        parse(TaggedText(), ["--train", "none.txt"], "p")


@dataclass(frozen=True)
class Activation(abc.ABC):
    """A base without its own class."""

    @abc.abstractmethod
    def __call__(self, x):
        """What makes it abstract."""


@dataclass(frozen=True)
class Layer:
    activation: Literal["relu", "silu"] | Activation = "silu"


def test_a_name_is_chosen_where_a_component_may_stand_and_none_is_known():
    assert parse(Layer(), ["--activation", "relu"], "prog").activation == "relu"
    with pytest.raises(ConfigError, match="got 'rlu'; choose one of relu, silu; did you mean"):
        parse(Layer(), ["--activation", "rlu"], "prog")


def test_data_know_train_and_source_by_either_name(tmp_path):
    (tmp_path / "cat").mkdir()
    images = parse(Config(data=Images()), ["--data.train", str(tmp_path)], "x").data
    assert images.source == ImageFolder(str(tmp_path))
    chats = parse(Config(data=ChatData(train="a")), ["--data.source", "b.jsonl"], "x").data
    assert chats.train == "b.jsonl"
    with pytest.raises(ConfigError, match=r"Unknown option --data\.trian; did you mean"):
        parse(Config(data=ChatData(train="a")), ["--data.trian", "b.jsonl"], "x")


def component_fields(kind, seen):
    """The types of all fields that a configuration may have, and of their components."""
    if kind in seen or not dataclasses.is_dataclass(kind):
        return
    seen.add(kind)
    for name, hint in typing.get_type_hints(kind).items():
        members = [member for member in union_members(hint) if inspect.isclass(member)]
        yield f"{kind.__name__}.{name}", members
        items = typing.get_args(hint) if typing.get_origin(hint) is tuple else members
        for each in itertools.chain.from_iterable(map(all_types, items)):
            yield from component_fields(each, seen)


def test_a_component_that_may_be_none_has_options():
    # tyro takes an optional component for a fixed value unless its base class is a dataclass.
    found = dict(component_fields(Config, set()))
    assert len(found) > 400
    optional = {name: members for name, members in found.items() if type(None) in members}
    for name, members in optional.items():
        bases = [each for each in members if inspect.isabstract(each)]
        assert all(map(dataclasses.is_dataclass, bases)), name


def test_the_options_of_an_optional_component():
    default = DataConfig(sequence_length=64)
    options = ["--objective", "SpanCorruption", "--objective.mean-span", "5"]
    assert parse(default, options, "train").objective.mean_span == 5.0
