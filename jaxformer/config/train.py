"""The settings of the training loop: how long to train, what to monitor and what to keep."""

from dataclasses import dataclass, replace
from typing import ClassVar

from jaxformer.checks import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    RATE,
    Rule,
    at_least,
    check_field,
    check_fields,
    check_types,
    optional,
)
from jaxformer.config.loggers import Logger, TensorBoard
from jaxformer.data import Data
from jaxformer.distributed.compiler_options import parsed
from jaxformer.functional.losses.preferences import FLIP_RATE, LossType
from jaxformer.io.paths import any_path
from jaxformer.models.float8 import Float8
from jaxformer.models.heads.base import LossFunction
from jaxformer.models.lora import LoRA

_WITHOUT_LOSS = {
    "label_smoothing": "0 with train.loss, which replaces the cross-entropy and its extra terms",
    "z_loss": "0 with train.loss, which replaces the cross-entropy and its extra terms",
    "loss_chunk": "None with train.loss, which needs whole rows",
}
_WITHOUT_PREFERENCE = {
    "label_smoothing": "0 with preference; use train.preference.label_smoothing",
    "z_loss": "0 with preference",
    "loss": "None with preference, since the two cannot be combined",
    "distillation": "None with preference, since the two cannot be combined",
}
# All other metrics are fractions or correlations.
_LOWER_IS_BETTER = ("loss", "perplexity", "squared_error", "bits_per_byte", "wer")


@dataclass(frozen=True)
class Distillation:
    r"""Knowledge distillation from a trained teacher.

    .. math::
      L = w_{soft}\, \tau^2\, \mathrm{KL}(p^{teacher}_\tau \,\|\, p^{student}_\tau)
          + w_{hard}\, L_{heads} + w_{cos}\, (1 - \cos(h^{student}, h^{teacher}))

    Each term is a mean over the positions where it applies. The cosine term applies to all real
    tokens. With a masked language model the soft term does too, for masked and unmasked tokens, as
    in DistilBERT's released training. With a causal language model they apply where the batch
    weights the next token, with a classifier where it weights the label: no other positions
    (prompt, padding) are predicted when the student is used.

    The teacher reads the same batches, without dropout. Its averaged parameters are used if it has
    them.

    References:
        Sanh et al., DistilBERT (https://arxiv.org/abs/1910.01108);
        Hinton et al., Distilling the Knowledge in a Neural Network
        (https://arxiv.org/abs/1503.02531).
    """

    teacher: str
    """The teacher: a run folder, whose newest checkpoint is read, RUN/checkpoints/STEP, or the
    folder or hub name of a Hugging Face checkpoint.
    """
    temperature: float = 2.0
    """Temperature that divides the logits of teacher and student in the soft predictions."""
    soft_weight: float = 5.0
    """Weight of the divergence from the teacher's soft predictions."""
    hard_weight: float = 2.0
    """Weight of the heads' own losses."""
    cosine_weight: float = 1.0
    """Weight of the distance of hidden states, which needs a teacher of the same width; 0 disables
    it.
    """

    def __post_init__(self):
        check_types(self)
        any_path(self.teacher, "train.distillation.teacher")
        weights = ("soft_weight", "hard_weight", "cosine_weight")
        check_fields(self, temperature=POSITIVE, **dict.fromkeys(weights, NOT_NEGATIVE))
        some = self.soft_weight > 0 or self.cosine_weight > 0
        rule = "positive unless cosine_weight is: otherwise nothing is learned"
        check_field(self, "soft_weight", some, rule)


@dataclass(frozen=True, kw_only=True)
class Preference:
    """Base class of preference losses, which compare a policy with a reference."""

    disable_dropout: bool = True
    """Disable dropout in the policy, as in the reference."""
    reference: str | None = None
    """The folder of the reference: a run, one of its checkpoints, or a Hugging Face checkpoint (or
    its hub name); None uses the initial model of the run."""

    _rules: ClassVar[dict[str, Rule]] = {}
    """The rules for the numbers of a loss."""

    def __post_init__(self):
        check_types(self)
        if self.reference is not None:
            any_path(self.reference, "train.preference.reference")
        check_fields(self, "train.preference", **self._rules)


