"""How long to train, what to watch and what to keep: the settings of the training loop."""

from dataclasses import dataclass, replace
from typing import ClassVar

from jaxformer.checks import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    RATE,
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
from jaxformer.models.heads.base import LossFunction
from jaxformer.models.lora import LoRA

_WITHOUT_LOSS = {
    "label_smoothing": "0 with train.loss, which replaces the cross-entropy and its terms",
    "z_loss": "0 with train.loss, which replaces the cross-entropy and its terms",
    "loss_chunk": "None with train.loss, which sees whole rows",
}
_WITHOUT_PREFERENCE = {
    "label_smoothing": "0 with preference, which has its own (train.preference.label_smoothing)",
    "z_loss": "0 with preference",
    "loss": "None with preference: a run has one of the two",
    "distillation": "None with preference: a run has one of the two",
}
# All other metrics are shares or correlations.
_LOWER_IS_BETTER = ("loss", "perplexity", "squared_error", "bits_per_byte", "wer")


@dataclass(frozen=True)
class Distillation:
    r"""A finished run as the teacher of this one.

    .. math::
      L = w_{soft}\, \tau^2\, \mathrm{KL}(p^{teacher}_\tau \,\|\, p^{student}_\tau)
          + w_{hard}\, L_{heads} + w_{cos}\, (1 - \cos(h^{student}, h^{teacher}))

    Each term is a mean over the places where it counts. The cosine counts at all real tokens. The
    soft predictions of masked tokens do so too, masked or not, as in DistilBERT's released
    training: the teacher has something to say about each. Those of a language model count where
    the batch weighs the next token, those of a classifier where it weighs the label: elsewhere (a
    prompt, padding) nothing is predicted when the student is used.

    The teacher reads the same batches, without dropout. Its averaged parameters are taken, where
    it has them.

    References:
        Sanh et al., DistilBERT (https://arxiv.org/abs/1910.01108);
        Hinton et al., Distilling the Knowledge in a Neural Network
        (https://arxiv.org/abs/1503.02531).
    """

    teacher: str
    """The teacher's run folder, whose newest checkpoint is read, or RUN/checkpoints/STEP; or the
    folder or the name on the hub of a Hugging Face checkpoint."""
    temperature: float = 2.0
    """What both sides' logits are divided by in the soft predictions."""
    soft_weight: float = 5.0
    """Weight of the divergence from the teacher's soft predictions."""
    hard_weight: float = 2.0
    """Weight of the heads' own losses."""
    cosine_weight: float = 1.0
    """Weight of the hidden states' distance; it needs a teacher of the same width. 0: no term."""

    def __post_init__(self):
        check_types(self)
        any_path(self.teacher, "train.distillation.teacher")
        weights = ("soft_weight", "hard_weight", "cosine_weight")
        check_fields(self, temperature=POSITIVE, **dict.fromkeys(weights, NOT_NEGATIVE))
        some = self.soft_weight > 0 or self.cosine_weight > 0
        check_field(self, "soft_weight", some, "positive, or cosine_weight be: nothing is learned")


