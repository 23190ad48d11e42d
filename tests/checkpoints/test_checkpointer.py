"""Saving and restoring: exact, atomic, on any mesh; damage is noticed, failures are reported."""

import errno
import hashlib
import json
import random
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxformer.checkpoints import files, manifest
from jaxformer.checkpoints.checkpointer import (
    Checkpointer,
    CheckpointError,
    CheckpointMismatch,
    content_hash,
    named_arrays,
)
from jaxformer.checkpoints.restore import read_arrays, restore_newest
from jaxformer.checkpoints.saved_run import chosen_step
from jaxformer.errors import ConfigError, RunError

CONFIG = {"type": "toy", "depth": 2}


def make_mesh(*sizes):
    sizes = sizes or (1, 1, 1)
    return jax.make_mesh(sizes, ("data", "fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 3)


def make_state(seed=0, mesh=None, rows=64):
    """A toy training state: sharded, replicated, scalar, bfloat16 and random-key leaves."""
    mesh = mesh or make_mesh()
    random = np.random.RandomState(seed)

    def put(value, *spec):
        return jax.device_put(value, NamedSharding(mesh, P(*spec)))

    kernel = random.randn(rows, 32).astype(np.float32)
    return {
        "step": put(np.int32(seed)),
        "params": {"a.b": {"kernel": put(kernel, "fsdp", "tensor")}, "scale": put(np.float32(3))},
        "opt_state": (put(kernel * 2, "fsdp", "tensor"), put(jnp.ones(8, jnp.bfloat16))),
        "rng": put(jax.random.key(seed, impl="rbg")),
        "ema": None,
    }


def abstract(state, mesh=None):
    def spec(leaf):
        sharding = NamedSharding(mesh, leaf.sharding.spec) if mesh else leaf.sharding
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(spec, state)


def raw(leaf):
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def assert_same_bits(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(raw(one), raw(other))


def save_steps(folder, steps, mesh=None, keep=9, losses=None):
    checkpointer = Checkpointer(folder, CONFIG, keep)
    for step in steps:
        measured = {"loss": losses[step]} if step in (losses or {}) else None
        checkpointer.save(step, make_state(step, mesh), measured)
    checkpointer.close()


@pytest.mark.parametrize("target", [(2, 2, 2), (1, 1, 1), (1, 8, 1), (2, 1, 4)])
def test_restores_the_same_bits_on_any_mesh(tmp_path, target):
    whole = make_mesh(2, 2, 2)
    state = make_state(7, whole)
    with jax.set_mesh(whole):
        save_steps(tmp_path, [7], whole)
    mesh = make_mesh(*target)
    with jax.set_mesh(mesh):
        step, restored = restore_newest(tmp_path, abstract(state, mesh))
    assert step == 7
    assert_same_bits(state, restored)
    assert restored["params"]["a.b"]["kernel"].sharding.mesh == mesh
    assert jax.random.key_impl(restored["rng"]) == jax.random.key_impl(state["rng"])
    assert restored["rng"].sharding.mesh == mesh


def test_a_folder_without_checkpoints_restores_nothing(tmp_path):
    target = abstract(make_state())
    assert restore_newest(tmp_path, target) is None
    assert restore_newest(tmp_path / "absent", target) is None


def test_the_state_may_be_donated_while_it_is_being_saved(tmp_path):
    mesh = make_mesh()
    state = {"params": jax.device_put(np.zeros((2048, 2048), np.float32), NamedSharding(mesh, P()))}
    bump = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    checkpointer = Checkpointer(tmp_path, CONFIG, keep=9)
    for step in range(4):
        checkpointer.save(step, state)
        for _ in range(5):
            state = bump(state)
    checkpointer.close()
    for step in range(4):
        (_, array), *_ = read_arrays(tmp_path / str(step))
        np.testing.assert_array_equal(array, 5.0 * step)


def test_keeps_the_newest_and_the_best(tmp_path):
    losses = {1: 3.0, 2: 1.0, 3: 2.0, 5: 1.5}
    save_steps(tmp_path, range(1, 7), keep=2, losses=losses)
    assert files.saved_steps(tmp_path) == [2, 5, 6]
    # The choice survives a restart, which reads the losses back.
    save_steps(tmp_path, [7], keep=2)
    assert files.saved_steps(tmp_path) == [2, 6, 7]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["2", "6", "7"]


def test_the_best_by_a_metric_that_shall_be_large(tmp_path):
    checkpointer = Checkpointer(
        tmp_path, CONFIG, keep=1, best_fn=lambda measured: -measured["accuracy"]
    )
    for step, share in enumerate((0.5, 0.75, 0.25, 0.75, 0.5), 1):
        measured = {"loss": share, "accuracy": share}
        checkpointer.save(step, make_state(step), measured)
    checkpointer.close()
    assert files.saved_steps(tmp_path) == [2, 5]  # the first of equals
    Checkpointer(tmp_path, CONFIG, keep=1).close()
    assert files.saved_steps(tmp_path) == [5]


def test_what_earlier_versions_wrote_beside_a_checkpoint():
    assert files.validation_of({"validation_loss": 2.5}) == {"loss": 2.5}
    assert files.validation_of({"validation_loss": None}) == {}


def test_a_loss_that_is_no_number_is_no_best(tmp_path):
    losses = {1: float("nan"), 2: 3.0, 3: float("inf")}
    save_steps(tmp_path, range(1, 5), keep=1, losses=losses)
    assert files.saved_steps(tmp_path) == [2, 4]


def test_saving_a_step_twice_keeps_the_first(tmp_path):
    save_steps(tmp_path, [1, 1])
    assert files.saved_steps(tmp_path) == [1]


def test_the_configuration_lies_beside_the_arrays(tmp_path):
    save_steps(tmp_path, [4], losses={4: 2.5})
    assert manifest.read_item(tmp_path / "4", "config") == CONFIG
    meta = manifest.read_item(tmp_path / "4", "meta")
    assert (meta["step"], meta["validation"]) == (4, {"loss": 2.5})


def test_content_hash_is_the_same_in_memory_and_on_disk(tmp_path):
    mesh = make_mesh(2, 2, 2)
    state = make_state(3, mesh)
    save_steps(tmp_path, [3], mesh)
    live = content_hash(named_arrays(state).items())
    assert content_hash(read_arrays(tmp_path / "3")) == live
    assert content_hash(named_arrays(make_state(3)).items()) == live
    assert content_hash(named_arrays(make_state(4, mesh)).items()) != live
    # Only parameters and optimizer state count.
    assert content_hash(named_arrays(state | {"step": np.int32(9)}).items()) == live


def spoil(path, how):
    content = bytearray(path.read_bytes())
    if how == "deleted":
        path.unlink()
        return
    if how == "a flipped bit":
        chance = random.Random(path.name)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes({"halved": content[: len(content) // 2], "emptied": b""}.get(how, content))


@pytest.mark.parametrize("how", ["halved", "emptied", "deleted", "a flipped bit"])
def test_any_damage_is_noticed(tmp_path, how):
    good, folder = tmp_path / "good", tmp_path / "damaged"
    save_steps(good, [1, 2])
    names = sorted(path.relative_to(good) for path in (good / "2").rglob("*") if path.is_file())
    assert any("ocdbt.process_0/d/" in str(name) for name in names)
    for name in names:
        shutil.copytree(good, folder)
        spoil(folder / name, how)
        warnings = []
        step, state = restore_newest(folder, abstract(make_state()), warnings.append)
        if step == 2:  # a manifest may have lost a space
            assert (how, name.name) == ("a flipped bit", manifest.MANIFEST)
            assert not warnings
        else:
            assert step == 1, name
            (warning,) = warnings
            assert str(folder / "2") in warning
            assert (folder / "2.damaged").is_dir()
        assert_same_bits(make_state(step), state)
        shutil.rmtree(folder)


def test_a_checkpoint_without_digests_is_opened_and_said_to_be_checked_by_size(tmp_path, caplog):
    save_steps(tmp_path, [1])
    path = tmp_path / "1" / manifest.MANIFEST
    sizes = {name: record["bytes"] for name, record in json.loads(path.read_text()).items()}
    path.write_text(json.dumps(sizes))
    assert restore_newest(tmp_path, abstract(make_state()))[0] == 1
    assert "only the sizes" in caplog.text
    spoil(tmp_path / "1" / "config" / "metadata", "halved")
    assert "bytes instead of" in manifest.damage(tmp_path / "1")


@pytest.mark.parametrize(
    "content", ["[1,2]", "5", "{}", '{"a": true}', '{"a": {"bytes": "1"}}', "[" * 100_000]
)
def test_a_manifest_that_is_none_is_damage(tmp_path, content):
    save_steps(tmp_path, [1])
    (tmp_path / "1" / manifest.MANIFEST).write_text(content)
    assert manifest.damage(tmp_path / "1") == "files.json is not readable"


def test_only_folders_named_by_a_step_are_checkpoints(tmp_path):
    save_steps(tmp_path, [1])
    (tmp_path / "9999").write_text("not a folder")
    for name in ("٣", "007", "+8", "1e3", "²", "9" * 30):
        (tmp_path / name).mkdir()
    assert files.saved_steps(tmp_path) == [1]
    (tmp_path / "5").mkdir()
    warnings = []
    assert restore_newest(tmp_path, abstract(make_state()), warnings.append)[0] == 1
    assert "files.json is missing" in warnings[0]


def test_a_damaged_measurement_never_makes_a_checkpoint_the_best(tmp_path):
    save_steps(tmp_path, [1, 2], losses={1: 2.0, 2: 1.0})
    path = tmp_path / "1" / "meta" / "metadata"
    path.write_text(path.read_text().replace("2.0", "0.0"))
    save_steps(tmp_path, [3, 4], keep=1)
    assert files.saved_steps(tmp_path) == [2, 4]


def test_what_reads_a_run_passes_over_damaged_checkpoints_and_leaves_them_there(tmp_path, caplog):
    checkpoints = tmp_path / "checkpoints"
    save_steps(checkpoints, [1, 2])
    spoil(checkpoints / "2" / "state" / "_METADATA", "a flipped bit")
    assert chosen_step(tmp_path) == 1
    assert "state/_METADATA has changed since it was saved" in caplog.text
    assert files.saved_steps(checkpoints) == [1, 2]
    with pytest.raises(ConfigError, match="--step 2: the checkpoint is damaged"):
        chosen_step(tmp_path, 2)
    with pytest.raises(ConfigError, match=r"--step 3: no such checkpoint; .* contains 1, 2"):
        chosen_step(tmp_path, 3)
    spoil(checkpoints / "1" / "state" / "_METADATA", "a flipped bit")
    with pytest.raises(CheckpointError, match=r"Every checkpoint in .* is damaged"):
        chosen_step(tmp_path)


def test_training_goes_on_over_a_damaged_step(tmp_path):
    save_steps(tmp_path, [1, 2])
    spoil(tmp_path / "2" / "config" / "metadata", "halved")
    restore_newest(tmp_path, abstract(make_state()), lambda _: None)
    save_steps(tmp_path, [2, 3], keep=1)
    assert files.saved_steps(tmp_path) == [3]
    assert (tmp_path / "2.damaged").is_dir()


def test_only_damaged_checkpoints_is_an_error_not_a_new_start(tmp_path):
    save_steps(tmp_path, [1])
    spoil(tmp_path / "1" / "config" / "metadata", "halved")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="--fresh"):
            restore_newest(tmp_path, abstract(make_state()), lambda _: None)


def test_what_a_killed_process_leaves_is_never_picked_up(tmp_path):
    save_steps(tmp_path, [1])
    shutil.copytree(tmp_path / "1", tmp_path / "2.orbax-checkpoint-tmp")
    shutil.copytree(tmp_path / "1", tmp_path / "0.deleting")
    assert restore_newest(tmp_path, abstract(make_state()))[0] == 1
    save_steps(tmp_path, [3])
    assert sorted(item.name for item in tmp_path.iterdir()) == ["1", "3"]


def test_other_shapes_are_an_error_that_names_them(tmp_path):
    save_steps(tmp_path, [1])
    target = abstract(make_state(rows=32))
    del target["params"]["scale"]
    target["params"]["bias"] = target["step"]
    with pytest.raises(CheckpointMismatch) as error:
        restore_newest(tmp_path, target)
    for text in (
        "params/bias is missing in the checkpoint",
        "params/scale is only in the checkpoint",
        "(64, 32) in the checkpoint",
    ):
        assert text in str(error.value)
    assert files.saved_steps(tmp_path) == [1]


def test_a_file_that_cannot_be_written_keeps_the_last_good_checkpoint(tmp_path):
    save_steps(tmp_path, [1])
    large = {"params": jnp.asarray(np.random.default_rng(0).normal(size=(512, 1024)))}
    checkpointer = Checkpointer(tmp_path, CONFIG, keep=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    try:
        checkpointer.save(2, large)
        with pytest.raises(CheckpointError) as error:
            checkpointer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    checkpointer.close()
    assert "step 2 in" in str(error.value)
    assert "File too large" in str(error.value)
    assert "step 1 is intact: start the same command again" in str(error.value)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["1"]
    assert restore_newest(tmp_path, abstract(make_state()))[0] == 1


def test_a_full_disk_is_said_with_what_helps(tmp_path, monkeypatch):
    def fill_the_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    save_steps(tmp_path, [1])
    monkeypatch.setattr(manifest, "write_manifest", fill_the_disk)
    with pytest.raises(CheckpointError) as error:
        save_steps(tmp_path, [2])
    assert "the disk is full (" in str(error.value)
    assert "step 1 is intact: free some space and start the same command again" in str(error.value)


def test_the_manifest_lists_the_files(tmp_path):
    save_steps(tmp_path, [1])
    listed = json.loads((tmp_path / "1" / manifest.MANIFEST).read_text())
    present = {str(p.relative_to(tmp_path / "1")): p for p in (tmp_path / "1").rglob("*")}
    for name, record in listed.items():
        assert present[name].stat().st_size == record["bytes"]
        assert hashlib.sha256(present[name].read_bytes()).hexdigest() == record["sha256"]
    unlisted = {p.name for name, p in present.items() if p.is_file() and name not in listed}
    assert unlisted == {manifest.MANIFEST}


def test_who_has_lost_the_folder_says_that_and_touches_nothing(tmp_path):
    lost = []

    def check_owned():
        if lost:
            raise RunError("stopped: it is another run's")

    checkpointer = Checkpointer(tmp_path, CONFIG, keep=1, check_owned=check_owned)
    checkpointer.save(1, make_state(1))
    checkpointer.wait()
    checkpointer.save(2, make_state(2))
    checkpointer._writer.wait_until_finished()  # committed, and not yet the only one
    lost.append(True)
    theirs = [tmp_path / name for name in ("5.orbax-checkpoint-tmp", "6")]
    for folder in theirs:
        folder.mkdir()
    for action in (checkpointer.wait, lambda: checkpointer.save(3, make_state(3))):
        with pytest.raises(RunError, match=r"^stopped"):
            action()
    checkpointer.close()
    assert {item.name for item in tmp_path.iterdir()} == {"1", "2", *(f.name for f in theirs)}
