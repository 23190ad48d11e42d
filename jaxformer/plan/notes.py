"""What a plan does not count, or counts in a way of its own: a sentence for each."""

from collections.abc import Iterator

from jaxformer.distributed.sharding import parameter_shardings
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel
from jaxformer.nn.remat import Remat, RematNames
from jaxformer.plan.program import Operation, each_operation
from jaxformer.plan.trace import TracedStep, described, teacher_of
from jaxformer.training.logging.report import bytes_per_device, short_bytes


def notes_of(step: TracedStep) -> Iterator[str]:
    """What has to be known of the figures of a step.

    Args:
        step: The step.

    Yields:
        A sentence for each, without its period.
    """
    config = step.config
    _, unknown = teacher_of(config.train)
    if unknown:
        yield f"the teacher is not counted, neither its memory nor its time: {unknown}"
    if config.train.preference is not None:
        yield _of_reference(step)
    if config.train.steps is None:
        yield (
            f"days are not known: train.epochs = {config.train.epochs:g} counts rows of the data, "
            "which are not read; give --train.steps"
        )
    if {"inputs", "images"} <= {*config.model.required}:
        yield "tokens are those of the texts; the images are counted in time and memory alone"
    offloaded = _offloaded_bytes(step)
    if offloaded:
        yield (
            f"{short_bytes(offloaded)} of activations of each device are offloaded to its host; "
            "the time of the copies is not counted"
        )


def remat_in_words(model: ModelConfig) -> str:
    """How a model is rematerialised: "remat dots"."""
    found = dict.fromkeys(_one_remat_in_words(stack.remat) for stack in model.stacks)
    return f"remat {' and '.join(found)}"


def _one_remat_in_words(remat: Remat) -> str:
    if not isinstance(remat, RematNames):
        return remat
    names = {"save": remat.save, "offload": remat.offload}
    said = [f"{how} {' + '.join(which)}" for how, which in names.items() if which]
    return " ".join(said) or "full"


def _of_reference(step: TracedStep) -> str:
    """What the reference of preferences takes, which is asked before the first step alone."""
    asked = "the reference's log-probabilities are computed before the first step, whose time"
    name = step.config.train.preference.reference
    if name is None:
        return f"{asked} is not counted; it is the model itself, and takes no more memory"
    model, unknown = described(name, "train.preference.reference")
    if model is None:
        return f"{asked} and memory are not counted: {unknown}"
    structure = AbstractModel(model.build)
    cut = parameter_shardings(step.train_program.mesh, structure.axes, structure.shapes)
    held = bytes_per_device([x.update(sharding=cut[n]) for n, x in structure.shapes.items()])
    return (
        f"{asked} is not counted; until then its parameters take {short_bytes(held)} of each "
        "device beside the state"
    )


def _offloaded_bytes(step: TracedStep) -> int:
    """Bytes that a device hands to the memory of its host in one part of a batch."""
    total = 0

    def visit(op: Operation, times: int) -> None:
        nonlocal total
        if op.name == "device_put":
            total += times * sum(value.bytes for value in op.results if value.on_host)

    each_operation(step.program, visit)
    return total // step.config.train.gradient_accumulation