@dataclass(frozen=True, kw_only=True)
class Preference:
    """What the losses of preferences share: a policy that is compared with a reference."""

    disable_dropout: bool = True
    """Compute the policy without dropout, as the reference is; otherwise it is the model's."""
    reference: str | None = None
    """The folder of the reference: a run, one of its checkpoints, or a Hugging Face checkpoint (or
    its name on the hub); None: the model that the run starts from."""

    def __post_init__(self):
        check_types(self)
        if self.reference is not None:
            any_path(self.reference, "train.preference.reference")


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
    """The strength of the pull towards the reference; IPO's paper calls it tau."""
    loss_type: LossType = "sigmoid"
    """The shape of the loss: "sigmoid" (DPO), "robust" (robust DPO), "hinge" (SLiC-HF), "ipo"."""
    label_smoothing: float = 0.0
    """The probability that a preference is the wrong way round, below 0.5."""
    sft_weight: float = 0.0
    """Weight of the mean token loss of the chosen answers, as in supervised fine-tuning."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(
            self,
            "train.preference",
            beta=POSITIVE,
            label_smoothing=FLIP_RATE,
            sft_weight=NOT_NEGATIVE,
        )


@dataclass(frozen=True)
class KTO(Preference):
    """Kahneman-Tversky optimisation: the loss of a run on `UnpairedPreferenceData`.

    The loss is the mean of `functional.kto_loss` over the answers of a batch. Its divergence is a
    mean over the rows that are computed together: with gradient accumulation, those of a part. The
    log-probabilities of the reference are computed once, before the first step, and kept in the
    run's folder.

    References:
        Ethayarajh et al., KTO (https://arxiv.org/abs/2402.01306).
    """

    compares: ClassVar[str] = "judged answers"
    data: ClassVar[str] = "UnpairedPreferenceData"

    beta: float = 0.1
    """The strength of the pull towards the reference."""
    desirable_weight: float = 1.0
    """Weight of desirable answers. With d of them and u others, the paper advises a ratio
    d x desirable_weight / (u x undesirable_weight) from 1 to 4/3."""
    undesirable_weight: float = 1.0
    """Weight of undesirable answers."""

    def __post_init__(self):
        super().__post_init__()
        check_fields(
            self,
            "train.preference",
            beta=POSITIVE,
            desirable_weight=NOT_NEGATIVE,
            undesirable_weight=NOT_NEGATIVE,
        )


@dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    steps: int | None = 1000
    """Optimizer updates in the whole run; None: as many as `epochs` take."""
    epochs: float | None = None
    """Passes over the training rows in the whole run, where `steps` is None."""
    seed: int = 0
    """Seed of the initial parameters and of dropout; the order of the data is data.seed."""
    gradient_accumulation: int = 1
    """Parts in which a batch is computed; the update equals that of the whole batch."""
    clip_norm: float | None = 1.0
    """Largest global norm of the gradient; None: no clipping."""
    ema_decay: float | None = None
    """Decay of the moving average of the parameters that evaluation uses; None: no average."""
    loss: LossFunction | None = None
    """The loss of the heads that choose among classes; None: the cross-entropy. The validation loss
    is the cross-entropy in any case, as it is with label smoothing."""
    z_loss: float = 0.0
    """Weight of the squared log-partition function in the loss."""
    label_smoothing: float = 0.0
    """Probability mass spread over the whole vocabulary in the training targets."""
    frozen: tuple[str, ...] = ()
    """Parameters that do not learn, as patterns of their names: "embedding.*", "*.stack.*"."""
    lora: LoRA | None = None
    """Low-rank factors that learn in place of the model's own parameters; None: no factors."""
    distillation: Distillation | None = None
    """A finished run as the teacher; None: no teacher."""
    preference: DPO | KTO | None = None
    """The loss of preferences: DPO for pairs of answers, KTO for judged ones; None: the data have
    none."""
    loss_chunk: int | None = None
    """Positions whose logits exist at a time in the loss; None: all of a batch at once, or an
    eighth of the positions where tokens are masked, of which the others are not computed."""
    max_nonfinite_steps: int = 10
    """Updates with a non-finite loss or gradient, in a row, that stop the run."""
    eval_interval: int = 250
    """Steps between evaluations."""
    metric: str = "loss"
    """The validation metric by which the best checkpoint is chosen and that patience watches."""
    patience: int | None = None
    """Evaluations in a row without a better metric that end the run; None: it takes all steps."""
    checkpoint_interval: int = 250
    """Steps between checkpoints."""
    keep: int = 2
    """Newest checkpoints to keep; the one with the best validation metric is kept besides."""
    log_interval: int = 10
    """Steps between rows of metrics."""
    compiler_options: tuple[str, ...] = ()
    """Options of XLA for the training step, "NAME=VALUE" each, besides those of
    `distributed.compiler_options` or in their place; another platform's are ignored."""
    loggers: tuple[Logger, ...] = (TensorBoard(),)
    """Where metrics are shown besides metrics.jsonl: TensorBoard, WeightsAndBiases, or both."""
    profile_steps: tuple[int, int] | None = None
    """First and last step to trace with the JAX profiler, into the run's folder; None: no trace."""
    sample_prompt: str = ""
    """Start of the text that the trained model continues; empty: the start of a document."""
    sample_tokens: int = 200
    """Tokens of that sample; 0: no sample."""
    sample_temperature: float = 0.8
    """Temperature of that sample; 0: the most likely token each time."""
    sample_interval: int | None = None
    """Steps between such samples during training, as text in TensorBoard; None: at the end."""

    def for_rows(self, rows: int, data: Data) -> "TrainConfig":
        """Returns the same with the steps that the epochs take.

        Args:
            rows: Of the training data.
            data: How many of them a step reads.
        """
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
        for other, rules in ((self.loss, _WITHOUT_LOSS), (self.preference, _WITHOUT_PREFERENCE)):
            for name, rule in rules.items():
                check_field(self, name, other is None or not getattr(self, name), rule, "train")
        window = self.profile_steps
        ordered = window is None or (len(window) == 2 and 1 <= window[0] <= window[1])
        rule = "a first and a last step, counted from 1"
        check_field(self, "profile_steps", ordered, rule, "train")


def lower_is_better(metric: str) -> bool:
    """Whether a metric, perhaps that of one head ("tags_loss"), is better where it is smaller."""
    return any(metric == name or metric.endswith("_" + name) for name in _LOWER_IS_BETTER)


def cost(metric: str, value: float | None) -> float | None:
    """A metric as a number that is better where it is smaller; None where it was not measured."""
    return value if value is None or lower_is_better(metric) else -value
