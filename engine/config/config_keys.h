/* The configuration keys that have an effect; DeepSpeed's others are in config_unused.h. Reading,
 * the settings, the comparison of ranks, the reference page and the dump all come from these two
 * tables.
 * A row:
 *
 *   X(id, path, type, (effect and other attributes), meaning)
 *
 *   SETS(field)          of sherdi_settings, to the effective value; SETS_DTYPE: to its type
 *   DERIVES(field)       a rule of config_resolve.c computes the field from this key and others; a
 *                        row without SETS and DERIVES has another effect, in config_*.c
 *   NUMBER ON OFF BOTH   the default; FIRST: the first of the choices
 *   RULE("sentence")     how the default is derived
 *   EFFECT(rule)         the rule (config_impl.h) for the value of an absent or "auto" key; without
 *                        it the default. SCHEDULE: the same for a parameter of a schedule
 *   RANGE BELOW CHOICES  the allowed values
 *   AUTO("sentence")     the value of "auto"; without it the default
 *   ZERO_WORD("word")    a word that means 0; ZERO_IS_DEFAULT: 0 means the default
 *   NULLABLE, LOCAL ...  the bits of sherdi_config_key
 *
 * A block's members follow it. Included by config_impl.h and config_table.c only. */

/* clang-format off */
#define SHERDI_CONFIG_KEYS(X) \
    /* ---- batch ---- */ \
    X(TRAIN_BATCH, "train_batch_size", INT, (SETS(batch.train_batch_size), \
      RULE("train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks"), \
      RANGE(1, INT_MAX), AUTO("derived"), EFFECT(train_batch)), \
      "samples per optimizer step, over all ranks") \
    X(MICRO_BATCH, "train_micro_batch_size_per_gpu", INT, (SETS(batch.micro_batch_size), \
      RULE("derived from train_batch_size"), RANGE(1, INT_MAX), \
      AUTO("derived; needs train_batch_size or a value from the program"), EFFECT(micro_batch)), \
      "samples per micro-batch on each rank. This key or `train_batch_size` must be set, in the " \
      "file or by the program; for an engine for inference the default is 1") \
    X(ACCUMULATION, "gradient_accumulation_steps", INT, (SETS(batch.accumulation), \
      RULE("1; derived if both batch sizes are set"), RANGE(1, INT_MAX), AUTO("derived"), \
      EFFECT(accumulation)), \
      "micro-batches per optimizer step") \
    /* ---- general ---- */ \
    X(STEPS_PER_PRINT, "steps_per_print", SIZE, (SETS(watch.steps_per_print), RANGE(0, INFINITY), \
      NULLABLE, LOCAL), \
      "number of steps after which rank 0 logs a line (level info): step, skipped steps, " \
      "learning rate, gradient norm, loss scale, fingerprint of the weights, samples, samples " \
      "per second. Without this key, or with 0, no line is written. A program can read the " \
      "number (`sherd_engine_query`) and print a line of its own as often") \
    X(GRADIENT_CLIPPING, "gradient_clipping", REAL, (SETS(update.gradient_clipping), NUMBER(1.0), \
      RANGE(0, INFINITY), AUTO("1.0"), EFFECT(clipping)), \
      "largest L2 norm of the gradient: a gradient with a larger norm is scaled down to it. 0 " \
      "switches clipping off") \
    X(COMM_DTYPE, "communication_data_type", TEXT, (SETS_DTYPE(numerics.comm_dtype), \
      RULE("the compute type"), CHOICES("fp32|fp16|bf16"), NULLABLE, ANY_CASE, EFFECT(dtype)), \
      "element type in which gradients travel between ranks") \
    X(DETERMINISTIC, "deterministic", BOOL, (SETS(numerics.deterministic), OFF), \
      "`true`: a global batch gives the same bits at every stage, with every accumulation and " \
      "on every number of ranks ([numerics.md](numerics.md); a key of sherd's own)") \
    X(WALL_CLOCK, "wall_clock_breakdown", BOOL, (SETS(watch.wall_clock_breakdown), OFF), \
      "shows the time of each step by phase: in the report of the step, in the log (level info) " \
      "and in the output of the monitors") \
    X(MEMORY_BREAKDOWN, "memory_breakdown", BOOL, (SETS(watch.memory_breakdown), OFF, LOCAL), \
      "rank 0 logs (level info) the memory that it holds, by purpose: when the engine is " \
      "sealed, and with each line of `steps_per_print`. Without `steps_per_print` it logs the " \
      "memory at each step") \
    /* ---- monitors ---- */ \
    X(CSV_MONITOR, "csv_monitor", BLOCK, (CLOSED), \
      "a csv file for each number that is watched; rank 0 writes the files " \
      "([monitors.md](monitors.md))") \
    X(CSV_ENABLED, "csv_monitor.enabled", BOOL, (SETS(watch.monitors[SHERDI_MONITOR_CSV].is_on), \
      OFF, LOCAL), \
      "writes the files") \
    X(CSV_PATH, "csv_monitor.output_path", TEXT, ( \
      DERIVES(watch.monitors[SHERDI_MONITOR_CSV].folder), FIRST(""), LOCAL), \
      "folder that contains the folder `job_name`; the engine makes both. Empty: the folder " \
      "in which the program was started") \
    X(CSV_JOB, "csv_monitor.job_name", TEXT, (DERIVES(watch.monitors[SHERDI_MONITOR_CSV].folder), \
      FIRST("DeepSpeedJobName"), LOCAL), \
      "folder inside `output_path`, in which the files lie") \
    X(TENSORBOARD, "tensorboard", BLOCK, (CLOSED), \
      "event files, which TensorBoard opens; rank 0 writes them ([monitors.md](monitors.md))") \
    X(BOARD_ENABLED, "tensorboard.enabled", BOOL, ( \
      SETS(watch.monitors[SHERDI_MONITOR_TENSORBOARD].is_on), OFF, LOCAL), \
      "writes the files") \
    X(BOARD_PATH, "tensorboard.output_path", TEXT, ( \
      DERIVES(watch.monitors[SHERDI_MONITOR_TENSORBOARD].folder), FIRST(""), LOCAL), \
      "folder that contains the folder `job_name`; the engine makes both. Empty: the folder " \
      "in which the program was started") \
    X(BOARD_JOB, "tensorboard.job_name", TEXT, ( \
      DERIVES(watch.monitors[SHERDI_MONITOR_TENSORBOARD].folder), FIRST("DeepSpeedJobName"), \
      LOCAL), \
      "folder inside `output_path`, in which the files lie") \
    X(COMMS_LOGGER, "comms_logger", BLOCK, (CLOSED), \
      "rank 0 logs (level info) the bytes of gathers and reductions") \
    X(COMMS_ENABLED, "comms_logger.enabled", BOOL, (SETS(watch.logs_comms), OFF, LOCAL), \
      "logs a summary with each line of `steps_per_print`, and when the engine ends") \
    X(COMMS_VERBOSE, "comms_logger.verbose", BOOL, (SETS(watch.logs_each_comm), OFF, LOCAL), \
      "with `enabled`: also logs a line for each gather and each reduction") \
    /* ---- sherd's own ---- */ \
    X(SHERD, "sherd", BLOCK, (CLOSED), \
      "keys of sherd's own") \
    X(STRICT, "sherd.strict", BOOL, (OFF), \
      "makes every warning about the configuration an error") \
    X(LENIENT, "sherd.lenient", BOOL, (OFF), \
      "makes an unknown key in a closed block a warning instead of an error. This holds for " \
      "everything that is read together with this key or after it") \
    X(VENDOR_REDUCTION, "sherd.vendor_reduction", BOOL, (SETS(numerics.vendor_reduction), OFF), \
      "lets the transport reduce gradients with its own reduction (NCCL). The bits then " \
      "depend on the layout, and the promise of equal bits does not hold. Other transports " \
      "ignore this key") \
    X(FREE_PACKING, "sherd.free_packing", BOOL, (SETS(sharding.free_packing), OFF), \
      "stage 3: the plan packs each gather of a unit by itself. This may take less memory if " \
      "the sizes of units and their order are irregular. A parameter then has no fixed " \
      "address (`sherd_param_address`)") \
    X(EVAL_KEEP, "sherd.eval_keep_units", SIZE, (SETS(sharding.eval_keep_units), NUMBER(0), \
      RANGE(0, 131072)), \
      "stage 3: number of units that get memory of their own for EVAL, which no other unit of " \
      "EVAL takes. They are the first units that are gathered in the order of EVAL. Between " \
      "`sherd_eval_begin` and `sherd_eval_end` each of them is gathered only once. Cannot be " \
      "combined with `sherd.free_packing`") \
    X(UNUSED_UNITS, "sherd.unused_units", TEXT, (SETS(batch.skips_unused), FIRST("zero"), \
      CHOICES("zero|skip")), \
      "effect of an update on a unit that no rank reached in the window. `zero`: its gradient is " \
      "zero, so its moments fade and its weights decay. `skip`: its weights and its state do not " \
      "change, as in torch with a grad of None. But the number of the update, by which Adam " \
      "corrects its bias, counts all updates, also those that skipped the unit: with betas of " \
      "0.9 and 0.999, the first update of a unit that is reached late is 3.2 times as large as " \
      "in torch") \
    X(OPEN_WINDOWS, "sherd.open_windows", BOOL, (SETS(batch.opens_windows), OFF), \
      "`true`: a window ends only where the program closes it (`sherd_step_close_window`), so " \
      "its length need not be known before. `gradient_accumulation_steps` is then the usual " \
      "length, from which the plan makes its numbers of a step. With `deterministic` it is " \
      "the greatest length, and a further micro-batch is refused. Gradients are always added " \
      "up, so their sum takes its memory also where the usual length is 1") \
    X(ACTIVATIONS, "sherd.activations", BLOCK, (CLOSED, NULLABLE), \
      "where activations wait for backward, as far as the program declares them " \
      "(`sherd_activation_add`; [activations.md](activations.md))") \
    X(ACTIVATIONS_DEVICE, "sherd.activations.device", TEXT, (SETS(offload.activations.tier), \
      FIRST("none"), CHOICES(sherdi_tier_choices + 1)), \
      "`none`: in memory of the device. `cpu`: in host memory. `nvme`: in files. The program " \
      "may name another one for a unit") \
    X(ACTIVATIONS_PATH, "sherd.activations.nvme_path", FOLDERS, (NULLABLE), \
      "folder of the files; required for device `nvme`. Several folders, on several drives, " \
      "share the files in stripes") \
    X(ACTIVATIONS_BUFFERS, "sherd.activations.buffer_count", INT, ( \
      SETS(offload.activations.buffer_count), NUMBER(2), RANGE(1, INT_MAX)), \
      "devices `cpu` and `nvme`: places on the device through which activations pass. The " \
      "activations that are last in forward stay in them. With `nvme` and a GPU as many " \
      "buffers in host memory follow") \
    X(ACTIVATIONS_PIN, "sherd.activations.pin_memory", BOOL, ( \
      SETS(offload.activations.pin_memory), ON, LOCAL), \
      "locks the host memory, so that transfers overlap with the work of the GPU") \
    X(GROUPS, "sherd.groups", GROUPS, (SETS(update.groups), RULE("none")), \
      "parameter groups by name. Each entry is a block of `name`, `type`, `params` and " \
      "`matching`. `type`: an optimizer for this group alone, from the choices of " \
      "`optimizer.type`. `params`: `lr`, `betas`, `eps`, `momentum`, `weight_decay` and " \
      "`exclude_1d` for this group alone. Values that an entry lacks are those of " \
      "`optimizer.params`. `matching`: patterns (`*`, `?`, `[]`) of parameter names. A parameter " \
      "that is in the default group of the program goes to the first group that matches its " \
      "name. Without `matching`, the program adds a group of this name. If the program and the " \
      "entry contradict each other, the engine is refused") \
    X(MASTER_ENCODING, "sherd.master_encoding", TEXT, (SETS(update.master_encoding), \
      FIRST("fp32"), CHOICES("fp32|bf16_beside|bf16")), \
      "how the master weights of bf16 parameters are stored. `fp32`: in 4 bytes. `bf16_beside`: " \
      "as the 2 bytes that the bf16 parameter lacks, without loss; parameter and state must rest " \
      "together, or the state on `nvme`. `bf16`: in 2 bytes, rounded at random") \
    X(MOMENT_ENCODING, "sherd.moment_encoding", TEXT, (SETS(update.moment_encoding), \
      FIRST("fp32"), CHOICES("fp32|bf16|fp8")), \
      "how the other parts of an optimizer's state are stored. `fp8`: 8-bit floats, with a " \
      "power of two as scale for each 64 elements. `bf16` and `fp8` are rounded at random") \
    X(HIDDEN_SIZE, "sherd.hidden_size", INT, (RANGE(1, INT_MAX), NULLABLE), \
      "width of the model; the program gives it. The \"auto\" values of " \
      "`stage3_prefetch_bucket_size` and `stage3_param_persistence_threshold` are computed " \
      "from it") \
    /* ---- precision ---- */ \
    X(FP16, "fp16", BLOCK, (), \
      "computation in fp16, with loss scaling. If neither `fp16` nor `bf16` is enabled, sherd " \
      "computes in fp32") \
    X(FP16_ENABLED, "fp16.enabled", BOOL, (OFF, AUTO("false, unless the program sets true")), \
      "parameters and gradients are fp16") \
    X(LOSS_SCALE, "fp16.loss_scale", REAL, (DERIVES(numerics.scaler.is_dynamic), NUMBER(0), \
      RANGE(0, 8e37), ZERO_WORD("dynamic")), \
      "fixed loss scale; 0, or the word \"dynamic\": the loss scale is dynamic") \
    X(SCALE_POWER, "fp16.initial_scale_power", INT, (DERIVES(numerics.scaler.initial_scale), \
      NUMBER(16), RANGE(0, 126)), \
      "a dynamic loss scale starts at 2 to the power of this number") \
    X(SCALE_WINDOW, "fp16.loss_scale_window", SIZE, (SETS(numerics.scaler.scale_window), \
      NUMBER(1000), RANGE(0, INFINITY)), \
      "steps without an overflow after which a dynamic loss scale doubles. DeepSpeed from " \
      "0.17.1 on takes one step more at the start and after each overflow") \
    X(HYSTERESIS, "fp16.hysteresis", INT, (SETS(numerics.scaler.hysteresis), NUMBER(2), \
      RANGE(0, INT_MAX)), \
      "overflows after which a dynamic loss scale halves; 0 counts as 1") \
    X(CONSECUTIVE_HYSTERESIS, "fp16.consecutive_hysteresis", BOOL, ( \
      SETS(numerics.scaler.is_consecutive_hysteresis), OFF), \
      "`true`: each step without an overflow starts the count of hysteresis anew. `false`: " \
      "only a full `loss_scale_window` does") \
    X(MIN_SCALE, "fp16.min_loss_scale", REAL, (SETS(numerics.scaler.min_scale), NUMBER(1), \
      RANGE(0, 8e37)), \
      "smallest dynamic loss scale; fractions are allowed. An overflow at this scale is an " \
      "error. 0: no lower limit") \
    X(BF16, "bf16", BLOCK, (NULLABLE), \
      "computation in bf16") \
    X(BF16_ENABLED, "bf16.enabled", BOOL, (OFF, AUTO("false, unless the program sets true")), \
      "parameters and gradients are bf16") \
    X(BF16_CHECK_OVERFLOW, "bf16.check_grad_overflow", BOOL, (SETS(numerics.check_overflow), ON), \
      "skips an update whose gradient contains Inf or NaN, in bf16 and fp32 (fp16 always " \
      "skips it)") \
    X(BF16_MASTER, "bf16.bf16_master_weights_and_grads", BOOL, (DERIVES(update.master_encoding), \
      OFF), \
      "`true` means `sherd.master_encoding` `bf16`. Gradients are still added up in " \
      "`data_types.grad_accum_dtype` (DeepSpeed adds them up in bf16)") \
    X(BF16_STATES, "bf16.bf16_optimizer_states", BOOL, (DERIVES(update.moment_encoding), OFF), \
      "`true` means `sherd.moment_encoding` `bf16`, which rounds at random (DeepSpeed rounds " \
      "to nearest). As in DeepSpeed it needs `bf16_master_weights_and_grads`") \
    X(DATA_TYPES, "data_types", BLOCK, (), \
      "element types of parameters and of sums of gradients") \
    X(ACCUM_DTYPE, "data_types.grad_accum_dtype", TEXT, (SETS_DTYPE(numerics.accum_dtype), \
      FIRST("fp32"), CHOICES("fp32|fp16|bf16"), NULLABLE, ANY_CASE), \
      "element type in which the gradients of micro-batches are added up (DeepSpeed's default " \
      "is the compute type)") \
    X(PARAM_DTYPE, "data_types.param_dtype", TEXT, (SETS_DTYPE(numerics.compute_dtype), \
      RULE("the compute type"), CHOICES("fp32|fp16|bf16"), NULLABLE, ANY_CASE, EFFECT(dtype)), \
      "must be the compute type, which the blocks `fp16` and `bf16` choose") \
    /* ---- optimizer ---- */ \
    X(OPTIMIZER, "optimizer", BLOCK, (CLOSED), \
      "the optimizer; required, in the file or from the program") \
    X(OPTIMIZER_TYPE, "optimizer.type", TEXT, (SETS(update.optimizer), \
      CHOICES(sherdi_optimizer_types + 1), ANY_CASE, EFFECT(optimizer)), \
      "name of the optimizer. Adam decays weights as AdamW does, unless `adam_w_mode` is " \
      "false. Muon updates all parameters that no group gives to another optimizer; DeepSpeed " \
      "gives AdamW those with fewer than two dimensions, and those with `embed` or `lm_head` " \
      "in the name. `none`: an engine for inference, without gradients, state and steps (a " \
      "choice of sherd's own)") \
    X(OPTIMIZER_PARAMS, "optimizer.params", BLOCK, (CLOSED, NULLABLE), \
      "numbers for all parameter groups that have none of their own") \
    X(LR, "optimizer.params.lr", REAL, (SETS(update.lr), NUMBER(1e-3), RANGE(0, INFINITY), \
      AUTO("an error: the program must give it"), EFFECT(lr)), \
      "learning rate. An optimizer may have its own default (Adagrad: 0.01, Muon: 0.02)") \
    X(BETAS, "optimizer.params.betas", PAIR, (SETS(update.betas), BOTH(0.9, 0.999), BELOW(0, 1), \
      AUTO("the default"), EFFECT(betas)), \
      "decay rates of the two moments. An optimizer may have its own default (Lion: 0.9, 0.99)") \
    X(EPS, "optimizer.params.eps", REAL, (SETS(update.eps), NUMBER(1e-8), RANGE(0, INFINITY), \
      AUTO("the default"), EFFECT(eps)), \
      "number that is added to the square root of the second moment. An optimizer may have " \
      "its own default (Adagrad: 1e-10)") \
    X(WEIGHT_DECAY, "optimizer.params.weight_decay", REAL, (SETS(update.weight_decay), \
      NUMBER(0.0), RANGE(0, INFINITY), AUTO("0.0"), EFFECT(decay)), \
      "weight decay. With `torch_adam`, the default may be 0.01") \
    X(BIAS_CORRECTION, "optimizer.params.bias_correction", BOOL, (SETS(update.bias_correction), \
      ON), \
      "corrects the moments for their start at zero") \
    X(ADAM_W_MODE, "optimizer.params.adam_w_mode", BOOL, (SETS(update.decouples_decay), ON), \
      "`false`, with type Adam: weight decay is added to the gradient") \
    X(TORCH_ADAM, "optimizer.params.torch_adam", BOOL, (OFF, TRUTHY), \
      "`true`: the default of `weight_decay` is that of torch.optim.AdamW, 0.01, where Adam " \
      "or AdamW decays as AdamW does. It makes no other difference") \
    X(MAX_COEFF, "optimizer.params.max_coeff", REAL, (SETS(update.lamb.max_coeff), NUMBER(10.0), \
      RANGE(0, INFINITY)), \
      "Lamb: largest trust ratio") \
    X(MIN_COEFF, "optimizer.params.min_coeff", REAL, (SETS(update.lamb.min_coeff), NUMBER(0.01), \
      RANGE(0, INFINITY)), \
      "Lamb: smallest trust ratio") \
    X(EPS_INSIDE_SQRT, "optimizer.params.eps_inside_sqrt", BOOL, ( \
      SETS(update.lamb.eps_inside_sqrt), OFF), \
      "Lamb: eps is added under the square root") \
    X(LAMB_FORM, "optimizer.params.lamb_form", TEXT, (SETS(update.lamb.is_papers), \
      FIRST("deepspeed"), CHOICES("deepspeed|paper")), \
      "Lamb: use of the bias corrections. `deepspeed`: they multiply the whole step. " \
      "`paper`: they correct the moments from which the direction is made (a key of sherd's own)") \
    X(EXCLUDE_1D, "optimizer.params.exclude_1d", BOOL, (SETS(update.lamb.exclude_1d), OFF), \
      "Lamb: parameters with at most one dimension have a trust ratio of 1. A group may say " \
      "otherwise for its own parameters (a key of sherd's own)") \
    X(MOMENTUM, "optimizer.params.momentum", REAL, (SETS(update.sgd.momentum), NUMBER(0.0), \
      BELOW(0, 1), EFFECT(momentum)), \
      "SGD and Muon: share of the momentum buffer that stays at each step. Muon's default is " \
      "0.95. With 0, SGD has no buffer") \
    X(DAMPENING, "optimizer.params.dampening", REAL, (SETS(update.sgd.dampening), NUMBER(0.0), \
      RANGE(0, 1)), \
      "SGD: share of the gradient that is not added to the momentum buffer. The first step adds " \
      "the whole gradient") \
    X(NESTEROV, "optimizer.params.nesterov", BOOL, (SETS(update.sgd.is_nesterov), OFF, \
      EFFECT(nesterov)), \
      "SGD and Muon: Nesterov's momentum. Muon's default is `true`") \
    X(NS_STEPS, "optimizer.params.ns_steps", INT, (SETS(update.muon.steps), NUMBER(5), \
      RANGE(1, 20)), \
      "Muon: number of Newton-Schulz iterations") \
    X(ADJUST_LR, "optimizer.params.adjust_lr_fn", TEXT, (SETS(update.muon.matches_rms), \
      FIRST("original"), CHOICES("original|match_rms_adamw")), \
      "Muon: factor of the learning rate for a matrix of r rows and c columns, as in PyTorch. " \
      "`original`: max(1, r / c)^0.5. `match_rms_adamw`: 0.2 max(r, c)^0.5, with which you " \
      "can keep the rate and the decay of AdamW") \
    X(LR_DECAY, "optimizer.params.lr_decay", REAL, (SETS(update.adagrad.lr_decay), NUMBER(0.0), \
      RANGE(0, INFINITY)), \
      "Adagrad: step t divides the learning rate by 1 + (t - 1) times this number") \
    X(INITIAL_ACCUMULATOR, "optimizer.params.initial_accumulator_value", REAL, ( \
      SETS(update.adagrad.initial), NUMBER(0.0), RANGE(0, INFINITY)), \
      "Adagrad: start value of the sum of squares. The state holds only the sum of the added " \
      "squares") \
    X(MAX_GRAD_NORM, "optimizer.params.max_grad_norm", REAL, (RANGE(0, INFINITY)), \
      "read as `gradient_clipping` if that key is missing, with a warning") \
    /* ---- scheduler ---- */ \
    X(SCHEDULER, "scheduler", BLOCK, (CLOSED), \
      "the learning rate over time; without this block it is constant") \
    X(SCHEDULER_TYPE, "scheduler.type", TEXT, (SETS(update.schedule.kind), \
      CHOICES(sherdi_schedule_types + 1)), \
      "name of the schedule: one of DeepSpeed's, with DeepSpeed's indexing of steps, or one " \
      "of transformers', under its name there ([schedules.md](schedules.md))") \
    X(SCHEDULER_PARAMS, "scheduler.params", BLOCK, (CLOSED, NULLABLE), \
      "numbers of the schedule. A list, where it is allowed, has one number for each " \
      "parameter group") \
    X(WARMUP_MIN_LR, "scheduler.params.warmup_min_lr", REALS, (SETS(update.schedule.min_lr), \
      NUMBER(0.0), RANGE(0, INFINITY), AUTO("0"), SCHEDULE(plain)), \
      "`WarmupLR`, `WarmupDecayLR`: learning rate at the start") \
    X(WARMUP_MAX_LR, "scheduler.params.warmup_max_lr", REALS, (SETS(update.schedule.max_lr), \
      RULE("WarmupLR: each group's rate; WarmupDecayLR: 0.001"), RANGE(0, INFINITY), NULLABLE, \
      AUTO("each group's rate"), SCHEDULE(max_lr)), \
      "`WarmupLR`, `WarmupDecayLR`: learning rate at the end of the warm-up") \
    X(WARMUP_STEPS, "scheduler.params.warmup_num_steps", SIZE, ( \
      SETS(update.schedule.warmup_steps), NUMBER(1000), RANGE(0, INFINITY), AUTO("0"), \
      SCHEDULE(warmup_steps)), \
      "steps of the warm-up. DeepSpeed's schedules read less than 2 as 2. With the schedules " \
      "of transformers the default is 0") \
    X(WARMUP_TYPE, "scheduler.params.warmup_type", TEXT, (SETS(update.schedule.warmup_ramp), \
      FIRST("log"), CHOICES("log|linear|cosine|1-sqrt"), SOFT, SCHEDULE(warmup_type)), \
      "shape of the warm-up. DeepSpeed's schedules take `log` or `linear`, and read any other " \
      "value as `log`, with a warning. `warmup_stable_decay` takes `linear` (its default), " \
      "`cosine` or `1-sqrt`") \
    X(TOTAL_STEPS, "scheduler.params.total_num_steps", SIZE, (SETS(update.schedule.total_steps), \
      RANGE(1, INFINITY), AUTO("an error: the program must give it"), SCHEDULE(total_steps)), \
      "step at which the decay ends. Required by `WarmupDecayLR`, `WarmupCosineLR`, `linear`, " \
      "`polynomial` and the three cosine schedules; by `warmup_stable_decay` only without " \
      "`num_stable_steps`") \
    X(MIN_RATIO, "scheduler.params.warmup_min_ratio", REAL, (SETS(update.schedule.min_ratio), \
      NUMBER(0.0), RANGE(0, INFINITY), SCHEDULE(plain)), \
      "`WarmupCosineLR`: learning rate at the start, as a share of the group's rate") \
    X(COS_MIN_RATIO, "scheduler.params.cos_min_ratio", REAL, (SETS(update.schedule.cos_min_ratio), \
      NUMBER(1e-4), RANGE(0, INFINITY), SCHEDULE(plain)), \
      "`WarmupCosineLR`: learning rate at the end, as a share of the group's rate") \
    X(CYCLE_MIN_LR, "scheduler.params.cycle_min_lr", REALS, (SETS(update.schedule.cycle_min_lr), \
      RANGE(0, INFINITY), SCHEDULE(plain)), \
      "`OneCycle`, required: learning rate at the start and at the end of the cycle") \
    X(CYCLE_MAX_LR, "scheduler.params.cycle_max_lr", REALS, (SETS(update.schedule.cycle_max_lr), \
      RANGE(0, INFINITY), SCHEDULE(plain)), \
      "`OneCycle`, required: learning rate at the top of the cycle") \
    X(CYCLE_FIRST_STEPS, "scheduler.params.cycle_first_step_size", SIZE, ( \
      SETS(update.schedule.first_steps), NUMBER(2000), RANGE(1, INFINITY), SCHEDULE(plain)), \
      "`OneCycle`: steps from the start of the cycle to its top") \
    X(CYCLE_SECOND_STEPS, "scheduler.params.cycle_second_step_size", SIZE, ( \
      SETS(update.schedule.second_steps), RULE("cycle_first_step_size"), RANGE(0, INFINITY), \
      NULLABLE, SCHEDULE(second_steps)), \
      "`OneCycle`: steps from the top of the cycle to its end") \
    X(CYCLE_FIRST_STAIRS, "scheduler.params.cycle_first_stair_count", INT, ( \
      SETS(update.schedule.first_stairs), NUMBER(0), RANGE(-1, INT_MAX), SCHEDULE(plain)), \
      "`OneCycle`: number of stairs on the way up; below 1: the rate changes evenly") \
    X(CYCLE_SECOND_STAIRS, "scheduler.params.cycle_second_stair_count", INT, ( \
      SETS(update.schedule.second_stairs), RULE("cycle_first_stair_count"), RANGE(-1, INT_MAX), \
      NULLABLE, SCHEDULE(second_stairs)), \
      "`OneCycle`: number of stairs on the way down; below 1: the rate changes evenly") \
    X(DECAY_INTERVAL, "scheduler.params.decay_step_size", SIZE, ( \
      SETS(update.schedule.decay_interval), NUMBER(0), RANGE(0, INFINITY), SCHEDULE(plain)), \
      "`OneCycle`: number of steps to which `decay_lr_rate` and `decay_mom_rate` refer; both " \
      "count from the end of the cycle. 0: nothing decays") \
    X(DECAY_LR_RATE, "scheduler.params.decay_lr_rate", REAL, (SETS(update.schedule.decay_lr_rate), \
      NUMBER(0.0), RANGE(0, INFINITY), SCHEDULE(plain)), \
      "`OneCycle`: n times `decay_step_size` steps after the cycle, the learning rate is " \
      "`cycle_min_lr` divided by 1 + n times this number") \
    X(CYCLE_MOMENTUM, "scheduler.params.cycle_momentum", BOOL, ( \
      SETS(update.schedule.cycles_momentum), ON, SCHEDULE(plain)), \
      "`OneCycle`: the first beta moves against the learning rate, and the second beta is " \
      "0.99, whatever the optimizer says") \
    X(CYCLE_MIN_MOM, "scheduler.params.cycle_min_mom", REALS, ( \
      SETS(update.schedule.cycle_min_mom), NUMBER(0.8), BELOW(0, 1), SCHEDULE(plain)), \
      "`OneCycle`: momentum (the first beta) at the top of the cycle, and in the very first " \
      "step") \
    X(CYCLE_MAX_MOM, "scheduler.params.cycle_max_mom", REALS, ( \
      SETS(update.schedule.cycle_max_mom), NUMBER(0.9), BELOW(0, 1), SCHEDULE(plain)), \
      "`OneCycle`: momentum (the first beta) at the start and at the end of the cycle") \
    X(DECAY_MOM_RATE, "scheduler.params.decay_mom_rate", REAL, ( \
      SETS(update.schedule.decay_mom_rate), NUMBER(0.0), RANGE(0, INFINITY), SCHEDULE(plain)), \
      "`OneCycle`: n times `decay_step_size` steps after the cycle, the momentum is " \
      "`cycle_max_mom` multiplied by 1 + n times this number, without a bound, as in DeepSpeed") \
    X(RANGE_MIN_LR, "scheduler.params.lr_range_test_min_lr", REALS, ( \
      SETS(update.schedule.range_min_lr), NUMBER(1e-3), RANGE(0, INFINITY), SCHEDULE(plain)), \
      "`LRRangeTest`: learning rate at the start") \
    X(RANGE_STEPS, "scheduler.params.lr_range_test_step_size", SIZE, ( \
      SETS(update.schedule.range_steps), NUMBER(2000), RANGE(1, INFINITY), SCHEDULE(plain)), \
      "`LRRangeTest`: number of steps to which `lr_range_test_step_rate` refers") \
    X(RANGE_RATE, "scheduler.params.lr_range_test_step_rate", REAL, ( \
      SETS(update.schedule.range_rate), NUMBER(1.0), RANGE(0, INFINITY), SCHEDULE(plain)), \
      "`LRRangeTest`: every `lr_range_test_step_size` steps, the learning rate grows by this " \
      "number times `lr_range_test_min_lr`") \
    X(RANGE_STAIRCASE, "scheduler.params.lr_range_test_staircase", BOOL, ( \
      SETS(update.schedule.is_staircase), OFF, SCHEDULE(plain)), \
      "`LRRangeTest`: with `true` the learning rate grows only at the end of each " \
      "`lr_range_test_step_size`, with `false` at each step") \
    X(NUM_CYCLES, "scheduler.params.num_cycles", REAL, (SETS(update.schedule.num_cycles), \
      NUMBER(0.5), RANGE(0, INFINITY), SCHEDULE(num_cycles)), \
      "`cosine`, `cosine_with_min_lr`, `warmup_stable_decay`: number of waves of the cosine. " \
      "`cosine_with_restarts`: number of times that the cosine starts; the default is then 1. " \
      "Both are as in transformers") \
    X(MIN_LR, "scheduler.params.min_lr", REAL, (DERIVES(update.schedule.min_lr_rate), \
      RANGE(0, INFINITY), NULLABLE, SCHEDULE(plain)), \
      "`cosine_with_min_lr`: learning rate at the end, for a group that has the optimizer's " \
      "rate. Exactly one of this key and `min_lr_rate` is required") \
    X(MIN_LR_RATE, "scheduler.params.min_lr_rate", REAL, (DERIVES(update.schedule.min_lr_rate), \
      RANGE(0, 1), NULLABLE, SCHEDULE(plain)), \
      "`cosine_with_min_lr`: learning rate at the end, as a share of the group's rate") \
    X(LR_END, "scheduler.params.lr_end", REAL, (SETS(update.schedule.lr_end), NUMBER(1e-7), \
      RANGE(0, INFINITY), SCHEDULE(plain)), \
      "`polynomial`: learning rate at the end, for a group that has the optimizer's rate") \
    X(POWER, "scheduler.params.power", REAL, (SETS(update.schedule.power), NUMBER(1.0), \
      RANGE(0, INFINITY), SCHEDULE(plain)), \
      "`polynomial`: exponent") \
    X(TIMESCALE, "scheduler.params.timescale", SIZE, (SETS(update.schedule.timescale), \
      RULE("num_warmup_steps; 10000 if that is 0"), RANGE(1, INFINITY), NULLABLE, \
      SCHEDULE(timescale)), \
      "`inverse_sqrt`: steps after the warm-up in which the learning rate falls to the square " \
      "root of one half of its value") \
    X(STABLE_STEPS, "scheduler.params.num_stable_steps", SIZE, ( \
      SETS(update.schedule.stable_steps), \
      RULE("num_training_steps minus the steps of warm-up and decay"), RANGE(0, INFINITY), \
      NULLABLE, SCHEDULE(stable_steps)), \
      "`warmup_stable_decay`: steps between the warm-up and the decay") \
    X(DECAY_STEPS, "scheduler.params.num_decay_steps", SIZE, (SETS(update.schedule.decay_steps), \
      RANGE(0, INFINITY), SCHEDULE(plain)), \
      "`warmup_stable_decay`, required: steps of the decay") \
    X(DECAY_TYPE, "scheduler.params.decay_type", TEXT, (DERIVES(update.schedule.decay_ramp), \
      FIRST("cosine"), CHOICES("cosine|linear|1-sqrt"), SCHEDULE(plain)), \
      "`warmup_stable_decay`: shape of the decay") \
    X(MIN_LR_RATIO, "scheduler.params.min_lr_ratio", REAL, (DERIVES(update.schedule.min_lr_rate), \
      NUMBER(0), RANGE(0, 1), SCHEDULE(plain)), \
      "`warmup_stable_decay`: learning rate at the start and at the end, as a share of the " \
      "group's rate") \
    /* ---- zero_optimization ---- */ \
    X(ZERO, "zero_optimization", BLOCK, (CLOSED, LEGACY_BOOL), \
      "the objects that are sharded. The old values `true` and `false` in place of the block mean " \
      "stage 1 and stage 0") \
    X(STAGE, "zero_optimization.stage", INT, (SETS(sharding.stage), NUMBER(0), RANGE(0, 3), \
      AUTO("an error: the program must give it"), EFFECT(stage)), \
      "0: nothing is sharded. 1: optimizer state is sharded. 2: gradients too. 3: parameters " \
      "too") \
    X(OVERLAP_COMM, "zero_optimization.overlap_comm", BOOL, (SETS(sharding.overlap_comm), \
      RULE("true at stage 3, else false"), NULLABLE, EFFECT(overlap)), \
      "communicates while the trainer computes") \
    X(SUB_GROUP, "zero_optimization.sub_group_size", SIZE, (SETS(sharding.sub_group_size), \
      NUMBER(1e9), RANGE(0, INFINITY), ZERO_IS_DEFAULT), \
      "most elements in a block of optimizer state (DeepSpeed's sub-group); 0 means the " \
      "default") \
    X(PREFETCH_BUCKET, "zero_optimization.stage3_prefetch_bucket_size", SIZE, ( \
      SETS(sharding.prefetch_bucket_size), NUMBER(5e7), RANGE(0, INFINITY), TRUNCATE, \
      AUTO("0.9 x hidden_size squared, else the default"), EFFECT(prefetch)), \
      "most elements that are gathered ahead of their use. The engine gathers the units of the " \
      "next acquire, and more only while less than 8 MiB are gathered ahead. Fractions of the " \
      "value are cut off") \
    X(PERSISTENCE, "zero_optimization.stage3_param_persistence_threshold", SIZE, ( \
      SETS(sharding.persistence_threshold), NUMBER(1e5), RANGE(0, INFINITY), \
      AUTO("10 x hidden_size, else the default"), EFFECT(persistence)), \
      "parameters with at most this number of elements stay whole on each rank") \
    X(MODEL_PERSISTENCE, "zero_optimization.stage3_model_persistence_threshold", SIZE, ( \
      SETS(sharding.model_persistence_threshold), NUMBER(9223372036854775807), \
      RANGE(0, INFINITY)), \
      "most elements that stay whole on each rank, over all parameters") \
    X(MAX_LIVE, "zero_optimization.stage3_max_live_parameters", SIZE, ( \
      SETS(sharding.max_live_parameters), NUMBER(1e9), RANGE(0, INFINITY)), \
      "most elements that are gathered at a time. The limit applies only to gathers ahead of " \
      "their use") \
    X(MAX_REUSE, "zero_optimization.stage3_max_reuse_distance", SIZE, ( \
      SETS(sharding.max_reuse_distance), NUMBER(0), RANGE(0, INFINITY)), \
      "a unit stays gathered if at most this number of elements of other units is used before " \
      "its next use. DeepSpeed's default of 1e9 would keep models below a billion parameters " \
      "gathered") \
    /* ---- offload ---- */ \
    X(OFFLOAD_PARAM, "zero_optimization.offload_param", BLOCK, (CLOSED, NULLABLE, AUTO_ABSENT, \
      AUTO("no offload")), \
      "where parameters rest at stage 3") \
    X(PARAM_DEVICE, "zero_optimization.offload_param.device", TEXT, (SETS(offload.params.tier), \
      FIRST("none"), CHOICES(sherdi_tier_choices + 1), AUTO("none")), \
      "`none`: on the device that computes with them. `cpu`: in host memory. `nvme`: in files") \
    X(PARAM_PATH, "zero_optimization.offload_param.nvme_path", FOLDERS, (NULLABLE, \
      AUTO("an error with device nvme: the program must give it")), \
      "folder of the files; required for device `nvme`. Several folders, on several drives, " \
      "share the files in stripes") \
    X(PARAM_BUFFERS, "zero_optimization.offload_param.buffer_count", INT, ( \
      SETS(offload.params.buffer_count), NUMBER(5), RANGE(1, INT_MAX)), \
      "device `nvme`: number of buffers in memory through which slices pass") \
    X(PARAM_BUFFER_SIZE, "zero_optimization.offload_param.buffer_size", SIZE, ( \
      SETS(offload.params.buffer_elems), NUMBER(1e8), RANGE(1, INFINITY)), \
      "devices `cpu` and `nvme`: most elements in a buffer, and in one transfer") \
    X(PARAM_IN_CPU, "zero_optimization.offload_param.max_in_cpu", SIZE, ( \
      SETS(offload.params_in_cpu), NUMBER(1e9), RANGE(0, INFINITY)), \
      "device `nvme`: most elements of each rank that stay in host memory") \
    X(PARAM_PIN, "zero_optimization.offload_param.pin_memory", BOOL, ( \
      SETS(offload.params.pin_memory), ON, LOCAL), \
      "registers the buffers with the kernel, as far as the limit on locked memory allows") \
    X(OFFLOAD_OPTIMIZER, "zero_optimization.offload_optimizer", BLOCK, (CLOSED, NULLABLE, \
      AUTO_ABSENT, AUTO("no offload")), \
      "where optimizer state rests at stages 1 to 3") \
    X(STATE_DEVICE, "zero_optimization.offload_optimizer.device", TEXT, (SETS(offload.state.tier), \
      FIRST("none"), CHOICES(sherdi_tier_choices + 1), AUTO("none")), \
      "`none`: on the device that computes with it. `cpu`: in host memory. `nvme`: in files") \
    X(STATE_PATH, "zero_optimization.offload_optimizer.nvme_path", FOLDERS, (NULLABLE, \
      AUTO("an error with device nvme: the program must give it")), \
      "folder of the files; required for device `nvme`. Several folders, on several drives, " \
      "share the files in stripes") \
    X(STATE_BUFFERS, "zero_optimization.offload_optimizer.buffer_count", INT, ( \
      SETS(offload.state.buffer_count), NUMBER(4), RANGE(1, INT_MAX)), \
      "device `nvme`: number of buffers in memory through which blocks pass") \
    X(STATE_BUFFER_SIZE, "zero_optimization.offload_optimizer.buffer_size", SIZE, ( \
      SETS(offload.state.buffer_elems), NUMBER(4194304), RANGE(4096, INFINITY)), \
      "devices `cpu` and `nvme`: most elements in a buffer, and in one transfer (a key of " \
      "sherd's own)") \
    X(STATE_PIN, "zero_optimization.offload_optimizer.pin_memory", BOOL, ( \
      SETS(offload.state.pin_memory), ON, LOCAL), \
      "registers the buffers with the kernel, as far as the limit on locked memory allows") \
    X(STATE_PIPELINE_READ, "zero_optimization.offload_optimizer.pipeline_read", BOOL, ( \
      SETS(offload.pipeline_read), ON), \
      "reads the next blocks while a block is updated. `false` is slower and gives the same " \
      "bits (DeepSpeed's default is false)") \
    X(STATE_PIPELINE_WRITE, "zero_optimization.offload_optimizer.pipeline_write", BOOL, ( \
      SETS(offload.pipeline_write), ON), \
      "writes the previous blocks while a block is updated. `false` is slower and gives the " \
      "same bits (DeepSpeed's default is false)") \
    X(STATE_FAST_INIT, "zero_optimization.offload_optimizer.fast_init", BOOL, ( \
      SETS(offload.fast_init), OFF), \
      "leaves out one comparison of checksums: the one when the first update reads the filled " \
      "values") \
    X(STATE_RATIO, "zero_optimization.offload_optimizer.ratio", REAL, (SETS(offload.ratio), \
      NUMBER(1.0), RANGE(0, 1)), \
      "share of the optimizer state that is offloaded, at any stage (DeepSpeed takes less " \
      "than 1 only at stage 3)") \
    X(STATE_GRADIENTS, "zero_optimization.offload_optimizer.gradients", TEXT, ( \
      SETS(offload.gradients_on_nvme), FIRST("cpu"), CHOICES("cpu|nvme")), \
      "where the gradients of offloaded state are added up. `cpu`: in host memory. `nvme`: in " \
      "a file, which needs device `nvme` (a key of sherd's own)") \
    X(STATE_ACCUMULATE, "zero_optimization.offload_optimizer.accumulate", TEXT, ( \
      SETS(offload.accumulate), RULE("device on a GPU, else cpu"), CHOICES("cpu|device"), \
      NULLABLE, AUTO("device on a GPU, else cpu"), EFFECT(accumulate_place)), \
      "where the micro-batches of a step are added up at stages 2 and 3. `cpu`: in host " \
      "memory; the gradient of each micro-batch goes down to it. `device`: in an accumulator " \
      "on the device, which goes down once (a key of sherd's own)") \
    X(STATE_VERIFY, "zero_optimization.offload_optimizer.verify_reads", BOOL, ( \
      SETS(offload.verify_reads), OFF), \
      "device `nvme`: compares the checksum of every block that is read (a key of sherd's own)") \
    X(STATE_RESUME, "zero_optimization.offload_optimizer.resume", BOOL, ( \
      SETS(offload.resume_state), OFF), \
      "continues from the state files that an earlier run left in `nvme_path`; refused with a " \
      "ratio below 1 (a key of sherd's own)") \
    X(STATE_KEEP, "zero_optimization.offload_optimizer.keep", BOOL, (SETS(offload.keep_state), \
      OFF), \
      "leaves the state files when the engine is destroyed. A run that dies leaves them in " \
      "any case (a key of sherd's own)") \
    X(STATE_DURABLE, "zero_optimization.offload_optimizer.durable", BOOL, (SETS(offload.durable), \
      ON), \
      "device `nvme`: when a step is over, its state is on the medium. `false`: the state " \
      "survives the end of the process, but not the end of the machine (a key of sherd's own)") \
    X(CHECKPOINT, "checkpoint", BLOCK, (NULLABLE), \
      "saving and loading with `sherd_checkpoint_save` and `sherd_checkpoint_load`") \
    X(CHECKPOINT_ASYNC, "checkpoint.async", BOOL, (SETS(checkpoint.is_async), OFF), \
      "a save returns when the state is copied to host memory, and the copy is written while " \
      "training goes on. The plan counts the memory for the copy (a key of sherd's own)") \
    X(CHECKPOINT_KEEP, "checkpoint.keep_last", INT, (SETS(checkpoint.keep_last), NUMBER(0), \
      RANGE(0, INT_MAX)), \
      "complete checkpoints that stay in a folder when a new one is saved there; 0: all (a " \
      "key of sherd's own)") \
    X(AIO, "aio", BLOCK, (NULLABLE), \
      "how the drive of device `nvme` is read and written") \
    X(AIO_BLOCK, "aio.block_size", SIZE, (SETS(io.block_bytes), NUMBER(1048576), \
      RANGE(4096, INFINITY), LOCAL), \
      "most bytes in a request") \
    X(AIO_DEPTH, "aio.queue_depth", INT, (SETS(io.depth), NUMBER(8), RANGE(1, INT_MAX), LOCAL), \
      "requests in flight") \
    X(AIO_ENGINE, "aio.engine", TEXT, (SETS(io.engine), FIRST("auto"), \
      CHOICES("auto|io_uring|threads"), LOCAL, \
      AUTO("io_uring if the kernel has it, else threads")), \
      "implementation of the requests: `io_uring`, or threads with pread and pwrite (a key of " \
      "sherd's own)") \
    X(AIO_TBW, "aio.rated_tbw", REAL, (SETS(io.drive_tbw), NUMBER(600), RANGE(0, INFINITY), \
      LOCAL), \
      "terabytes that a drive is rated to take, for the line about wear in the plan (a key of " \
      "sherd's own)") \
    X(AIO_STEP_SECONDS, "aio.step_seconds", REAL, (SETS(io.step_seconds), NUMBER(0), \
      RANGE(0, INFINITY), LOCAL), \
      "seconds of a step, for the line about wear in the plan. 0: the time that a drive of 2 " \
      "GB/s needs (a key of sherd's own)")

