"""The parameters of a finished run, and of one of its checkpoints."""

from pathlib import Path

import numpy as np
import pytest

from jaxformer.checkpoints.saved_run import SavedRun, run_and_step
from jaxformer.errors import ConfigError

RUN = Path(__file__).parents[1] / "fixtures" / "run_6e84e0a"


def test_a_checkpoints_folder_names_its_step():
    assert run_and_step(RUN / "checkpoints" / "300") == (RUN, 300)
    assert run_and_step(RUN) == (RUN, None)


def test_the_newest_checkpoint_is_that_of_the_last_step():
    newest, fourth = SavedRun(RUN), SavedRun(RUN / "checkpoints" / "4")
    assert newest.step == fourth.step == 4
    assert newest.shapes == fourth.shapes
    one, other = (saved.read(saved.shapes) for saved in (newest, fourth))
    for name, shape in newest.shapes.items():
        assert one[name].shape == shape
        np.testing.assert_array_equal(one[name], other[name])


def test_a_step_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match=r"--step 5: no such checkpoint.*contains 4"):
        SavedRun(RUN, step=5)
