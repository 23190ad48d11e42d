"""Runs that were not trained, with what their evaluation predicts."""

from jaxformer.checkpoints.checkpointer import Checkpointer
from jaxformer.checkpoints.run_dir import open_run_folder
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.io.serialization import to_json
from jaxformer.training.evaluation.evaluate import Evaluator
from jaxformer.training.step import TrainProgram


def measured(folder, config, params_of):
    """Saves a run with the parameters that `params_of` makes of its program.

    Returns what evaluation predicts for its validation rows, and its data.
    """
    open_run_folder(folder, config)
    data = config.data.prepare(folder)
    program = TrainProgram(config.model, config.optimizer, config.train, make_mesh(MeshConfig()))
    params = params_of(program)
    checkpoints = Checkpointer(folder / "checkpoints", to_json(config), keep=1)
    checkpoints.save(3, {"params": params})
    checkpoints.close()
    (result,) = Evaluator(program, data, None).measure(params).values()
    return result, data
