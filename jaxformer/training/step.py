"""The training state and program: sharded initialization, a jitted update and evaluation."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.config.train import TrainConfig
from jaxformer.distributed.compiler_options import compiler_options, init_options
from jaxformer.distributed.copies import sum_over_replicas
from jaxformer.distributed.sharding import batch_sharding, parameter_shardings, spec
from jaxformer.errors import ConfigError
from jaxformer.functional.arrays import on_mesh, place
from jaxformer.functional.float8 import Rounded
from jaxformer.functional.losses.cross_entropy import LossSums
from jaxformer.functional.losses.terms import Terms, collect_terms, with_products
from jaxformer.models.heads.base import Batch, LossOptions, Predictions
from jaxformer.models.lora import abstract_model_of
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import Parameters
from jaxformer.optim.optimizers import Optimizer
from jaxformer.optim.parameter_roles import trained_names
from jaxformer.training.loss import Loss, Sums

METRICS = ("gradient_norm", "learning_rate", "skipped", "skipped_in_a_row", "total_loss", "step")
"""Metrics of a step other than those of its loss."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("step", "params", "opt_state", "rng", "ema", "skipped", "skipped_in_a_row"),
    meta_fields=(),
)
@dataclass(frozen=True)
class TrainState:
    """The complete state of a run between steps: a plain pytree, saved in checkpoints."""

    step: jax.Array
    """int32: batches consumed. The data order is a function of the seed and this number."""
    params: Parameters
    """float32 parameters by dotted path."""
    opt_state: Any
    """The optimizer state."""
    rng: jax.Array
    """The key from which every step's dropout key is derived."""
    ema: Parameters | None
    """The moving average of the trainable parameters, if the run keeps one."""
    skipped: jax.Array
    """int32: number of updates skipped so far because the loss or gradient was not finite."""
    skipped_in_a_row: jax.Array
    """int32: number of consecutive updates skipped most recently."""

    @property
    def best_params(self) -> Parameters:
        """The parameters to evaluate: the averaged ones if the run keeps them."""
        return self.params | (self.ema or {})


class BatchEvaluation(NamedTuple):
    """The results of `TrainProgram.eval_step` on one batch."""

    sums: Sums
    predictions: dict[str, Predictions]
    """By head name, for heads that make predictions."""
    rows: jax.Array
    """int32 `[B]`: the example index of each row, -1 for padding rows."""


