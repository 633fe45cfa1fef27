/* The numbers of sherd_settings, for settings.c, which reads this file once for each of their uses.
 * A row:
 *
 *   FIELD(name, setting, default, least, below)
 *
 * The field is copied to that setting, and settings.c completes some of them by rules. A row that
 * only a rule reads is a NUMBER, without a setting; FIELD is the same as NUMBER for a use that
 * defines it alone, and NUMBER nothing for one that defines FIELD alone. A number is at least `least` and below `below`; where the
 * default is NaN, NaN is allowed and leaves the number to the optimizer. Ranks compare the settings
 * in this order: those from which others follow come first. */

#ifndef NUMBER
#define NUMBER(...)
#endif
#ifndef FIELD
#define FIELD(name, setting, ...) NUMBER(name, __VA_ARGS__)
#endif
/* clang-format off */
FIELD(dtype, numerics.compute_dtype, SHERD_F32, SHERD_F32, SHERD_F16 + 1)
FIELD(train_batch_size, batch.train_batch_size, 0, 0, 0x1p31)
FIELD(micro_batch_size, batch.micro_batch_size, 0, 0, 0x1p31)
FIELD(accumulation, batch.accumulation, 0, 0, 0x1p31)
FIELD(stage, sharding.stage, 0, 0, 4)
FIELD(comm_dtype, numerics.comm_dtype, -1, -1, SHERD_F16 + 1)
FIELD(accum_dtype, numerics.accum_dtype, SHERD_F32, SHERD_F32, SHERD_F16 + 1)
FIELD(is_deterministic, numerics.deterministic, 0, 0, 2)
FIELD(overlap_comm, sharding.overlap_comm, -1, -1, 2)
FIELD(steps_per_print, steps_per_print, 0, 0, 0x1p31)
FIELD(gradient_clipping, update.gradient_clipping, 1, 0, INFINITY)
FIELD(lr, update.lr, NAN, 0, INFINITY)
FIELD(beta1, update.betas[0], NAN, 0, 1)
FIELD(beta2, update.betas[1], NAN, 0, 1)
FIELD(eps, update.eps, NAN, 0, INFINITY)
FIELD(weight_decay, update.weight_decay, 0, 0, INFINITY)
FIELD(bias_correction, update.bias_correction, 1, 0, 2)
FIELD(check_overflow, numerics.check_overflow, 1, 0, 2)
NUMBER(loss_scale, 0, 0, 8e37)
NUMBER(initial_loss_scale, 65536, 1, 0x1p127)
FIELD(min_loss_scale, numerics.scaler.min_scale, 1, 0, 8e37)
FIELD(loss_scale_window, numerics.scaler.scale_window, 1000, 1, 0x1p63)
FIELD(hysteresis, numerics.scaler.hysteresis, 2, 0, 0x1p31)
FIELD(sub_group_size, sharding.sub_group_size, 1000000000, 0, INFINITY)
FIELD(prefetch_bucket_size, sharding.prefetch_bucket_size, 50000000, 0, INFINITY)
FIELD(persistence_threshold, sharding.persistence_threshold, 100000, 0, INFINITY)
FIELD(model_persistence_threshold, sharding.model_persistence_threshold, SIZE_MAX, 0, INFINITY)
FIELD(max_live_parameters, sharding.max_live_parameters, 1000000000, 0, INFINITY)
FIELD(max_reuse_distance, sharding.max_reuse_distance, 0, 0, INFINITY)
FIELD(shard_size, sharding.shard_size, 0, 0, 0x1p31)
/* clang-format on */
#undef FIELD
#undef NUMBER
