"""Whatever is wrong with a folder is one sentence that names the file, soon, or is harmless."""

import random
import time

import pytest
from saved_folders import copy_of, save_tiny
from soak.folders import ATTACKS

from jaxformer.data.tokenizers.prompts import read_prompt_encoder
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.model_files import GENERATION, read_object, side_files
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.reader import open_folder
from jaxformer.pretrained.writing import save

pytestmark = pytest.mark.torch

TRIED, PARTS = 150, 30
SECONDS = 5.0


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """One folder with one file of tensors, and one with several."""
    whole = save_tiny("llama", tmp_path_factory.mktemp("models") / "llama")
    save(load(whole), whole.with_name("shards"), max_shard_bytes=60_000)
    return whole, whole.with_name("shards")


def described(folder):
    """All that is understood of a folder before the model runs."""
    side_files(folder)
    opened = open_folder(folder)
    encoder = read_prompt_encoder(folder)
    encoder.plain("the dog runs")
    read_object(folder, GENERATION)
    return opened.checkpoint.config


def problem(source, folder, expected):
    """What is wrong with how a spoiled copy is answered; None if nothing is."""
    started = time.process_time()
    try:
        found = described(folder)
    except (ConfigError, DataError) as error:
        named = str(folder) in str(error) and len(str(error)) < 2000
        wrong = None if named else f"not one sentence that names the file: {error}"
    except BaseException as error:
        return repr(error)
    else:
        same = (folder / "config.json").read_bytes() == (source / "config.json").read_bytes()
        wrong = f"another configuration: {found}" if same and found != expected else None
    return wrong if time.process_time() - started < SECONDS else "too slow"


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.quick("6")
def test_spoiled_folders_are_refused_in_one_sentence(part, sources, tmp_path):
    expected = {source: described(source) for source in sources}
    for seed in range(part, TRIED, PARTS):
        source, dice = sources[seed % 3 == 0], random.Random(seed)
        folder = copy_of(source, tmp_path / str(seed))
        done = dice.choice(ATTACKS)(folder, dice)
        assert problem(source, folder, expected[source]) is None, f"seed {seed}: {done}"
