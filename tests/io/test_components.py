"""Which classes may stand in a field: all that are concrete, imported yet or not."""

import subprocess
import sys
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path

import pytest

from jaxformer.config import Config, load_config
from jaxformer.config.overrides import _owners, component_choices, parse
from jaxformer.data import Data, Objective
from jaxformer.errors import ConfigError
from jaxformer.functional import LayerNorm, NoPosition, Norm, Position, RoPE
from jaxformer.io.components import (
    all_types,
    find_type,
    imported_types,
    is_concrete,
    is_library,
    type_name,
)
from jaxformer.models import DecoderConfig, Head
from jaxformer.nn import Residual, TransformerConfig
from jaxformer.optim import LAMB, AdamW, Optimizer, Schedule

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "configs").glob("*.py"))
BASES = Position, Norm, TransformerConfig, Schedule, Data, Optimizer, Head, Residual, Objective


def test_bases_are_no_choice_and_what_others_derive_from_is():
    assert not any(is_concrete(kind) for kind in BASES)
    assert {AdamW, LAMB} < set(all_types(Optimizer))
    assert {NoPosition, RoPE} < set(all_types(Position))
    assert {kind.__name__ for kind in all_types(Schedule)} == {
        "Constant",
        "Cosine",
        "InverseSquareRoot",
        "Linear",
        "WarmupStableDecay",
    }
    assert all_types(int) == all_types(int | None) == all_types(None) == []


def test_a_class_of_the_users_hides_nothing():
    @dataclass(frozen=True)
    class MyRoPE(RoPE):
        """A user's."""

    class Undecorated(LayerNorm):
        """It has the fields of the class that it derives from."""

    class Unfinished(Norm):
        """It lacks methods."""

    @dataclass(frozen=True)
    class LayerNormAgain(LayerNorm):
        """It will have another's name."""

    LayerNormAgain.__name__ = "LayerNorm"
    model = DecoderConfig(vocab_size=8, num_layers=1, model_dim=8, num_heads=1, mlp_dim=8)
    positions, norms = (component_choices(model, name) for name in ("position", "norm"))
    assert positions["MyRoPE"] is MyRoPE
    assert positions["RoPE"] is RoPE
    assert norms["Undecorated"] is Undecorated
    assert "Unfinished" not in norms
    assert norms["LayerNorm"] is LayerNorm
    assert norms[type_name(LayerNormAgain)] is LayerNormAgain


def test_all_are_found_before_they_are_imported():
    program = (
        "from jaxformer.io.components import *\n"
        "from jaxformer.data import Data\n"
        "import sys\n"
        "assert 'jaxformer.data.tasks.tags.tagged_text' not in sys.modules\n"
        "assert find_type('TaggedText', Data).__name__ == 'TaggedText'\n"
        "assert find_type('jaxformer.data.anywhere.TaggedText', Data).__name__ == 'TaggedText'\n"
        "assert 'LabelledText' in [kind.__name__ for kind in all_types(Data)]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_the_name_of_a_component_says_which_it_is(base):
    names = [type_name(kind) for kind in all_types(base) if is_library(kind.__module__)]
    assert names
    assert len(names) == len(set(names))


def test_nothing_is_found_outside_of_the_bases_package():
    assert find_type("jaxformer.functional.norms.RMSNorm", Norm) in imported_types(Norm)
    assert find_type("jaxformer.functional.norms.RMSNorm", Position) is None
    assert find_type("jaxformer.__main__.main", Config) is None
    assert find_type("jaxformer.functional.norms.Norm", Norm) is None
    assert find_type("antigravity.Norm", Norm) is None
    assert "antigravity" not in sys.modules


def component_fields(config):
    """Every field in a tree in which components can stand: its owner, its name, its option."""
    for option, owner in _owners(config, "--"):
        for field in fields(owner):
            if component_choices(owner, field.name):
                yield owner, field.name, option + field.name.replace("_", "-")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_component_of_every_experiment_is_among_its_choices(path):
    config = load_config(str(path))
    found = list(component_fields(config))
    assert len(found) > (10 if config.model is not None else 5)
    for owner, name, _ in found:
        choices, value = component_choices(owner, name), getattr(owner, name)
        for item in value if isinstance(value, tuple) else (value,):
            if getattr(item, "parts", {}):
                continue  # composite models are not among them
            if is_dataclass(item):
                assert choices[type(item).__name__] is type(item)
            else:
                assert choices[str(item)] == item


@pytest.mark.slow
def test_each_choice_is_taken_or_asks_for_the_fields_that_it_needs(capsys):
    seen = set()
    for path in EXPERIMENTS:
        config = load_config(str(path))
        for owner, field, option in component_fields(config):
            choices = component_choices(owner, field)
            for name in choices.keys() - seen:
                # Other tests of this process may have defined experiments' own classes.
                if not getattr(choices[name], "__module__", "jaxformer").startswith("jaxformer"):
                    continue
                check_choice(config, option, name, choices[name], capsys)
            seen |= choices.keys()
    assert len(seen) > 60


def check_choice(config, option, name, choice, capsys):
    items = fields(choice) if is_dataclass(choice) else ()
    needed = [item.name for item in items if has_no_default(item)]
    try:
        parse(config, [option, name], "train.py")
    except ConfigError:  # it does not fit the rest of this experiment
        assert not needed
    except SystemExit:
        text = capsys.readouterr().err
        assert "Missing from train.py" in text
        assert all(f".{field.replace('_', '-')} " in text for field in needed)
    else:
        assert not needed


def has_no_default(field):
    return field.default is MISSING and field.default_factory is MISSING