@dataclass(frozen=True)
class DPO(Preference):
    r"""Direct preference optimisation: the loss of a run on `PreferenceData`.

    .. math::
      L = L_{pairs} + w_{sft}\, L_{chosen}

    The first term is the mean of `functional.dpo_loss` over the pairs of a batch, the second the
    mean cross-entropy over the tokens of the chosen answers. The log-probabilities of the reference
    are computed once, before the first step, and kept in the run's folder.

    References:
        Rafailov et al., Direct Preference Optimization (https://arxiv.org/abs/2305.18290).
    """

    compares: ClassVar[str] = "pairs of answers"
    data: ClassVar[str] = "PreferenceData"

    beta: float = 0.1
    """Strength of the regularization towards the reference; called tau in the IPO paper."""
    loss_type: LossType = "sigmoid"
    """The loss function: "sigmoid" (DPO), "robust" (robust DPO), "hinge" (SLiC-HF), "ipo"."""
    label_smoothing: float = 0.0
    """Probability that the labels of a preference pair are flipped, below 0.5."""
    sft_weight: float = 0.0
    """Weight of the mean token loss of the chosen answers, as in supervised fine-tuning."""

    _rules: ClassVar = {"beta": POSITIVE, "label_smoothing": FLIP_RATE, "sft_weight": NOT_NEGATIVE}


@dataclass(frozen=True)
class KTO(Preference):
    """Kahneman-Tversky optimisation: the loss of a run on `UnpairedPreferenceData`.

    The loss is the mean of `functional.kto_loss` over the answers of a batch. Its divergence is a
    mean over the rows computed together; with gradient accumulation these are the rows of a
    micro-batch. The log-probabilities of the reference are computed once, before the first step,
    and kept in the run's folder.

    References:
        Ethayarajh et al., KTO (https://arxiv.org/abs/2402.01306).
    """

    compares: ClassVar[str] = "judged answers"
    data: ClassVar[str] = "UnpairedPreferenceData"

    beta: float = 0.1
    """Strength of the regularization towards the reference."""
    desirable_weight: float = 1.0
    """Weight of desirable answers. With d of them and u others, the paper advises a ratio
    d x desirable_weight / (u x undesirable_weight) from 1 to 4/3."""
    undesirable_weight: float = 1.0
    """Weight of undesirable answers."""

    _rules: ClassVar = {
        "beta": POSITIVE,
        "desirable_weight": NOT_NEGATIVE,
        "undesirable_weight": NOT_NEGATIVE,
    }


@dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    steps: int | None = 1000
    """Number of optimizer updates in the whole run; None derives it from `epochs`."""
    epochs: float | None = None
    """Passes over the training rows in the whole run, if `steps` is None."""
    seed: int = 0
    """Seed of the initial parameters and dropout; data.seed determines the order of the data."""
    gradient_accumulation: int = 1
    """Number of micro-batches per update; the update equals that of the whole batch."""
    clip_norm: float | None = 1.0
    """Maximum global norm of the gradient; None disables clipping."""
    ema_decay: float | None = None
    """Decay of the moving average of parameters that evaluation uses; None disables it."""
    loss: LossFunction | None = None
    """The loss of classification heads; None uses the cross-entropy. The validation loss is always
    the cross-entropy, also with label smoothing.
    """
    z_loss: float = 0.0
    """Weight of the squared log-partition function in the loss."""
    label_smoothing: float = 0.0
    """Probability mass spread uniformly over the vocabulary in the training targets."""
    frozen: tuple[str, ...] = ()
    """Parameters to freeze, as patterns of their names: "embedding.*", "*.stack.*"."""
    lora: LoRA | None = None
    """Low-rank factors to train instead of the model's parameters; None disables them."""
    float8: Float8 | None = None
    """Products of the blocks' linear maps in float8, for GPUs that multiply them faster; None
    computes them in the compute dtype.
    """
    distillation: Distillation | None = None
    """Knowledge distillation from a teacher; None disables it."""
    preference: DPO | KTO | None = None
    """The preference loss: DPO for pairs of answers, KTO for individually rated answers; None for
    other data.
    """
    loss_chunk: int | None = None
    """Number of positions whose logits are in memory at a time in the loss. None computes a whole
    batch at once; with masked tokens, an eighth of the positions, which holds all masked ones.
    """
    max_nonfinite_steps: int = 10
    """Number of consecutive updates with a non-finite loss or gradient that stop the run."""
    eval_interval: int = 250
    """Steps between evaluations."""
    metric: str = "loss"
    """The validation metric that selects the best checkpoint and that patience monitors."""
    patience: int | None = None
    """Number of consecutive evaluations without improvement that end the run; None disables it."""
    checkpoint_interval: int = 250
    """Steps between checkpoints."""
    keep: int = 2
    """Number of newest checkpoints to keep in addition to the one with the best validation metric.
    """
    log_interval: int = 10
    """Steps between logged rows of metrics."""
    compiler_options: tuple[str, ...] = ()
    """XLA options for the training step as "NAME=VALUE", which extend or override those of
    `distributed.compiler_options`; options of other platforms are ignored.
    """
    loggers: tuple[Logger, ...] = (TensorBoard(),)
    """Where to log metrics in addition to metrics.jsonl: TensorBoard, WeightsAndBiases, or both."""
    profile_steps: tuple[int, int] | None = None
    """First and last step to trace with the JAX profiler into the run's folder; None disables it.
    """
    sample_prompt: str = ""
    """Prompt of the logged samples; empty starts a new document."""
    sample_tokens: int = 200
    """Number of tokens of a sample; 0 disables samples."""
    sample_temperature: float = 0.8
    """Sampling temperature of samples; 0 selects the most likely token."""
    sample_interval: int | None = None
    """Steps between samples during training, logged as text; None samples only at the end."""

    def for_rows(self, rows: int, data: Data) -> "TrainConfig":
        """Returns a copy with the `steps` that read the training rows `epochs` times."""
        if self.steps is not None:
            return self
        return replace(self, steps=data.steps_for(self.epochs * rows))

    def __post_init__(self):
        check_types(self, "train")
        positive = (
            "gradient_accumulation",
            "max_nonfinite_steps",
            "eval_interval",
            "checkpoint_interval",
            "keep",
            "log_interval",
        )
        optional_steps = ("steps", "loss_chunk", "patience", "sample_interval")
        check_fields(
            self,
            "train",
            **dict.fromkeys(positive, at_least(1)),
            **dict.fromkeys(("seed", "sample_tokens"), at_least(0)),
            **dict.fromkeys(("z_loss", "sample_temperature"), NOT_NEGATIVE),
            **dict.fromkeys(optional_steps, optional(at_least(1))),
            clip_norm=optional(POSITIVE),
            ema_decay=optional(FRACTION),
            epochs=optional(POSITIVE),
            label_smoothing=RATE,
        )
        parsed(self.compiler_options)
        known = self.steps is not None or self.epochs is not None
        check_field(self, "steps", known, "a number of steps, or None with epochs", "train")
        chunked = self.distillation is not None and self.loss_chunk is not None
        rule = "None with distillation, which compares all logits of a batch at once"
        check_field(self, "loss_chunk", not chunked, rule, "train")
        rule = "None with lora, whose kernels do not learn"
        check_field(self, "float8", self.float8 is None or self.lora is None, rule, "train")
        for other, rules in ((self.loss, _WITHOUT_LOSS), (self.preference, _WITHOUT_PREFERENCE)):
            for name, rule in rules.items():
                check_field(self, name, other is None or not getattr(self, name), rule, "train")
        window = self.profile_steps
        ordered = window is None or (len(window) == 2 and 1 <= window[0] <= window[1])
        rule = "a first and a last step, counted from 1"
        check_field(self, "profile_steps", ordered, rule, "train")


def lower_is_better(metric: str) -> bool:
    """Whether lower values of a metric ("loss", "tags_loss") are better."""
    return any(metric == name or metric.endswith("_" + name) for name in _LOWER_IS_BETTER)


def cost(metric: str, value: float | None) -> float | None:
    """Returns a metric as a cost (lower is better), or None if it was not measured."""
    return value if value is None or lower_is_better(metric) else -value
