/* The configuration keys that have an effect; DeepSpeed's others are in config_unused.h. Reading, the settings, what ranks
 * compare, the reference page and the dump all come from these two tables. A row:
 *
 *   X(id, path, type, (what it does, and other attributes), meaning)
 *
 *   SETS(field)          of sherdi_settings, to the value in force; SETS_DTYPE: to that element type
 *   DERIVES(field)       a rule of config_resolve.c makes the field of this key and of others; without either of them
 *                        something else follows from it, in config_*.c
 *   NUMBER ON OFF BOTH   the default; FIRST: the first of the choices
 *   RULE("sentence")     what the default follows from; config_effect.c computes it
 *   RANGE BELOW CHOICES  what is allowed
 *   AUTO("sentence")     what "auto" gives; without it the default
 *   NULLABLE, LOCAL ...  the bits of sherdi_config_key
 *
 * A block's members follow it. Included by config_impl.h and config_table.c only. */

/* clang-format off */
#define SHERDI_CONFIG_KEYS(X) \
    /* ---- batch ---- */ \
    X(TRAIN_BATCH, "train_batch_size", INT, (SETS(train_batch_size), \
      RULE("the product of the next two and the number of ranks"), RANGE(1, INT_MAX), AUTO("derived")), \
      "samples per optimizer step over all ranks") \
    X(MICRO_BATCH, "train_micro_batch_size_per_gpu", INT, (SETS(micro_batch_size), RULE("derived from train_batch_size"), \
      RANGE(1, INT_MAX), AUTO("derived; needs train_batch_size or a value from the program")), \
      "samples per rank and micro-batch") \
    X(ACCUMULATION, "gradient_accumulation_steps", INT, (SETS(accumulation), \
      RULE("1, or derived where both sizes are given"), RANGE(1, INT_MAX), AUTO("derived")), \
      "micro-batches per optimizer step") \
    /* ---- general ---- */ \
    X(STEPS_PER_PRINT, "steps_per_print", SIZE, (SETS(steps_per_print), RANGE(0, INFINITY), NULLABLE, LOCAL), \
      "every so many steps rank 0 logs a line (level info) with the step, rate, norm, loss scale, fingerprint of the weights and samples per second; a program may print one of its own as often (sherd_engine_query); none without it") \
    X(GRADIENT_CLIPPING, "gradient_clipping", REAL, (SETS(gradient_clipping), NUMBER(1.0), \
      RANGE(0, INFINITY), AUTO("1.0")), \
      "largest L2 norm of the gradient; 0 switches clipping off") \
    X(COMM_DTYPE, "communication_data_type", TEXT, (SETS_DTYPE(comm_dtype), RULE("the compute type"), \
      CHOICES("fp32|fp16|bf16"), NULLABLE, ANY_CASE), "element type of gradients on the wire") \
    X(DETERMINISTIC, "deterministic", BOOL, (SETS(deterministic), OFF), \
      "the same bits for every stage, accumulation and number of ranks (a key of sherd's own)") \
    X(WALL_CLOCK, "wall_clock_breakdown", BOOL, (SETS(wall_clock_breakdown), OFF), \
      "the time of each step by phase, in its report, in the log at level info and in what monitors write") \
    X(MEMORY_BREAKDOWN, "memory_breakdown", BOOL, (SETS(memory_breakdown), OFF, LOCAL), \
      "rank 0 logs (level info) the memory that it holds by purpose, when the engine is sealed and with each line of steps_per_print (of each step without that)") \
    /* ---- what people watch ---- */ \
    X(CSV_MONITOR, "csv_monitor", BLOCK, (CLOSED), "a file of rows for each number that is watched, written by rank 0; docs/monitors.md") \
    X(CSV_ENABLED, "csv_monitor.enabled", BOOL, (SETS(monitors[SHERDI_MONITOR_CSV].is_on), OFF, LOCAL), "write them") \
    X(CSV_PATH, "csv_monitor.output_path", TEXT, (DERIVES(monitors[SHERDI_MONITOR_CSV].folder), FIRST(""), LOCAL), \
      "folder, which is made; empty: where the program was started") \
    X(CSV_JOB, "csv_monitor.job_name", TEXT, (DERIVES(monitors[SHERDI_MONITOR_CSV].folder), FIRST("DeepSpeedJobName"), LOCAL), \
      "folder in it") \
    X(TENSORBOARD, "tensorboard", BLOCK, (CLOSED), "files of events that TensorBoard opens, written by rank 0; docs/monitors.md") \
    X(BOARD_ENABLED, "tensorboard.enabled", BOOL, (SETS(monitors[SHERDI_MONITOR_TENSORBOARD].is_on), OFF, LOCAL), "write them") \
    X(BOARD_PATH, "tensorboard.output_path", TEXT, (DERIVES(monitors[SHERDI_MONITOR_TENSORBOARD].folder), FIRST(""), LOCAL), \
      "folder, which is made; empty: where the program was started") \
    X(BOARD_JOB, "tensorboard.job_name", TEXT, (DERIVES(monitors[SHERDI_MONITOR_TENSORBOARD].folder), FIRST("DeepSpeedJobName"), LOCAL), \
      "folder in it") \
    X(COMMS_LOGGER, "comms_logger", BLOCK, (CLOSED), "what gathers and reductions moved, in the log at level info, by rank 0") \
    X(COMMS_ENABLED, "comms_logger.enabled", BOOL, (SETS(logs_comms), OFF, LOCAL), \
      "a summary with each line of steps_per_print and at the end of the engine") \
    X(COMMS_VERBOSE, "comms_logger.verbose", BOOL, (SETS(logs_each_comm), OFF, LOCAL), "with enabled: a line for each of them too") \
    /* ---- sherd's own ---- */ \
    X(SHERD, "sherd", BLOCK, (CLOSED), "keys of sherd's own") \
    X(STRICT, "sherd.strict", BOOL, (OFF), \
      "every warning about the configuration is an error") \
    X(LENIENT, "sherd.lenient", BOOL, (OFF), \
      "unknown keys inside closed blocks warn instead of failing; holds for what is read with or after it") \
    X(VENDOR_REDUCTION, "sherd.vendor_reduction", BOOL, (SETS(vendor_reduction), OFF), \
      "reduce gradients with the transport's own reduction (NCCL): its bits depend on the layout, and no promise of equal bits holds; other transports do not look at it") \
    X(FREE_PACKING, "sherd.free_packing", BOOL, (SETS(free_packing), OFF), \
      "stage 3: each gather of a unit has a place of its own, which may take less memory where sizes and orders are irregular; no parameter has one address then (sherd_param_address)") \
    X(EVAL_KEEP, "sherd.eval_keep_units", SIZE, (SETS(eval_keep_units), NUMBER(0), RANGE(0, 131072)), \
      "stage 3: so many units, the first of the order of EVAL that are gathered, have places of their own, which no other unit of EVAL takes: between sherd_eval_begin and sherd_eval_end they are gathered once; not with sherd.free_packing") \
    X(UNUSED_UNITS, "sherd.unused_units", TEXT, (SETS(skips_unused), FIRST("zero"), CHOICES("zero|skip")), \
      "what an update does with a unit that no rank reached in the window: zero is its gradient (the moments fade, the weights decay), or skip it (neither weights nor state change, as torch does with a grad of None)") \
    X(GROUPS, "sherd.groups", GROUPS, (SETS(groups), RULE("none")), \
      "parameter groups by name, each {\"name\", \"type\", \"params\", \"matching\"}: type is an optimizer of its own, as optimizer.type; params has lr, betas, eps, weight_decay and exclude_1d of its own; matching has patterns (`*`, `?`, `[]`) of names of parameters that the program left in the default group, which go to this one, the first that matches; without it the program adds a group of that name. What it does not say is as in optimizer.params; where the program says something else of a group the engine is refused") \
    X(MASTER_ENCODING, "sherd.master_encoding", TEXT, (SETS(master_encoding), FIRST("fp32"), CHOICES("fp32|bf16_beside|bf16")), \
      "how master weights are stored beside bf16 parameters: fp32, 4 bytes; bf16_beside, the 2 bytes that the parameter lacks, which lose nothing (parameter and state have to rest together, or the state on nvme); bf16, 2 bytes, rounded at random") \
    X(MOMENT_ENCODING, "sherd.moment_encoding", TEXT, (SETS(moment_encoding), FIRST("fp32"), CHOICES("fp32|bf16|fp8")), \
      "how the other parts of an optimizer's state are stored: fp32; bf16; fp8, 8-bit floats with a power of two for each 64 elements; bf16 and fp8 are rounded at random") \
    X(HIDDEN_SIZE, "sherd.hidden_size", INT, (RANGE(1, INT_MAX), NULLABLE), \
      "width of the model: what \"auto\" bucket sizes are computed from; the program gives it") \
    /* ---- precision ---- */ \
    X(FP16, "fp16", BLOCK, (), \
      "compute in fp16, with loss scaling; neither this nor bf16: fp32") \
    X(FP16_ENABLED, "fp16.enabled", BOOL, (OFF, \
      AUTO("false, unless the program says true")), "parameters and gradients in fp16") \
    X(LOSS_SCALE, "fp16.loss_scale", REAL, (DERIVES(scaler.is_dynamic), NUMBER(0), \
      RANGE(0, 8e37)), "fixed loss scale; 0: dynamic") \
    X(SCALE_POWER, "fp16.initial_scale_power", INT, (DERIVES(scaler.initial_scale), NUMBER(16), \
      RANGE(0, 126)), "a dynamic scale starts at 2 to this power") \
    X(SCALE_WINDOW, "fp16.loss_scale_window", SIZE, (SETS(scaler.scale_window), NUMBER(1000), \
      RANGE(0, INFINITY)), "clean steps before the scale doubles") \
    X(HYSTERESIS, "fp16.hysteresis", INT, (SETS(scaler.hysteresis), NUMBER(2), RANGE(0, INT_MAX)), \
      "overflows before the scale halves; 0 counts as 1") \
    X(CONSECUTIVE_HYSTERESIS, "fp16.consecutive_hysteresis", BOOL, \
      (SETS(scaler.is_consecutive_hysteresis), OFF), \
      "each clean step refills the count of overflows") \
    X(MIN_SCALE, "fp16.min_loss_scale", REAL, (SETS(scaler.min_scale), NUMBER(1), RANGE(0, 8e37)), \
      "smallest dynamic scale, fractions allowed; an overflow there is an error; 0: no floor") \
    X(BF16, "bf16", BLOCK, (NULLABLE), "compute in bf16") \
    X(BF16_ENABLED, "bf16.enabled", BOOL, (OFF, \
      AUTO("false, unless the program says true")), "parameters and gradients in bf16") \
    X(BF16_CHECK_OVERFLOW, "bf16.check_grad_overflow", BOOL, (SETS(check_overflow), ON), \
      "skip an update whose gradient has Inf or NaN in it, in bf16 and fp32") \
    X(BF16_MASTER, "bf16.bf16_master_weights_and_grads", BOOL, (DERIVES(master_encoding), OFF), \
      "as sherd.master_encoding bf16; gradients are added up as data_types.grad_accum_dtype says all the same (DeepSpeed: in bf16)") \
    X(BF16_STATES, "bf16.bf16_optimizer_states", BOOL, (DERIVES(moment_encoding), OFF), \
      "as sherd.moment_encoding bf16; as in DeepSpeed only with the key before (DeepSpeed rounds to nearest)") \
    X(DATA_TYPES, "data_types", BLOCK, (), "element types") \
    X(ACCUM_DTYPE, "data_types.grad_accum_dtype", TEXT, (SETS_DTYPE(accum_dtype), FIRST("fp32"), CHOICES("fp32|fp16|bf16"), \
      NULLABLE, ANY_CASE), "element type in which micro-batches are added up (DeepSpeed's default is the compute type)") \
    X(PARAM_DTYPE, "data_types.param_dtype", TEXT, (SETS_DTYPE(compute_dtype), RULE("the compute type"), \
      CHOICES("fp32|fp16|bf16"), NULLABLE, ANY_CASE), "must agree with fp16 and bf16") \
    /* ---- optimizer ---- */ \
    X(OPTIMIZER, "optimizer", BLOCK, (CLOSED), "required, in the file or by the program") \
    X(OPTIMIZER_TYPE, "optimizer.type", TEXT, (SETS(optimizer), CHOICES(sherdi_optimizer_types + 1), ANY_CASE), \
      "Adam decays weights as AdamW does unless adam_w_mode is false; none: an engine for inference, without gradients, state and steps (a choice of sherd's own)") \
    X(OPTIMIZER_PARAMS, "optimizer.params", BLOCK, (CLOSED, NULLABLE), \
      "for all parameter groups that do not say otherwise") \
    X(LR, "optimizer.params.lr", REAL, (SETS(lr), NUMBER(1e-3), RANGE(0, INFINITY), \
      AUTO("an error: the program must give it")), "learning rate; an optimizer may have a default of its own") \
    X(BETAS, "optimizer.params.betas", PAIR, (SETS(betas), BOTH(0.9, 0.999), BELOW(0, 1), \
      AUTO("the default")), "decay of the two moments; an optimizer may have a default of its own") \
    X(EPS, "optimizer.params.eps", REAL, (SETS(eps), NUMBER(1e-8), RANGE(0, INFINITY), \
      AUTO("the default")), "added to the square root of the second moment; an optimizer may have a default of its own") \
    X(WEIGHT_DECAY, "optimizer.params.weight_decay", REAL, (SETS(weight_decay), NUMBER(0.0), \
      RANGE(0, INFINITY), AUTO("0.0")), "weight decay") \
    X(BIAS_CORRECTION, "optimizer.params.bias_correction", BOOL, (SETS(bias_correction), ON), \
      "correct the moments for their start at zero") \
    X(ADAM_W_MODE, "optimizer.params.adam_w_mode", BOOL, (SETS(decouples_decay), ON), \
      "false, with type Adam: decay is added to the gradient") \
    X(MAX_COEFF, "optimizer.params.max_coeff", REAL, (SETS(lamb.max_coeff), NUMBER(10.0), \
      RANGE(0, INFINITY)), "Lamb: largest trust ratio") \
    X(MIN_COEFF, "optimizer.params.min_coeff", REAL, (SETS(lamb.min_coeff), NUMBER(0.01), \
      RANGE(0, INFINITY)), "Lamb: smallest trust ratio") \
    X(EPS_INSIDE_SQRT, "optimizer.params.eps_inside_sqrt", BOOL, (SETS(lamb.eps_inside_sqrt), \
      OFF), "Lamb: eps is added under the square root") \
    X(LAMB_FORM, "optimizer.params.lamb_form", TEXT, (SETS(lamb.is_papers), FIRST("deepspeed"), CHOICES("deepspeed|paper")), \
      "Lamb: whether the bias corrections multiply the whole step, or make the moments that the direction is of (a key of sherd's own)") \
    X(EXCLUDE_1D, "optimizer.params.exclude_1d", BOOL, (SETS(lamb.exclude_1d), OFF), \
      "Lamb: the trust ratio of parameters with at most one dimension is 1, in groups that do not say otherwise (a key of sherd's own)") \
    X(MOMENTUM, "optimizer.params.momentum", REAL, (SETS(sgd.momentum), NUMBER(0.0), \
      BELOW(0, 1)), "SGD and Muon (0.95 unless it is given): share of the buffer that stays; 0, of SGD: there is no buffer") \
    X(DAMPENING, "optimizer.params.dampening", REAL, (SETS(sgd.dampening), NUMBER(0.0), \
      RANGE(0, 1)), "SGD: share of the gradient that stays out of the buffer, but for the first step's") \
    X(NESTEROV, "optimizer.params.nesterov", BOOL, (SETS(sgd.is_nesterov), OFF), \
      "SGD and Muon (true unless it is given): Nesterov's momentum") \
    X(NS_STEPS, "optimizer.params.ns_steps", INT, (SETS(muon.steps), NUMBER(5), RANGE(1, 20)), \
      "Muon: steps of the Newton-Schulz iteration") \
    X(ADJUST_LR, "optimizer.params.adjust_lr_fn", TEXT, (SETS(muon.matches_rms), FIRST("original"), CHOICES("original|match_rms_adamw")), \
      "Muon: what the rate of a matrix of r rows and c columns is multiplied by: max(1, r / c)^0.5, or 0.2 max(r, c)^0.5, with which rates and decay of AdamW can be kept (as in PyTorch)") \
    X(LR_DECAY, "optimizer.params.lr_decay", REAL, (SETS(adagrad.lr_decay), NUMBER(0.0), \
      RANGE(0, INFINITY)), "Adagrad: step t divides the rate by 1 + (t - 1) times this") \
    X(INITIAL_ACCUMULATOR, "optimizer.params.initial_accumulator_value", REAL, (SETS(adagrad.initial), NUMBER(0.0), \
      RANGE(0, INFINITY)), "Adagrad: what the sum of squares begins at; the state holds what was added to it") \
    X(MAX_GRAD_NORM, "optimizer.params.max_grad_norm", REAL, (RANGE(0, INFINITY)), \
      "taken as gradient_clipping where that is absent, with a warning") \
    /* ---- scheduler ---- */ \
    X(SCHEDULER, "scheduler", BLOCK, (CLOSED), \
      "the learning rate over time; constant without it") \
    X(SCHEDULER_TYPE, "scheduler.type", TEXT, (SETS(schedule.kind), CHOICES(sherdi_schedule_types + 1)), \
      "DeepSpeed's schedules, with its indexing, and those of transformers, under its names") \
    X(SCHEDULER_PARAMS, "scheduler.params", BLOCK, (CLOSED, NULLABLE), \
      "numbers of the schedule; where a list may stand it has a number for each parameter group") \
    X(WARMUP_MIN_LR, "scheduler.params.warmup_min_lr", REALS, (SETS(schedule.min_lr), NUMBER(0.0), \
      RANGE(0, INFINITY), AUTO("0")), "rate at the start (WarmupLR, WarmupDecayLR)") \
    X(WARMUP_MAX_LR, "scheduler.params.warmup_max_lr", REALS, (SETS(schedule.max_lr), \
      RULE("WarmupLR: each group's rate; WarmupDecayLR: 0.001"), RANGE(0, INFINITY), NULLABLE, AUTO("each group's rate")), \
      "rate at the end of the warm-up (WarmupLR, WarmupDecayLR)") \
    X(WARMUP_STEPS, "scheduler.params.warmup_num_steps", SIZE, (SETS(schedule.warmup_steps), \
      NUMBER(1000), RANGE(0, INFINITY), AUTO("0")), \
      "steps of the warm-up; with DeepSpeed's schedules less than 2 count as 2, with those of transformers the default is 0") \
    X(WARMUP_TYPE, "scheduler.params.warmup_type", TEXT, (SETS(schedule.warmup_ramp), FIRST("log"), \
      CHOICES("log|linear|cosine|1-sqrt"), SOFT), \
      "shape of the warm-up: DeepSpeed's log or linear, and anything else is log, with a warning; warmup_stable_decay: linear (its default), cosine or 1-sqrt") \
    X(TOTAL_STEPS, "scheduler.params.total_num_steps", SIZE, (SETS(schedule.total_steps), RANGE(1, INFINITY), \
      AUTO("an error: the program must give it")), \
      "where the decay ends; WarmupDecayLR, WarmupCosineLR and what decays of transformers need it") \
    X(MIN_RATIO, "scheduler.params.warmup_min_ratio", REAL, (SETS(schedule.min_ratio), \
      NUMBER(0.0), RANGE(0, INFINITY)), "share of the rate at the start (WarmupCosineLR)") \
    X(COS_MIN_RATIO, "scheduler.params.cos_min_ratio", REAL, (SETS(schedule.cos_min_ratio), \
      NUMBER(1e-4), RANGE(0, INFINITY)), "share of the rate at the end (WarmupCosineLR)") \
    X(CYCLE_MIN_LR, "scheduler.params.cycle_min_lr", REALS, (SETS(schedule.cycle_min_lr), RANGE(0, INFINITY)), \
      "OneCycle, required: rate at the start and at the end of the cycle") \
    X(CYCLE_MAX_LR, "scheduler.params.cycle_max_lr", REALS, (SETS(schedule.cycle_max_lr), RANGE(0, INFINITY)), \
      "OneCycle, required: rate at its top") \
    X(CYCLE_FIRST_STEPS, "scheduler.params.cycle_first_step_size", SIZE, (SETS(schedule.first_steps), NUMBER(2000), \
      RANGE(1, INFINITY)), "OneCycle: steps up") \
    X(CYCLE_SECOND_STEPS, "scheduler.params.cycle_second_step_size", SIZE, (SETS(schedule.second_steps), \
      RULE("cycle_first_step_size"), RANGE(0, INFINITY), NULLABLE), "OneCycle: steps down") \
    X(CYCLE_FIRST_STAIRS, "scheduler.params.cycle_first_stair_count", INT, (SETS(schedule.first_stairs), NUMBER(0), \
      RANGE(-1, INT_MAX)), "OneCycle: the way up goes in so many stairs; below 1: evenly") \
    X(CYCLE_SECOND_STAIRS, "scheduler.params.cycle_second_stair_count", INT, (SETS(schedule.second_stairs), \
      RULE("cycle_first_stair_count"), RANGE(-1, INT_MAX), NULLABLE), "OneCycle: the same for the way down") \
    X(DECAY_INTERVAL, "scheduler.params.decay_step_size", SIZE, (SETS(schedule.decay_interval), NUMBER(0), \
      RANGE(0, INFINITY)), "OneCycle: steps over which the two decay rates are meant, behind the cycle; 0: nothing decays") \
    X(DECAY_LR_RATE, "scheduler.params.decay_lr_rate", REAL, (SETS(schedule.decay_lr_rate), NUMBER(0.0), \
      RANGE(0, INFINITY)), "OneCycle: behind the cycle the rate is divided by 1 + this for each decay_step_size") \
    X(CYCLE_MOMENTUM, "scheduler.params.cycle_momentum", BOOL, (SETS(schedule.cycles_momentum), ON), \
      "OneCycle: the first of the betas moves against the rate, and the second is 0.99, whatever the optimizer says") \
    X(CYCLE_MIN_MOM, "scheduler.params.cycle_min_mom", REALS, (SETS(schedule.cycle_min_mom), NUMBER(0.8), \
      BELOW(0, 1)), "OneCycle: momentum at the top of the cycle, and in the very first step") \
    X(CYCLE_MAX_MOM, "scheduler.params.cycle_max_mom", REALS, (SETS(schedule.cycle_max_mom), NUMBER(0.9), \
      BELOW(0, 1)), "OneCycle: momentum at its ends") \
    X(DECAY_MOM_RATE, "scheduler.params.decay_mom_rate", REAL, (SETS(schedule.decay_mom_rate), NUMBER(0.0), \
      RANGE(0, INFINITY)), "OneCycle: behind the cycle the momentum is multiplied by 1 + this for each decay_step_size, as in DeepSpeed without a bound") \
    X(RANGE_MIN_LR, "scheduler.params.lr_range_test_min_lr", REALS, (SETS(schedule.range_min_lr), NUMBER(1e-3), \
      RANGE(0, INFINITY)), "LRRangeTest: rate at the start") \
    X(RANGE_STEPS, "scheduler.params.lr_range_test_step_size", SIZE, (SETS(schedule.range_steps), NUMBER(2000), \
      RANGE(1, INFINITY)), "LRRangeTest: steps over which lr_range_test_step_rate is meant") \
    X(RANGE_RATE, "scheduler.params.lr_range_test_step_rate", REAL, (SETS(schedule.range_rate), NUMBER(1.0), \
      RANGE(0, INFINITY)), "LRRangeTest: so many times the first rate is added for each lr_range_test_step_size") \
    X(RANGE_STAIRCASE, "scheduler.params.lr_range_test_staircase", BOOL, (SETS(schedule.is_staircase), OFF), \
      "LRRangeTest: all of it at the end of each lr_range_test_step_size") \
    X(NUM_CYCLES, "scheduler.params.num_cycles", REAL, (SETS(schedule.num_cycles), NUMBER(0.5), RANGE(0, INFINITY)), \
      "cosine, cosine_with_min_lr, warmup_stable_decay: waves of the cosine; cosine_with_restarts (default 1): times that it starts (as in transformers)") \
    X(MIN_LR, "scheduler.params.min_lr", REAL, (DERIVES(schedule.min_lr_rate), RANGE(0, INFINITY), NULLABLE), \
      "cosine_with_min_lr: rate at the end, of a group with the optimizer's rate; this or the next is required") \
    X(MIN_LR_RATE, "scheduler.params.min_lr_rate", REAL, (DERIVES(schedule.min_lr_rate), RANGE(0, 1), NULLABLE), \
      "cosine_with_min_lr: share of the rate at the end") \
    X(LR_END, "scheduler.params.lr_end", REAL, (SETS(schedule.lr_end), NUMBER(1e-7), RANGE(0, INFINITY)), \
      "polynomial: rate at the end, of a group with the optimizer's rate") \
    X(POWER, "scheduler.params.power", REAL, (SETS(schedule.power), NUMBER(1.0), RANGE(0, INFINITY)), \
      "polynomial: its power") \
    X(TIMESCALE, "scheduler.params.timescale", SIZE, (SETS(schedule.timescale), \
      RULE("num_warmup_steps, or 10000 where that is 0"), RANGE(1, INFINITY), NULLABLE), "inverse_sqrt: steps in which the rate falls to the root of a half of what it is behind the warm-up") \
    X(STABLE_STEPS, "scheduler.params.num_stable_steps", SIZE, (SETS(schedule.stable_steps), \
      RULE("what the warm-up and the decay leave of num_training_steps"), RANGE(0, INFINITY), NULLABLE), "warmup_stable_decay: steps between the warm-up and the decay") \
    X(DECAY_STEPS, "scheduler.params.num_decay_steps", SIZE, (SETS(schedule.decay_steps), RANGE(0, INFINITY)), \
      "warmup_stable_decay, required: steps of the decay") \
    X(DECAY_TYPE, "scheduler.params.decay_type", TEXT, (DERIVES(schedule.decay_ramp), FIRST("cosine"), \
      CHOICES("cosine|linear|1-sqrt")), "warmup_stable_decay: shape of the decay") \
    X(MIN_LR_RATIO, "scheduler.params.min_lr_ratio", REAL, (DERIVES(schedule.min_lr_rate), NUMBER(0), RANGE(0, 1)), \
      "warmup_stable_decay: share of the rate at the start and at the end") \
    /* ---- zero_optimization ---- */ \
    X(ZERO, "zero_optimization", BLOCK, (CLOSED, LEGACY_BOOL), \
      "what is sharded; the old true and false mean stage 1 and 0") \
    X(STAGE, "zero_optimization.stage", INT, (SETS(stage), NUMBER(0), RANGE(0, 3), AUTO("an error: the program must give it")), \
      "0: nothing is sharded; 1: optimizer state; 2: gradients too; 3: parameters too") \
    X(OVERLAP_COMM, "zero_optimization.overlap_comm", BOOL, (SETS(overlap_comm), \
      RULE("true at stage 3, else false"), NULLABLE), "communicate while computing") \
    X(SUB_GROUP, "zero_optimization.sub_group_size", SIZE, (SETS(sub_group_size), NUMBER(1e9), \
      RANGE(0, INFINITY)), "most elements of a block of optimizer state; 0: the default") \
    X(PREFETCH_BUCKET, "zero_optimization.stage3_prefetch_bucket_size", SIZE, (SETS(prefetch_bucket_size), NUMBER(5e7), RANGE(0, INFINITY), TRUNCATE, AUTO("0.9 x hidden_size squared, else the default")), \
      "most elements gathered ahead of use: what the next acquire needs, and more only while that is below 8 MiB; fractions are cut off") \
    X(PERSISTENCE, "zero_optimization.stage3_param_persistence_threshold", SIZE, (SETS(persistence_threshold), NUMBER(1e5), \
      RANGE(0, INFINITY), AUTO("10 x hidden_size, else the default")), \
      "parameters of at most so many elements stay whole on each rank") \
    X(MODEL_PERSISTENCE, "zero_optimization.stage3_model_persistence_threshold", SIZE, (SETS(model_persistence_threshold), \
      NUMBER(9223372036854775807), RANGE(0, INFINITY)), "most elements altogether that stay whole") \
    X(MAX_LIVE, "zero_optimization.stage3_max_live_parameters", SIZE, (SETS(max_live_parameters), \
      NUMBER(1e9), RANGE(0, INFINITY)), \
      "most elements gathered at a time; an upper bound for what is prefetched") \
    X(MAX_REUSE, "zero_optimization.stage3_max_reuse_distance", SIZE, (SETS(max_reuse_distance), NUMBER(0), RANGE(0, INFINITY)), \
      "a unit used again within so many elements is not released; DeepSpeed's default of 1e9 would keep models below a billion parameters gathered") \
    /* ---- offload ---- */ \
    X(OFFLOAD_PARAM, "zero_optimization.offload_param", BLOCK, (CLOSED, NULLABLE, AUTO_ABSENT, \
      AUTO("no offload")), "where parameters rest at stage 3") \
    X(PARAM_DEVICE, "zero_optimization.offload_param.device", TEXT, (SETS(offload_param.tier), FIRST("none"), \
      CHOICES(sherdi_tier_choices + 1), AUTO("none")), \
      "none: where they are computed with; cpu: in host memory; nvme: in files") \
    X(PARAM_PATH, "zero_optimization.offload_param.nvme_path", FOLDERS, (NULLABLE, AUTO("an error with device nvme: the program must give it")), \
      "folder of the files, required for device nvme; several folders on several drives share them in stripes") \
    X(PARAM_BUFFERS, "zero_optimization.offload_param.buffer_count", INT, \
      (SETS(offload_param.buffer_count), NUMBER(5), RANGE(1, INT_MAX)), \
      "buffers in memory that slices pass through; device nvme") \
    X(PARAM_BUFFER_SIZE, "zero_optimization.offload_param.buffer_size", SIZE, \
      (SETS(offload_param.buffer_elems), NUMBER(1e8), RANGE(1, INFINITY)), \
      "most elements of a buffer, and of what travels as one; devices cpu and nvme") \
    X(PARAM_IN_CPU, "zero_optimization.offload_param.max_in_cpu", SIZE, (SETS(params_in_cpu), \
      NUMBER(1e9), RANGE(0, INFINITY)), \
      "elements of a rank that stay in host memory; device nvme") \
    X(PARAM_PIN, "zero_optimization.offload_param.pin_memory", BOOL, (SETS(offload_param.pin_memory), \
      ON, LOCAL), "register the buffers with the kernel, as far as the limit on locked memory goes") \
    X(OFFLOAD_OPTIMIZER, "zero_optimization.offload_optimizer", BLOCK, (CLOSED, NULLABLE, AUTO_ABSENT, \
      AUTO("no offload")), "where optimizer state rests at stages 1 to 3") \
    X(STATE_DEVICE, "zero_optimization.offload_optimizer.device", TEXT, (SETS(offload_state.tier), FIRST("none"), \
      CHOICES(sherdi_tier_choices + 1), AUTO("none")), \
      "none: where it is computed with; cpu: in host memory; nvme: in files") \
    X(STATE_PATH, "zero_optimization.offload_optimizer.nvme_path", FOLDERS, (NULLABLE, AUTO("an error with device nvme: the program must give it")), \
      "folder of the files, required for device nvme; several folders on several drives share them in stripes") \
    X(STATE_BUFFERS, "zero_optimization.offload_optimizer.buffer_count", INT, \
      (SETS(offload_state.buffer_count), NUMBER(4), RANGE(1, INT_MAX)), \
      "buffers in memory that blocks pass through; device nvme") \
    X(STATE_BUFFER_SIZE, "zero_optimization.offload_optimizer.buffer_size", SIZE, (SETS(offload_state.buffer_elems), NUMBER(4194304), \
      RANGE(4096, INFINITY)), "most elements of a buffer, and of what travels as one; devices cpu and nvme (a key of sherd's own)") \
    X(STATE_PIN, "zero_optimization.offload_optimizer.pin_memory", BOOL, \
      (SETS(offload_state.pin_memory), ON, LOCAL), \
      "register the buffers with the kernel, as far as the limit on locked memory goes") \
    X(STATE_PIPELINE_READ, "zero_optimization.offload_optimizer.pipeline_read", BOOL, (SETS(pipeline_read), ON), \
      "read the next blocks while one is updated (DeepSpeed's default is false; the bits are the same, and only slower without)") \
    X(STATE_PIPELINE_WRITE, "zero_optimization.offload_optimizer.pipeline_write", BOOL, (SETS(pipeline_write), ON), \
      "write the last blocks while one is updated (DeepSpeed's default is false; the bits are the same, and only slower without)") \
    X(STATE_FAST_INIT, "zero_optimization.offload_optimizer.fast_init", BOOL, (SETS(fast_init), OFF), \
      "what was filled is not compared with its checksums when the first update reads it") \
    X(STATE_RATIO, "zero_optimization.offload_optimizer.ratio", REAL, (SETS(offload_ratio), NUMBER(1.0), \
      RANGE(0, 1)), "share of the state that is offloaded, at any stage (DeepSpeed: below 1 at stage 3 only)") \
    X(STATE_GRADIENTS, "zero_optimization.offload_optimizer.gradients", TEXT, (SETS(gradients_on_nvme), FIRST("cpu"), \
      CHOICES("cpu|nvme")), "where the gradients of offloaded state are added up; nvme with device nvme only (a key of sherd's own)") \
    X(STATE_ACCUMULATE, "zero_optimization.offload_optimizer.accumulate", TEXT, (SETS(accumulate), RULE("device on a GPU, else cpu"), CHOICES("cpu|device"), NULLABLE, AUTO("device on a GPU, else cpu")), \
      "where the micro-batches of a step are added up at stages 2 and 3: in host memory, each going down; or in an accumulator on the device, which goes down once (a key of sherd's own)") \
    X(STATE_VERIFY, "zero_optimization.offload_optimizer.verify_reads", BOOL, (SETS(verify_reads), OFF), \
      "compare the checksum of every block that is read; device nvme (a key of sherd's own)") \
    X(STATE_RESUME, "zero_optimization.offload_optimizer.resume", BOOL, (SETS(resume_state), OFF), \
      "go on from the state files that an earlier run left in nvme_path; not with a ratio below 1 (a key of sherd's own)") \
    X(STATE_KEEP, "zero_optimization.offload_optimizer.keep", BOOL, (SETS(keep_state), OFF), \
      "leave the state files when the engine is destroyed; a run that dies leaves them anyway (a key of sherd's own)") \
    X(STATE_DURABLE, "zero_optimization.offload_optimizer.durable", BOOL, (SETS(durable), ON), \
      "a step is on the medium when it is over; false: it survives the end of the process, not of the machine; device nvme (a key of sherd's own)") \
    X(CHECKPOINT, "checkpoint", BLOCK, (NULLABLE), "saving and loading with sherd_checkpoint_save and sherd_checkpoint_load") \
    X(CHECKPOINT_ASYNC, "checkpoint.async", BOOL, (SETS(checkpoint_async), OFF), \
      "a save returns when the state is copied in host memory, which is planned for it, and is written beside the training (a key of sherd's own)") \
    X(CHECKPOINT_KEEP, "checkpoint.keep_last", INT, (SETS(checkpoint_keep_last), NUMBER(0), RANGE(0, INT_MAX)), \
      "complete checkpoints that stay in a folder when one is saved there; 0: all (a key of sherd's own)") \
    X(AIO, "aio", BLOCK, (NULLABLE), "reading and writing the drive of device nvme") \
    X(AIO_BLOCK, "aio.block_size", SIZE, (SETS(io_block_bytes), NUMBER(1048576), \
      RANGE(4096, INFINITY), LOCAL), "most bytes of a request") \
    X(AIO_DEPTH, "aio.queue_depth", INT, (SETS(io_depth), NUMBER(8), RANGE(1, INT_MAX), LOCAL), \
      "requests in flight") \
    X(AIO_ENGINE, "aio.engine", TEXT, (SETS(io_engine), FIRST("auto"), CHOICES("auto|io_uring|threads"), LOCAL, \
      AUTO("io_uring where the kernel has it, else threads")), "what makes the requests (a key of sherd's own)") \
    X(AIO_TBW, "aio.rated_tbw", REAL, (SETS(drive_tbw), NUMBER(600), RANGE(0, INFINITY), LOCAL), \
      "terabytes that a drive is rated to take, for the plan's wear line (a key of sherd's own)") \
    X(AIO_STEP_SECONDS, "aio.step_seconds", REAL, (SETS(step_seconds), NUMBER(0), RANGE(0, INFINITY), LOCAL), \
      "seconds of a step, for the plan's wear line; 0: what a drive of 2 GB/s allows (a key of sherd's own)")

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