/* Other spellings: X(path, id it means, kind). A block's members follow their block. */
#define SHERDI_CONFIG_ALIASES(X) \
    X("bfloat16", BF16, SAME) \
    X("aio.thread_count", AIO_PARALLELISM, OLD) \
    X("optimizer.params.__max_grad_norm__", MAX_GRAD_NORM, OLD) \
    X("scheduler.params.num_warmup_steps", WARMUP_STEPS, SAME) \
    X("scheduler.params.num_training_steps", TOTAL_STEPS, SAME) \
    X("zero_optimization.prefetch_bucket_size", PREFETCH_BUCKET, SAME) \
    X("zero_optimization.param_persistence_threshold", PERSISTENCE, SAME) \
    X("zero_optimization.stage3_param_persitence_threshold", PERSISTENCE, OLD) \
    X("zero_optimization.stage3_param_persitance_threshold", PERSISTENCE, OLD) \
    X("zero_optimization.model_persistence_threshold", MODEL_PERSISTENCE, SAME) \
    X("zero_optimization.max_live_parameters", MAX_LIVE, SAME) \
    X("zero_optimization.max_reuse_distance", MAX_REUSE, SAME) \
    X("zero_optimization.module_granularity_threshold", GRANULARITY, SAME) \
    X("zero_optimization.use_all_reduce_for_fetch_params", FETCH_ALL_REDUCE, SAME) \
    X("zero_optimization.allgather_sequential", GATHER_SEQUENTIAL, SAME) \
    X("zero_optimization.gather_16bit_weights_on_model_save", GATHER_ON_SAVE, SAME) \
    X("zero_optimization.stage3_gather_fp16_weights_on_model_save", GATHER_ON_SAVE, OLD) \
    X("use_data_before_expert_parallelism_", EXPERT_PARALLELISM, SAME) \
    X("zero_optimization.find_unused_parameters", IGNORE_UNUSED, INVERTED) \
    X("zero_optimization.cpu_offload", STATE_DEVICE, CPU_SWITCH) \
    X("zero_optimization.cpu-offload", STATE_DEVICE, CPU_SWITCH) \
    X("zero_optimization.cpu_offload_param", PARAM_DEVICE, CPU_SWITCH) \
    X("zero_optimization.cpu_offload_params", PARAM_DEVICE, CPU_SWITCH) \
    X("zero_optimization.cpu_offload_pin_memory", STATE_PIN, OLD) \
    X("zero_optimization.cpu_offload_use_pin_memory", STATE_PIN, OLD) \
    X("strict", STRICT, PROGRAM_ONLY) \
    X("lenient", LENIENT, PROGRAM_ONLY) \
    X("hidden_size", HIDDEN_SIZE, PROGRAM_ONLY)
/* clang-format on */
