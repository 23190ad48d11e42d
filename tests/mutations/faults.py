"""The faults: one line of the package each, replaced by one that is wrong in a plausible way.

When a line is moved or rewritten, `tests/test_structure.py` names the fault whose `old` text is
gone: copy the new path or the new text here, and change `new` so that it is wrong in the same way.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """One wrong line."""

    name: str
    """The package and what is wrong, as `nn/ring: a full ring overwrites its last slot`."""
    file: str
    """The file of the package, relative to `jaxformer/`."""
    old: str
    """Text that occurs once in the file, within one line."""
    new: str
    """The text that replaces it."""
    tests: tuple[str, ...]
    """The tests that catch it, as pytest selects them, relative to `tests/`, in their order."""


FAULTS = (
    Fault(
        "generation/speech: the end of a sentence is weighed to another base",
        "generation/speech/language_model.py",
        "return added + self._model.alpha * math.log(10) * end",
        "return added + self._model.alpha * end",
        ("generation/test_language_model.py::test_scores_are_those_of_all_texts",),
    ),
    Fault(
        "generation/speech: a second space makes another text",
        "generation/speech/ctc.py",
        "stays[rows] = np.logaddexp(stays[rows], extended[rows, scorer.separator])",
        "stays[rows] = np.logaddexp(stays[rows], stays[rows])",
        ("generation/test_language_model.py::test_scores_are_those_of_all_texts",),
    ),
    Fault(
        "io/files: a file that has changed passes as undamaged",
        "io/files.py",
        "if found != recorded[name]:",
        "if len(found) != len(recorded[name]):",
        ("data/test_damaged_caches.py::test_damage_gives_the_same_batches_or_one_sentence",),
    ),
    Fault(
        "functional/experts: a block takes the rows of the next group with it",
        "functional/experts/grouped.py",
        "inside = (first + jnp.arange(block) < size)[:, None]",
        "inside = (first + jnp.arange(block) >= 0)[:, None]",
        ("functional/test_experts.py::test_each_row_is_multiplied_with_the_kernel_of_its_group",),
    ),
    Fault(
        "hub/peft: the factors of one expert are those of another",
        "hub/peft/experts.py",
        "b.reshape(len(b), rank, num).transpose(2, 0, 1)",
        "b.reshape(len(b), num, rank).transpose(1, 0, 2)",
        ("hub/test_peft_experts.py::test_the_factors_of_a_file_are_those_of_each_expert",),
    ),
    Fault(
        "hub/weights: the gate of an expert is read as its other units",
        "hub/weights/views/fused_experts.py",
        "slice(place * size, (place + 1) * size)",
        "slice((len(parts) - 1 - place) * size, (len(parts) - place) * size)",
        ("hub/test_fused_experts.py::test_one_tensor_is_read_as_the_kernels_of_each_expert",),
    ),
    Fault(
        "functional/experts: padding takes a place of an expert",
        "functional/experts/load.py",
        "chosen = jax.nn.one_hot(experts, num, dtype=jnp.int32) * tokens[..., None]",
        "chosen = jax.nn.one_hot(experts, num, dtype=jnp.int32)",
        (
            "functional/test_experts.py::test_experts_take_the_first_tokens_of_a_row_up_to_their_capacity",
        ),
    ),
    Fault(
        "functional/groups: query heads share the wrong key head",
        "functional/attention/reference.py",
        "query.reshape(grouped).transpose(0, 2, 3, 1, 4)",
        "query.reshape(batch, length, -1, num_kv_heads, width).transpose(0, 3, 2, 1, 4)",
        ("functional/test_attention_properties.py::test_grouped_heads_are_repeated_heads",),
    ),
    Fault(
        "functional/empty-row: a row that may attend to nothing is NaN",
        "functional/attention/reference.py",
        "highest = jax.lax.stop_gradient(jnp.maximum(highest, sinks))",
        "highest = jax.lax.stop_gradient(highest)",
        (
            "functional/test_attention_properties.py::test_a_query_that_may_attend_to_nothing_gives_zeros_and_no_gradient",
        ),
    ),
    Fault(
        "functional/rescaling: the running sum of a block is not rescaled",
        "functional/attention/blockwise.py",
        "return new_highest, total, weighted * shrink[..., None] + update",
        "return new_highest, total, weighted + update",
        ("functional/test_attention.py::test_blockwise_with_every_mask",),
    ),
    Fault(
        "functional/sequence: every device masks as the first one",
        "functional/attention/devices.py",
        "start = jax.lax.axis_index(time) * length",
        "start = jax.lax.axis_index(time) * 0",
        ("functional/test_attention_sequence.py::test_each_device_has_its_queries_and_all_keys",),
    ),
    Fault(
        "nn/adapter: the frames behind padding count as real",
        "nn/waveform.py",
        "kept = valid[:, :: self.stride]",
        "kept = valid[:, : self._length(valid.shape[1])]",
        ("models/test_waveform.py::test_an_adapter_is_its_formula",),
    ),
    Fault(
        "functional/ring: a part of the keys is taken for those of its device",
        "functional/attention/ring.py",
        "origins = device, (device - number) % size",
        "origins = device, device",
        ("functional/test_attention_sequence.py::test_each_device_has_its_queries_and_all_keys",),
    ),
    Fault(
        "functional/float8: the scale of the cotangent is forgotten",
        "functional/float8.py",
        "spec_of(kernel8)) * (x_scale * scale)",
        "spec_of(kernel8)) * x_scale",
        ("functional/test_float8.py::test_the_three_products_are_those_of_the_rounded_operands",),
    ),
    Fault(
        "functional/rope: the angle is rounded at large positions",
        "functional/positions/rope.py",
        "* coarse + upper * fine + ((lower * fine) >> 16)",
        "* coarse",
        ("functional/test_rope.py::test_angles_equal_float64",),
    ),
    Fault(
        "functional/window: a sliding window has one key too many",
        "functional/masks/base.py",
        "return Band(before=size - 1, after=0, query_offset=query_offset)",
        "return Band(before=size, after=0, query_offset=query_offset)",
        ("functional/test_masks.py::test_values_follow_the_definition",),
    ),
    Fault(
        "functional/chunks: the bias of the head gets the gradient of the last chunk",
        "functional/losses/cross_entropy.py",
        "dbias_V += jnp.sum(dlogits_BCV, axis=(0, 1))",
        "dbias_V = jnp.sum(dlogits_BCV, axis=(0, 1))",
        ("functional/test_losses.py::test_chunked_equals_dense_in_float64_with_all_gradients",),
    ),
    Fault(
        "nn/ring: a full ring overwrites its last slot",
        "nn/cache.py",
        "order_BC = -self._before(self.start[:, None], capacity) % capacity",
        "order_BC = jnp.arange(capacity)[None, :] - jnp.minimum(self.start[:, None], capacity - 1)",
        ("nn/test_cache.py::test_a_ring_holds_the_last_tokens_of_each_row",),
    ),
    Fault(
        "nn/sandwich: the norms before and after a sublayer are swapped",
        "nn/residual.py",
        "for sublayer, (before, after) in zip(sublayers, pairs, strict=True):",
        "for sublayer, (after, before) in zip(sublayers, pairs, strict=True):",
        ("nn/test_residual.py::test_formula_and_derivative",),
    ),
    Fault(
        "nn/scale: the fixed factor of a sublayer's output is ignored",
        "nn/stack.py",
        "return y if fixed == 1 else",
        "return y if fixed else",
        ("nn/test_block.py::test_residual_scale_multiplies_what_each_sublayer_adds",),
    ),
    Fault(
        "models/cross-attention: the decoder reads the padding of its source",
        "models/decoder.py",
        "encoder_mask=Mask() if encoder_mask is None else encoder_mask,",
        "encoder_mask=Mask(),",
        ("models/test_encoder_decoder.py::test_the_decoder_reads_only_real_encoder_outputs",),
    ),
    Fault(
        "models/spans: an answer is one token longer than its score says",
        "models/heads/span.py",
        "return jnp.stack([first, first + extra], axis=1)",
        "return jnp.stack([first, first + extra + 1], axis=1)",
        ("models/test_heads.py::test_predictions_beside_what_is_right",),
    ),
    Fault(
        "models/flops: causal attention counts the keys of a full window twice",
        "models/flops.py",
        "(length - w) * w) / length for w in windows]",
        "length * w) / length for w in windows]",
        ("models/test_flops.py::test_attention_counts_the_keys_of_the_window_or_of_the_mask",),
    ),
    Fault(
        "optim/decay: lookup tables are decayed",
        "optim/parameter_roles.py",
        "return matrix(path, names) is not None and rows not in spared",
        "return matrix(path, names) is not None",
        ("optim/test_optimizers.py::test_weight_decay_is_for_matrices_that_are_no_lookup_tables",),
    ),
    Fault(
        "optim/cosine: the decay does not wait for the warm-up",
        "optim/schedules.py",
        "return jnp.minimum((step - self.warmup_steps) / max(end - self.warmup_steps, 1), 1)",
        "return jnp.minimum(step / max(end, 1), 1)",
        ("optim/test_schedules.py::test_edges",),
    ),
    Fault(
        "data/ramp: each stage reads from the first row on",
        "data/ramp.py",
        "return self.first_row + (step",
        "return (step",
        ("data/test_ramp.py::test_every_step_reads_the_next_of_the_longest_rows",),
    ),
    Fault(
        "data/masking: random tokens are drawn from the share of [MASK] again",
        "data/objectives/masking.py",
        "(fates < self.mask_share + self.random_share)",
        "(fates < self.random_share)",
        ("data/test_masking.py::test_the_chosen_become_masks_others_or_stay",),
    ),
    Fault(
        "data/split: the seed does not choose another split",
        "data/split.py",
        '_hash(f"{seed}/{name}") for name in names',
        '_hash(f"0/{name}") for name in names',
        ("data/test_split.py::test_the_share_is_as_asked_and_the_choice_is_stable",),
    ),
    Fault(
        "distributed/parameters: every device holds every parameter",
        "distributed/sharding.py",
        "entries.append(None if size == 1 else _cut(mesh, rule))",
        "entries.append(None)",
        ("distributed/test_sharding.py::test_every_device_holds_its_share_and_no_more",),
    ),
    Fault(
        "distributed/gpus: each task takes the first GPUs of its node",
        "distributed/launchers/tasks.py",
        "return tuple(range(local * share, (local + 1) * share))",
        "return tuple(range(share))",
        ("distributed/test_launchers.py::test_every_gpu_of_a_node_has_one_task",),
    ),
    Fault(
        "hub/layout: keys and values of a fused tensor are exchanged",
        "hub/weights/layouts.py",
        "(view[:, :groups], view[:, groups], view[:, groups + 1])",
        "(view[:, :groups], view[:, groups + 1], view[:, groups])",
        ("hub/test_layouts.py::test_per_key_head",),
    ),
    Fault(
        "hub/rope: the length that a model was trained on comes from the wrong field",
        "hub/rope.py",
        'outside or given["original_max_length"] or longest',
        'longest or outside or given["original_max_length"]',
        ("hub/test_rope_settings.py::test_all_spellings_mean_the_same",),
    ),
    Fault(
        "zoo/epsilon: the norm's epsilon is not read",
        "zoo/common/llama_like.py",
        'NormEps(theirs="rms_norm_eps", make=RMSNorm)',
        'NormEps(theirs="rms_norm_eps", make=lambda eps: RMSNorm(eps=1e-5))',
        ("zoo/test_config_files.py::test_sizes_of_the_zoo_can_be_said",),
    ),
    Fault(
        "config/mesh: fewer key/value heads than devices are not refused",
        "config/experiment.py",
        "if stack.kv_heads != 1 and stack.kv_heads % tensor:",
        "if stack.kv_heads > tensor and stack.kv_heads % tensor:",
        ("config/test_config.py::test_what_parts_demand_of_each_other_is_checked",),
    ),
    Fault(
        "config/resume: a run goes on with another model",
        "config/experiment.py",
        'return any(name == field or name.startswith(f"{field}.") for field in CHANGEABLE_FIELDS)',
        'return any(name.startswith(field.partition(".")[0]) for field in CHANGEABLE_FIELDS)',
        ("config/test_config.py::test_what_may_change_when_a_run_goes_on",),
    ),
    Fault(
        "checkpoints/damage: the newest checkpoint is taken for whole",
        "checkpoints/restore.py",
        "(problem := damage_of(folder / str(step))) is None:",
        "(problem := damage_of(folder / str(step))) is None or step:",
        ("checkpoints/test_checkpointer.py::test_any_damage_is_noticed",),
    ),
    Fault(
        "checkpoints/manifest: a file of the right size passes as undamaged",
        "checkpoints/manifest.py",
        "if self.sha256 is not None and sha256_of(path) != self.sha256:",
        "if self.sha256 is None and sha256_of(path) != self.sha256:",
        ("checkpoints/test_checkpointer.py::test_any_damage_is_noticed",),
    ),
    Fault(
        "pretrained/resume: a prediction that was cut off counts as made",
        "pretrained/prediction/table.py",
        'if not line.endswith(b"\\n"):  # from a killed process',
        "if not line:  # from a killed process",
        ("pretrained/test_predicted_table.py::test_what_was_interrupted_continues",),
    ),
    Fault(
        "flax/dropout: the key of a training call is lost",
        "flax/model.py",
        "key = as_key(key) if train else None",
        "key = None",
        ("flax/test_flax_door.py::test_dropout_needs_a_key_and_takes_either_kind",),
    ),
    Fault(
        "pretrained/positions: positions of RoBERTa count the rows before the first",
        "pretrained/flax_program.py",
        "arrays |= {n: arrays[n] - first for",
        "arrays |= {n: arrays[n] for",
        ("flax/test_flax_door.py::test_positions_of_roberta_are_rows_of_its_table",),
    ),
    Fault(
        "generation/beams: beams keep the cache of another beam",
        "generation/decode/beam.py",
        "cache=cache.reorder(parents),",
        "cache=cache,",
        ("generation/test_beam.py::test_with_room_for_all_texts_it_ranks_all_texts",),
    ),
    Fault(
        "generation/length-penalty: a score is multiplied by the length",
        "generation/decode/beam.py",
        "return totals / (lengths[:, None].astype(jnp.float32) ** self.length_penalty)",
        "return totals * (lengths[:, None].astype(jnp.float32) ** self.length_penalty)",
        ("generation/test_beam.py::test_with_room_for_all_texts_it_ranks_all_texts",),
    ),
    Fault(
        "server/waiting: any number of texts may wait",
        "server/batches.py",
        "if len(self._waiting) + len(requests) > self._most_waiting:",
        "if not requests:",
        ("server/test_batches.py::test_only_so_many_texts_wait",),
    ),
    Fault(
        "training/skip: an update that is not finite is applied",
        "training/step.py",
        "lambda new, old: jnp.where(finite, new, old)",
        "lambda new, old: new",
        ("training/test_step.py::test_a_non_finite_update_is_skipped_and_counted",),
    ),
    Fault(
        "training/resume: a continued run reads its data from the beginning",
        "training/loop.py",
        "iterate(max(step, phase.start), ",
        "iterate(phase.start, ",
        ("training/test_loop.py::test_an_interrupted_run_ends_with_the_same_bits",),
    ),
    Fault(
        "training/average: the average of the parameters is weighted the wrong way",
        "training/step.py",
        "decay * old + (1.0 - decay) * new",
        "(1.0 - decay) * old + decay * new",
        ("training/test_step.py::test_the_moving_average_follows_the_parameters",),
    ),
    Fault(
        "training/accumulation: the gradient is that of the last part of a batch",
        "training/step.py",
        "return jax.tree.map(jnp.add, total, (gradients, sums)), terms",
        "return (gradients, sums), terms",
        ("training/test_step.py::test_parts_add_up_to_the_large_batch",),
    ),
    Fault(
        "plan/memory: a memory that holds nine tenths of a step is enough",
        "plan/memory.py",
        "if self.peak > usable:",
        "if self.peak > usable / 0.9:",
        ("plan/test_plan_report.py::test_a_closed_form_says_how_sure_it_is",),
    ),
    Fault(
        "launch/time: minutes and seconds of a time limit are exchanged",
        "launch/slurm.py",
        "total = ((days * 24 + hours) * 60 + minutes) * 60 + rest",
        "total = ((days * 24 + hours) * 60 + rest) * 60 + minutes",
        ("launch/test_slurm_script.py::test_the_forms_of_a_time",),
    ),
    Fault(
        "parity/padding: outputs at padding are compared, those of tokens are not",
        "parity/compare.py",
        "where = (slice(None),) * axis + (mask > 0,)",
        "where = (slice(None),) * axis + (mask == 0,)",
        ("hub/test_compare.py::test_padding_is_left_out",),
    ),
    Fault(
        "engines/tokens: tokens after the first that differs count as equal",
        "engines/receipts.py",
        "if a != b), min(len(found), len(expected)))",
        "if a == b), min(len(found), len(expected)))",
        ("engines/test_engine_receipts.py::test_tokens_are_counted_up_to_the_first_that_differs",),
    ),
    Fault(
        "doctor/status: a wrong result that a transformer computes is a note",
        "doctor/report.py",
        'status = "FAIL" if case.in_transformers else "note"',
        'status = "note" if case.in_transformers else "FAIL"',
        ("doctor/test_doctor.py::test_only_what_transformers_compute_is_a_failure",),
    ),
    Fault(
        "nn/experts: padding counts in the entropy of the router",
        "nn/experts.py",
        "total = jnp.sum(entropies * counted)",
        "total = jnp.sum(entropies)",
        (
            "models/test_experts_model.py"
            "::test_losses_and_metrics_are_those_of_all_layers_without_padding",
        ),
    ),
    Fault(
        "lab/experts: a token agrees with itself",
        "lab/experts/routing.py",
        "np.mean(counts[places[:, None], experts] - 1.0, axis=1)",
        "np.mean(counts[places[:, None], experts], axis=1)",
        ("lab/test_expert_routing.py::test_agreement_is_that_of_all_pairs_of_occurrences",),
    ),
    Fault(
        "lab/alibi: the reach of a head is its slope",
        "lab/positions/biases.py",
        'Number("alibi", reach, f"head {head}", 1 / slope)',
        'Number("alibi", reach, f"head {head}", slope)',
        ("lab/positions/test_position_numbers.py::test_biases",),
    ),
    Fault(
        "cli/status: a scheduler takes a stopped run for a complete one",
        "cli/training/train.py",
        "return 0 if result.finished else launch.job.stopped_status",
        "return 0",
        ("cli/test_train_command.py::test_a_scheduler_can_tell_a_stopped_run_from_a_finished_one",),
    ),
)