class TrainProgram:
    """The computations on the mesh: `init`, `train_step` and `eval_step`.

    Parameters are float32 and laid out by their logical axes; activations are in the model's
    compute dtype. The update is that of the whole batch, independent of gradient accumulation: the
    gradient of the sum of losses divided by the sum of weights, added up over the heads of the
    model.
    """

    def __init__(
        self,
        model: ModelConfig,
        optimizer: Optimizer,
        train: TrainConfig,
        mesh: Mesh,
        loss: Loss | None = None,
    ):
        """Traces the model abstractly; compiles nothing and allocates nothing.

        An `AbstractMesh` suffices to `lower` the step for devices that are not available. `loss` is
        minimized; None uses the sum of the heads' losses.
        """
        self.model, self.train, self.mesh = model, train, mesh
        self.loss = Loss([head.name for head in model.heads]) if loss is None else loss
        self.abstract_model = abstract_model_of(model, train.lora)
        self.schedule = optimizer.schedule.build(train.steps)
        self.trained = trained_names(self.abstract_model, train.frozen)
        float8 = train.float8
        self._float8 = () if float8 is None else float8.kernels(self.abstract_model)
        trained_axes = {name: self.abstract_model.axes[name] for name in self.trained}
        self.optimizer = optimizer.build(train.steps, trained_axes)
        self.param_shardings = parameter_shardings(
            mesh, self.abstract_model.axes, self.abstract_model.shapes
        )
        self.batch_sharding = batch_sharding(mesh)
        self.own_metrics: tuple[str, ...] = ()
        """Metrics that parts of the model add, known once the step is traced."""
        self._init = jax.jit(self._new_state, compiler_options=init_options(mesh) or None)
        options = compiler_options(
            mesh, self._layer_bytes(), model.stacks[0].compute_dtype, train.compiler_options
        )
        self._update = jax.jit(self._updated, donate_argnums=0, compiler_options=options or None)
        self._evaluate = jax.jit(self._evaluated)

    @cached_property
    def state_shapes(self) -> TrainState:
        """Returns the shapes, dtypes and shardings of the state, for restoring a checkpoint."""
        key = jax.random.key(0)
        with on_mesh(self.mesh):
            shapes = jax.eval_shape(self._new_state, key)

        def placed(leaf):
            # Values that do not depend on a parameter (counters) have no sharding in their type.
            spec = PartitionSpec() if leaf.sharding is None else leaf.sharding.spec
            return leaf.update(sharding=NamedSharding(self.mesh, spec))

        return jax.tree.map(placed, shapes)

    def init(self, seed: int) -> TrainState:
        """Returns the initial state, with each parameter created directly in its sharding."""
        key = jax.random.key(seed)
        with on_mesh(self.mesh):
            return self._init(key)

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict]:
        """Runs one update; the given state is donated.

        Args:
            state: From `init` or the previous step.
            batch: The inputs of the model and its heads, batch-first, sharded by `batch_sharding`.

        Returns:
            The next state, and scalar metrics: loss (the sum over the heads of their means),
            accuracy and tokens (of the first head), gradient_norm (before clipping), learning_rate,
            skipped, skipped_in_a_row; with several heads also "<head>_loss" and "<head>_accuracy".
            See `Loss.metrics`. Parts of the model may add others, see `functional.losses.terms`.
        """
        with on_mesh(self.mesh):
            return self._update(state, batch, self.loss.parameters)

    def eval_step(self, params: Parameters, batch: Batch) -> BatchEvaluation:
        """Computes the losses and predictions of a batch, replicated on every process."""
        with on_mesh(self.mesh):
            return self._evaluate(params, batch)

    def lower(self, rows: int, lengths: dict[str, int], **options) -> jax.stages.Lowered:
        """Lowers the training step for a global batch, without arrays or devices.

        Args:
            rows: Number of rows of the batch.
            lengths: The lengths of a row, see `Config.batch_lengths`.
            options: Options of `jax.stages.Traced.lower`.
        """
        spec = self.loss.batch_spec(self.model, rows, lengths)
        batch = {name: x.update(sharding=self.batch_sharding) for name, x in spec.items()}
        state = self.state_shapes
        with on_mesh(self.mesh):
            return self._update.trace(state, batch, self.loss.parameters).lower(**options)

    def _new_state(self, key) -> TrainState:
        init_key, step_key = jax.random.split(key)
        specs = {name: sharding.spec for name, sharding in self.param_shardings.items()}
        # With explicit axes every device would draw each full parameter before slicing it.
        params = jax.sharding.auto_axes(self.abstract_model.init, out_sharding=specs)(init_key)
        zero = jnp.zeros((), jnp.int32)
        learning = self._learning(params)
        return TrainState(
            step=zero,
            params=params,
            opt_state=self.optimizer.init(learning),
            rng=step_key,
            ema=None if self.train.ema_decay is None else learning,
            skipped=zero,
            skipped_in_a_row=zero,
        )

    def _layer_bytes(self) -> int:
        """Returns the gradient bytes of one layer, of the largest if there are several stacks."""
        axes = self.abstract_model.axes
        shapes = self.abstract_model.shapes
        layers: dict[str, int] = {}
        for name in self.trained:
            if axes[name][:1] == ("layers",):
                stack = name.partition(".stack.")[0]
                size = shapes[name].size * 4
                layers[stack] = layers.get(stack, 0) + size // shapes[name].shape[0]
        return max(layers.values(), default=0)

    def _learning(self, params: Parameters) -> Parameters:
        """Returns the parameters that are not frozen."""
        return {name: params[name] for name in self.trained}

    def _limited(self, learning: Parameters) -> Parameters:
        """Clips the parameters with an upper limit (the logit scale of a dual encoder)."""
        largest = self.abstract_model.largest
        limits = {
            name: jnp.minimum(learning[name], largest[name]) for name in learning if name in largest
        }
        return learning | limits

    def _loss(
        self,
        learning: Parameters,
        fixed: tuple[Parameters, Parameters, jax.Array],
        batch: Batch,
        key: jax.Array,
        weights: dict[str, jax.Array],
        rows: int,
    ) -> tuple[jax.Array, tuple[Sums, Terms]]:
        """Computes the loss of a micro-batch, by the weights of the whole batch, and its sums."""
        params, others, step = fixed
        train = self.train
        smoothing, z_loss = train.label_smoothing, train.z_loss
        options = LossOptions(smoothing, z_loss, train.loss_chunk, train.loss, step)
        params = params | learning
        params |= {name: Rounded(params[name]) for name in self._float8}
        model = self.abstract_model.module(params, key)
        sums, terms = collect_terms(self.loss)(model, others, batch, options, key)
        share = next(iter(batch.values())).shape[0] / rows
        terms = {name: share * value for name, value in with_products(terms).items()}
        total = self.loss.total({name: sums[name].loss / weights[name] for name in sums})
        added = (value for (kind, _), value in terms.items() if kind == "weighted")
        return sum(added, start=total), (sums, terms)

    def _gradients(
        self,
        params: Parameters,
        others: Parameters,
        batch: Batch,
        key,
        step: jax.Array | None = None,
    ) -> tuple[Parameters, tuple[Sums, Terms]]:
        """Accumulates the gradient of the whole batch's loss, and its sums, over micro-batches."""
        self.loss.check_batch(self.model, batch)
        weights = self.loss.weights(self.abstract_model.module(params), batch)
        weights = {name: jnp.maximum(weight, 1.0) for name, weight in weights.items()}
        loss = partial(self._loss, rows=next(iter(batch.values())).shape[0])
        learning = self._learning(params)
        differentiate = jax.grad(loss, has_aux=True)
        parts = self.train.gradient_accumulation
        fixed = (params, others, step)
        if parts == 1:
            return differentiate(learning, fixed, batch, key, weights)

        def summed(learning, fixed, split, keys, weights):
            def add_part(total, part):
                gradients, (sums, terms) = differentiate(learning, fixed, *part, weights)
                return jax.tree.map(jnp.add, total, (gradients, sums)), terms

            zeros = LossSums(*[jnp.zeros(())] * 4)
            start = jax.tree.map(jnp.zeros_like, learning), dict.fromkeys(weights, zeros)
            (gradients, sums), terms = jax.lax.scan(add_part, start, (split, keys))
            return gradients, (sums, jax.tree.map(partial(jnp.sum, axis=0), terms))

        split = jax.tree.map(partial(_in_parts, parts=parts), batch)
        arguments = (learning, fixed, split, jax.random.split(key, parts), weights)
        if any(head.compares_rows for head in self.model.heads):
            return summed(*arguments)
        return sum_over_replicas(summed, arguments, cut=2)

    def _updated(
        self, state: TrainState, batch: Batch, others: Parameters | None = None
    ) -> tuple[TrainState, dict]:
        key = jax.random.fold_in(state.rng, state.step)
        gradients, (sums, terms) = self._gradients(
            state.params, others or {}, batch, key, state.step
        )
        norm = optax.tree.norm(gradients)
        if self.train.clip_norm is not None:
            factor = jnp.minimum(1.0, self.train.clip_norm / jnp.maximum(norm, 1e-30))
            gradients = jax.tree.map(lambda g: g * factor, gradients)
        before = self._learning(state.params)
        updates, opt_state = self.optimizer.update(gradients, state.opt_state, before)
        learning = self._limited(optax.apply_updates(before, updates))
        ema = state.ema
        if ema is not None:
            decay = self.train.ema_decay
            ema = jax.tree.map(lambda old, new: decay * old + (1.0 - decay) * new, ema, learning)

        measured = self.loss.metrics(sums)
        measured |= self._own_metrics(terms, measured)
        finite = jnp.isfinite(measured["loss"]) & jnp.isfinite(norm)
        learning, opt_state, ema = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (learning, opt_state, ema),
            (before, state.opt_state, state.ema),
        )
        params = state.params | learning
        skipped = state.skipped + jnp.where(finite, 0, 1)
        in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
        metrics = measured | {
            "gradient_norm": norm,
            "learning_rate": self.schedule(state.step),
            "skipped": skipped,
            "skipped_in_a_row": in_a_row,
        }
        state = TrainState(state.step + 1, params, opt_state, state.rng, ema, skipped, in_a_row)
        return state, metrics

    def _own_metrics(self, terms: Terms, measured: dict) -> dict[str, jax.Array]:
        """Returns the metrics that parts of the model add, and the total loss if they add terms."""
        values = {name: value for (kind, name), value in terms.items() if kind == "loss"}
        added = [value for (kind, _), value in terms.items() if kind == "weighted"]
        metrics = [name for kind, name in terms if kind == "metric"]
        for name in (*values, *metrics):
            if name in {*measured, *METRICS} or (name in values and name in metrics):
                raise ConfigError(f"the metric {name!r} already exists: choose another name")
        values |= {name: terms["metric", name] / terms["count", name] for name in metrics}
        self.own_metrics = tuple(values)
        if added:
            values["total_loss"] = sum(added, start=measured.get("total_loss", measured["loss"]))
        return values

    def _evaluated(self, params: Parameters, batch: Batch) -> BatchEvaluation:
        self.loss.check_batch(self.model, batch)
        options = LossOptions(chunk_size=self.train.loss_chunk)
        model = self.abstract_model.module(params)
        sums, predictions = self.loss.evaluate(model, batch, options)
        everywhere = partial(place, spec=PartitionSpec())
        return BatchEvaluation(sums, *jax.tree.map(everywhere, (predictions, batch["row"])))


def _in_parts(x: jax.Array, parts: int) -> jax.Array:
    """Reshapes `[B, T]` to `[parts, B / parts, T]`; every device keeps its rows."""
    rows = x.reshape(x.shape[0] // parts, parts, *x.shape[1:])
    # If a micro-batch has one row per device, JAX would assign a mesh axis of size 1 to the new
    # axis.
    rows = place(rows, spec("batch", *[None] * x.ndim))
    return jnp.swapaxes(rows, 0, 1)
