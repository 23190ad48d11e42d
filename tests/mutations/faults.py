"""The faults: one line of the package each, replaced by one that is wrong in a plausible way.

When a line is rewritten, `tests/test_structure.py` reports that a fault's `old` text is gone: copy
the new text of the line here, and change `new` so that it is wrong in the same way.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """One wrong line."""

    name: str
    """Area and what is wrong, as `attention/groups`."""
    file: str
    """The file of the package, relative to `jaxformer/`."""
    old: str
    """Text that occurs once in the file, within one line."""
    new: str
    """The text that replaces it."""
    tests: tuple[str, ...]
    """The test files that catch it, relative to `tests/`, in the order in which they run."""


FAULTS = (
    Fault(
        "attention/groups: query heads share the wrong key head",
        "functional/attention/reference.py",
        "= query.reshape(batch, length, num_kv_heads, groups, query.shape[3])",
        "= query.reshape(batch, length, groups, num_kv_heads, query.shape[3]).swapaxes(2, 3)",
        ("functional/test_attention_properties.py",),
    ),
    Fault(
        "attention/rescaling: the running sum of a block is not rescaled",
        "functional/attention/blockwise.py",
        "return new_highest, total, weighted * shrink[..., None] + update",
        "return new_highest, total, weighted + update",
        ("functional/test_attention.py",),
    ),
    Fault(
        "attention/empty-row: a row that may attend to nothing is NaN",
        "functional/attention/reference.py",
        "return exponentials / jnp.where(total == 0.0, 1.0, total)",
        "return exponentials / total",
        ("functional/test_attention_properties.py",),
    ),
    Fault(
        "rope/precision: the angle is rounded at large positions",
        "functional/positions/rope.py",
        "* coarse + upper * fine + ((lower * fine) >> 16)",
        "* coarse",
        ("functional/test_rope.py",),
    ),
    Fault(
        "rope/scaling: Llama 3 scales the fast channels instead of the slow ones",
        "functional/positions/rope_scaling.py",
        "(unscaled * (keep + (1 - keep) / self.factor))",
        "(unscaled * (1 - keep + keep / self.factor))",
        ("functional/test_rope.py",),
    ),
    Fault(
        "masks/window: a sliding window has one key too many",
        "functional/masks/base.py",
        "return Band(before=size - 1, after=0, query_offset=query_offset)",
        "return Band(before=size, after=0, query_offset=query_offset)",
        ("functional/test_masks.py",),
    ),
    Fault(
        "masks/segments: padding attends to padding",
        "functional/masks/arrays.py",
        "return (query == key) & (query > 0)",
        "return query == key",
        ("functional/test_masks.py",),
    ),
    Fault(
        "losses/smoothing: the target keeps all of its probability",
        "functional/losses/cross_entropy.py",
        "(jnp.mean(logits, axis=-1) - picked)",
        "jnp.mean(logits, axis=-1)",
        ("functional/test_losses.py",),
    ),
    Fault(
        "losses/chunks: the bias gets the gradient of the last chunk",
        "functional/losses/cross_entropy.py",
        "dbias_V += jnp.sum(dlogits_BCV, axis=(0, 1))",
        "dbias_V = jnp.sum(dlogits_BCV, axis=(0, 1))",
        ("functional/test_losses.py",),
    ),
    Fault(
        "losses/weights: every weighted token counts 1",
        "functional/losses/cross_entropy.py",
        "jnp.where(wrong, jnp.nan, losses * weights)",
        "jnp.where(wrong, jnp.nan, losses * (weights != 0))",
        ("functional/test_losses.py",),
    ),
    Fault(
        "preferences/reference: the reference's view of the rejected answer is left out",
        "functional/losses/preferences.py",
        "rejected = policy_l - jax.lax.stop_gradient(ref_l)",
        "rejected = policy_l",
        ("functional/test_preference_losses.py",),
    ),
    Fault(
        "preferences/prompt: the log-probability of an answer is that of the prompt as well",
        "training/preference_loss.py",
        "counted = jnp.where(weights > 0, log_probs, 0.0)",
        "counted = log_probs",
        ("training/test_preference_training.py",),
    ),
    Fault(
        "preferences/rows: a pair is compared with the reference of another one",
        "training/reference.py",
        "{REFERENCE: self._logps[index]}",
        "{REFERENCE: self._logps[index - 1]}",
        ("training/test_preference_training.py",),
    ),
    Fault(
        "optimizer/decay: lookup tables are decayed",
        "optim/parameter_roles.py",
        "return matrix(path, names) is not None and rows not in spared",
        "return matrix(path, names) is not None",
        ("optim/test_optimizers.py",),
    ),
    Fault(
        "optimizer/skip: an update that is not finite is applied",
        "training/step.py",
        "lambda new, old: jnp.where(finite, new, old)",
        "lambda new, old: new",
        ("training/test_step.py",),
    ),
    Fault(
        "resume/data: a continued run reads its data from the beginning",
        "training/loop.py",
        "iterate(max(step, phase.start), ",
        "iterate(phase.start, ",
        ("training/test_loop.py",),
    ),
    Fault(
        "ramp/rows: each stage reads from the first row on",
        "data/ramp.py",
        "return self.first_row + (step",
        "return (step",
        ("data/test_ramp.py",),
    ),
    Fault(
        "resume/damage: the newest checkpoint is taken for whole",
        "checkpoints/select.py",
        "(problem := _damage(folder / str(step))) is None:",
        "(problem := _damage(folder / str(step))) is None or step:",
        ("checkpoints/test_checkpointer.py",),
    ),
    Fault(
        "sharding/parameters: every device holds every parameter",
        "distributed/sharding.py",
        "entries.append(None if size == 1 else _cut(mesh, RULES[axis]))",
        "entries.append(None)",
        ("distributed/test_sharding.py",),
    ),
    Fault(
        "sharding/vocabulary: every device holds the vocabulary's tables",
        "distributed/sharding.py",
        '"vocab": ("tensor", "fsdp"),',
        '"vocab": None,',
        ("distributed/test_sharding.py",),
    ),
    Fault(
        "launch/shares: each task takes the first GPUs of its node",
        "distributed/launchers/gpus.py",
        "return tuple(range(local * share, (local + 1) * share))",
        "return tuple(range(share))",
        ("distributed/test_launchers.py",),
    ),
    Fault(
        "launch/status: a scheduler takes a stopped run for a complete one",
        "cli/training/train.py",
        "return 0 if result.finished else launch.job.stopped_status",
        "return 0",
        ("cli/test_train_command.py",),
    ),
    Fault(
        "import/layout: keys and values of a fused tensor are exchanged",
        "hub/weights/layouts.py",
        "(view[:, :groups], view[:, groups], view[:, groups + 1])",
        "(view[:, :groups], view[:, groups + 1], view[:, groups])",
        ("hub/test_layouts.py",),
    ),
    Fault(
        "import/config: the norm's epsilon is not read",
        "zoo/common/llama_like.py",
        'NormEps(theirs="rms_norm_eps", make=RMSNorm)',
        'NormEps(theirs="rms_norm_eps", make=lambda eps: RMSNorm(eps=1e-5))',
        ("hub/test_llama_relatives.py",),
    ),
    Fault(
        "cache/ring: a full ring overwrites its last slot",
        "nn/cache.py",
        "positions_BT % capacity, capacity + order_BT",
        "jnp.minimum(positions_BT, capacity - 1), capacity + order_BT",
        ("nn/test_cache.py",),
    ),
    Fault(
        "cache/beams: beams keep the cache of another beam",
        "generation/decode/beam.py",
        "cache=cache.reorder(parents),",
        "cache=cache,",
        ("generation/test_beam.py",),
    ),
)
