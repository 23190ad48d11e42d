"""The folder of a run whose start fails."""

import pytest
from tiny_models import tiny

from jaxformer.checkpoints.run_dir import locked, open_run_folder
from jaxformer.config import Config

CONFIG = Config(tiny())


def start_and_fail(run, folder):
    with locked(run):
        open_run_folder(run, CONFIG)
        (run / "tokenizer").mkdir()
        (run / folder).mkdir(parents=True, exist_ok=True)
        raise KeyboardInterrupt


def test_a_start_that_fails_leaves_no_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        start_and_fail(tmp_path / "run", "corpus-1")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", [".corpus-1", "corpus-1", "source-0/corpus-1"])
def test_shards_that_a_failed_start_has_made_are_kept_for_the_next(tmp_path, name):
    run, shard = tmp_path / "run", f"{name}/shard-00000"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            start_and_fail(run, shard)
        assert [path.name for path in run.iterdir()] == [name.partition("/")[0]]
        assert (run / shard).exists()
    with locked(run):
        open_run_folder(run, CONFIG)
    assert (run / "config.json").exists()
