"""The training program: sharded initialisation, one jitted update, one jitted evaluation."""

from functools import cached_property, partial

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxformer.functional.losses import LossSums, chunked_cross_entropy, cross_entropy
from jaxformer.functional.placement import place
from jaxformer.models.config import DecoderConfig
from jaxformer.models.decoder import Decoder, logits
from jaxformer.models.parameters import Parameters, Template
from jaxformer.sharding import RULES, parameter_sharding
from jaxformer.training.config import TrainConfig
from jaxformer.training.optim import Optimizer
from jaxformer.training.state import TrainState

Batch = dict[str, jax.Array]


class TrainProgram:
    """What runs on the mesh: `init`, `train_step`, `eval_step`.

    Parameters are float32 and laid out by their logical axes; activations are in the model's
    compute dtype. The update is that of the whole batch, whatever the accumulation: the gradient
    of the sum of token losses over the sum of token weights.
    """

    def __init__(self, model: DecoderConfig, optimizer: Optimizer, train: TrainConfig, mesh: Mesh):
        """Traces the model abstractly; compiles nothing and allocates nothing.

        An `AbstractMesh` is enough to `lower` the step for a machine that is not at hand.
        """
        self.model, self.train, self.mesh = model, train, mesh
        self.template = Template(partial(Decoder, config=model))
        self.schedule = optimizer.schedule.build(train.steps)
        self.optimizer = optimizer.build(train.steps, self.template.axes)
        self.param_shardings = {
            name: parameter_sharding(mesh, name, axes, self.template.shapes[name].shape)
            for name, axes in self.template.axes.items()
        }
        self.batch_sharding = NamedSharding(mesh, PartitionSpec(RULES["batch"], None))
        self._init = jax.jit(self._new_state)
        self._update = jax.jit(self._updated, donate_argnums=0)
        self._evaluate = jax.jit(self._evaluated)

    @cached_property
    def state_shapes(self) -> TrainState:
        """The state's shapes, dtypes and shardings, for restoring a checkpoint into."""
        key = jax.random.key(0)
        with self._on_mesh():
            shapes = jax.eval_shape(self._new_state, key)

        def placed(leaf):
            # What does not depend on a parameter (counters) has no sharding in its type.
            spec = PartitionSpec() if leaf.sharding is None else leaf.sharding.spec
            return leaf.update(sharding=NamedSharding(self.mesh, spec))

        return jax.tree.map(placed, shapes)

    def init(self, seed: int) -> TrainState:
        """The state before the first step, each parameter created where it lives."""
        key = jax.random.key(seed)
        with self._on_mesh():
            return self._init(key)

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict]:
        """One update; the given state is donated.

        Args:
          state: from `init` or the previous step.
          batch: `inputs`, `targets`, `weights` and perhaps `positions`, `segments`, all `[B, T]`
            and sharded as `batch_sharding`.

        Returns:
          The next state, and scalars: loss (mean over tokens), accuracy, gradient_norm (before
          clipping), learning_rate, tokens, skipped, skipped_in_a_row.
        """
        with self._on_mesh():
            return self._update(state, batch)

    def eval_step(self, state: TrainState, batch: Batch) -> LossSums:
        """Sums over the batch, with the averaged parameters where the run keeps them."""
        with self._on_mesh():
            return self._evaluate(state, batch)

    def lower(self, batch_size: int, length: int, **options) -> jax.stages.Lowered:
        """The training step lowered for a global batch: no array and no device is needed."""
        rows = {"inputs": jnp.int32, "targets": jnp.int32, "weights": jnp.float32}
        batch = {
            name: jax.ShapeDtypeStruct((batch_size, length), dtype, sharding=self.batch_sharding)
            for name, dtype in rows.items()
        }
        state = self.state_shapes
        with self._on_mesh():
            return self._update.trace(state, batch).lower(**options)

    def _on_mesh(self):
        abstract = isinstance(self.mesh, AbstractMesh)
        return jax.sharding.use_abstract_mesh(self.mesh) if abstract else jax.set_mesh(self.mesh)

    def _new_state(self, key) -> TrainState:
        init_key, step_key = jax.random.split(key)
        specs = {name: sharding.spec for name, sharding in self.param_shardings.items()}
        # With explicit axes every device would draw every parameter whole before cutting it.
        params = jax.sharding.auto_axes(self.template.init, out_sharding=specs)(init_key)
        zero = jnp.zeros((), jnp.int32)
        return TrainState(
            step=zero,
            params=params,
            opt_state=self.optimizer.init(params),
            rng=step_key,
            ema=None if self.train.ema_decay is None else params,
            skipped=zero,
            skipped_in_a_row=zero,
        )

    def _loss(self, params: Parameters, batch: Batch, key, label_smoothing: float, z_loss: float):
        model = self.template.module(params)
        options = {name: batch[name] for name in ("positions", "segments") if name in batch}
        hidden, head = model.hidden(batch["inputs"], key=key, **options), model.head()
        terms = {"label_smoothing": label_smoothing, "z_loss": z_loss}
        targets, weights = batch["targets"], batch["weights"]
        if self.train.loss_chunk is None:
            sums = cross_entropy(logits(hidden, head), targets, weights, **terms)
        else:
            sums = chunked_cross_entropy(
                hidden,
                head.kernel,
                targets,
                weights,
                chunk_size=self.train.loss_chunk,
                bias=head.bias,
                softcap=head.softcap,
                **terms,
            )
        return sums.loss, sums

    def _gradients(self, params: Parameters, batch: Batch, key) -> tuple[Parameters, LossSums]:
        """The gradient of the summed token losses, and the sums, over all parts of the batch."""
        differentiate = jax.grad(self._loss, has_aux=True)
        terms = self.train.label_smoothing, self.train.z_loss
        parts = self.train.gradient_accumulation
        if parts == 1:
            return differentiate(params, batch, key, *terms)

        def add_part(total, part):
            return jax.tree.map(jnp.add, total, differentiate(params, *part, *terms)), None

        start = jax.tree.map(jnp.zeros_like, params), LossSums(*[jnp.zeros(())] * 4)
        split = jax.tree.map(partial(_in_parts, parts=parts), batch)
        total, _ = jax.lax.scan(add_part, start, (split, jax.random.split(key, parts)))
        return total

    def _updated(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict]:
        key = jax.random.fold_in(state.rng, state.step)
        gradients, sums = self._gradients(state.params, batch, key)
        weight = jnp.maximum(sums.weight, 1.0)
        norm = optax.tree.norm(gradients) / weight
        clip = self.train.clip_norm
        factor = 1.0 if clip is None else jnp.minimum(1.0, clip / jnp.maximum(norm, 1e-30))
        gradients = jax.tree.map(lambda g: g * (factor / weight), gradients)
        updates, opt_state = self.optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = state.ema
        if ema is not None:
            decay = self.train.ema_decay
            ema = jax.tree.map(lambda old, new: decay * old + (1.0 - decay) * new, ema, params)

        finite = jnp.isfinite(sums.loss) & jnp.isfinite(norm)
        params, opt_state, ema = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (params, opt_state, ema),
            (state.params, state.opt_state, state.ema),
        )
        skipped = state.skipped + jnp.where(finite, 0, 1)
        in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
        metrics = {
            "loss": sums.loss / weight,
            "accuracy": sums.correct / weight,
            "gradient_norm": norm,
            "learning_rate": self.schedule(state.step),
            "tokens": sums.weight,
            "skipped": skipped,
            "skipped_in_a_row": in_a_row,
        }
        state = TrainState(state.step + 1, params, opt_state, state.rng, ema, skipped, in_a_row)
        return state, metrics

    def _evaluated(self, state: TrainState, batch: Batch) -> LossSums:
        params = state.params if state.ema is None else state.ema
        return self._loss(params, batch, None, 0.0, 0.0)[1]


def _in_parts(x: jax.Array, parts: int) -> jax.Array:
    """`[B, T]` as `[parts, B / parts, T]`, every device keeping its own rows."""
    rows = x.reshape(x.shape[0] // parts, parts, *x.shape[1:])
    # Where a part has one row for each device, JAX would give the new axis a mesh axis of size 1.
    rows = place(rows, PartitionSpec(RULES["batch"], *[None] * x.ndim))
    return jnp.swapaxes(rows, 0, 1)
