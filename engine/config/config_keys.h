/* The configuration keys that have an effect; DeepSpeed's others are in config_unused.h. Reading,
 * the settings, the comparison of ranks, the reference page and the dump all come from these two
 * tables.
 * A row:
 *
 *   KEY(id, path, type, meaning, effect and other attributes)
 *   PLAIN(path, ...)     the same of a key that no code asks for by its name
 *
 *   SETS(field)          of sherdi_settings, to the effective value; DTYPE, TIER: the same of an
 *                        element type and of a tier, with the choices
 *   DERIVES(field)       a rule of config_resolve.c computes the field from this key and others; a
 *                        row without SETS and DERIVES has another effect, in config_*.c
 *   SCHEDULE(field)      SETS of schedule, for a parameter of a schedule; the schedules that
 *                        read it list it. SCHEDULE_DERIVES: the same of DERIVES
 *   NUMBER ON BOTH WORD  the default; a BOOL without it is false
 *   RULE("sentence")     how the default is derived
 *   EFFECT(rule)         the rule (config_impl.h) for the value of an absent or "auto" key; without
 *                        it the default
 *   FIX("do this")       a key that must be set, if it has no default; NEEDED: not "auto" either
 *   RANGE BELOW AT_LEAST the numbers that are allowed; without them those from 0 on
 *   CHOICES(list)        the texts that are allowed; FIRST_OF(word, list): `word`, the default, and
 *                        those
 *   AUTO("sentence")     the value of "auto"; without it the default
 *   ZERO_WORD("word")    a word that means 0; ZERO_IS_DEFAULT: 0 means the default
 *   NULLABLE, LOCAL ...  the bits of sherdi_config_key
 *
 * A block's members follow it. Included by config_impl.h and config_table.c only. */

/* clang-format off */

/* ---- batch ---- */
KEY(TRAIN_BATCH, "train_batch_size", INT,
    "samples per optimizer step, over all ranks",
    SETS(batch.train_batch_size),
    RULE("train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks"), AT_LEAST(1),
    AUTO("derived"), EFFECT(batch))
KEY(MICRO_BATCH, "train_micro_batch_size_per_gpu", INT,
    "samples per micro-batch on each rank. This key or `train_batch_size` must be set, in the "
    "file or by the program; for an engine for inference the default is 1",
    SETS(batch.micro_batch_size), RULE("derived from train_batch_size"), AT_LEAST(1),
    AUTO("derived; needs train_batch_size or a value from the program"), EFFECT(batch))
KEY(ACCUMULATION, "gradient_accumulation_steps", INT,
    "micro-batches per optimizer step",
    SETS(batch.accumulation), RULE("1; derived if both batch sizes are set"), AT_LEAST(1),
    AUTO("derived"), EFFECT(batch))

/* ---- general ---- */
PLAIN("steps_per_print", SIZE,
    "number of steps after which rank 0 logs a line (level info): step, skipped steps, learning "
    "rate, gradient norm, loss scale, fingerprint of the weights, samples, samples per second. "
    "Without this key, or with 0, no line is written. A program can read the number "
    "(`sherd_engine_query`) and print a line of its own as often",
    SETS(steps_per_print), NULLABLE, LOCAL)
KEY(GRADIENT_CLIPPING, "gradient_clipping", REAL,
    "largest L2 norm of the gradient: a gradient with a larger norm is scaled down to it. 0 "
    "switches clipping off",
    SETS(update.gradient_clipping), NUMBER(1.0), AUTO("1.0"), EFFECT(clipping))
KEY(COMM_DTYPE, "communication_data_type", TEXT,
    "element type in which gradients travel between ranks",
    DTYPE(numerics.comm_dtype), RULE("the compute type"), EFFECT(dtype))
KEY(DETERMINISTIC, "deterministic", BOOL,
    "`true`: a global batch gives the same bits at every stage, with every accumulation and on "
    "every number of ranks ([numerics.md](numerics.md); a key of sherd's own)",
    SETS(numerics.deterministic))
PLAIN("wall_clock_breakdown", BOOL,
    "shows the time of each step by phase: in the report of the step, in the log (level info) and "
    "in the output of the monitors",
    SETS(watch.wall_clock_breakdown))
PLAIN("memory_breakdown", BOOL,
    "rank 0 logs (level info) the memory that it holds, by purpose: when the engine is sealed, "
    "and with each line of `steps_per_print`. Without `steps_per_print` it logs the memory at "
    "each step",
    SETS(watch.memory_breakdown), LOCAL)

/* ---- monitors ---- */
PLAIN("csv_monitor", BLOCK,
    "a csv file for each number that is watched; rank 0 writes the files "
    "([monitors.md](monitors.md))",
    CLOSED)
KEY(CSV_ENABLED, "csv_monitor.enabled", BOOL,
    "writes the files", SETS(monitors[SHERDI_MONITOR_CSV].is_on), LOCAL)
KEY(CSV_PATH, "csv_monitor.output_path", TEXT,
    "folder that contains the folder `job_name`; the engine makes both. Empty: the folder in "
    "which the program was started",
    DERIVES(monitors[SHERDI_MONITOR_CSV].folder), WORD(""), LOCAL)
KEY(CSV_JOB, "csv_monitor.job_name", TEXT,
    "folder inside `output_path`, in which the files lie",
    DERIVES(monitors[SHERDI_MONITOR_CSV].folder), WORD("DeepSpeedJobName"), LOCAL)
PLAIN("tensorboard", BLOCK,
    "event files, which TensorBoard opens; rank 0 writes them ([monitors.md](monitors.md))", CLOSED)
KEY(BOARD_ENABLED, "tensorboard.enabled", BOOL,
    "writes the files", SETS(monitors[SHERDI_MONITOR_TENSORBOARD].is_on), LOCAL)
KEY(BOARD_PATH, "tensorboard.output_path", TEXT,
    "folder that contains the folder `job_name`; the engine makes both. Empty: the folder in "
    "which the program was started",
    DERIVES(monitors[SHERDI_MONITOR_TENSORBOARD].folder), WORD(""), LOCAL)
KEY(BOARD_JOB, "tensorboard.job_name", TEXT,
    "folder inside `output_path`, in which the files lie",
    DERIVES(monitors[SHERDI_MONITOR_TENSORBOARD].folder), WORD("DeepSpeedJobName"), LOCAL)
PLAIN("comms_logger", BLOCK, "rank 0 logs (level info) the bytes of gathers and reductions", CLOSED)
PLAIN("comms_logger.enabled", BOOL,
    "logs a summary with each line of `steps_per_print`, and when the engine ends",
    SETS(watch.logs_comms), LOCAL)
PLAIN("comms_logger.verbose", BOOL,
    "with `enabled`: also logs a line for each gather and each reduction",
    SETS(watch.logs_each_comm), LOCAL)

/* ---- sherd's own ---- */
PLAIN("sherd", BLOCK, "keys of sherd's own", CLOSED)
KEY(STRICT, "sherd.strict", BOOL, "makes every warning about the configuration an error")
KEY(LENIENT, "sherd.lenient", BOOL,
    "makes an unknown key in a closed block a warning instead of an error. This holds for "
    "everything that is read together with this key or after it")
KEY(VENDOR_REDUCTION, "sherd.vendor_reduction", BOOL,
    "lets the transport reduce gradients with its own reduction (NCCL). The bits then depend on "
    "the layout, and the promise of equal bits does not hold. Other transports ignore this key",
    SETS(numerics.vendor_reduction))
PLAIN("sherd.host_sums", BOOL,
    "over MPI on several hosts: gradients of the ranks of a host are added up first, in fp32, and "
    "one sum goes to each other host where that is fewer bytes. The last bits then depend on the "
    "ranks of each host. Other transports ignore this key, and so does `deterministic`",
    SETS(numerics.host_sums))
KEY(SHARD_SIZE, "sherd.shard_size", INT,
    "stages 1 to 3: number of ranks that share one copy of what is sharded (hybrid sharding, HSDP, "
    "MiCS). It divides the ranks of each host; with sherd.elastic all ranks share one copy where it "
    "does not. Gradients are reduced inside these groups, and once "
    "a window their slices are added up over the groups. 0: all ranks share one copy",
    SETS(sharding.shard_size), NUMBER(0), RANGE(0, 131072))
KEY(ELASTIC, "sherd.elastic", PAIR,
    "least and most ranks that the run may have when its engine moves from world to world "
    "(`sherd_engine_move`). Seal plans each number of them, and the moves between two that follow "
    "each other, and refuses what the host, a device or a drive has no room for. A step has "
    "`train_batch_size` samples on every number of ranks, and ranks may be without data in its last "
    "micro-batch "
    "(`sherd_step_share`). [0, 0]: moves are not planned",
    SETS(elastic), BOTH(0, 0), RANGE(0, 131072))
KEY(REDUNDANCY, "sherd.redundancy", TEXT,
    "what is left of a rank that is lost, so that the others can go on (`sherd_world_shrink`, "
    "`sherd_engine_move`). `host`: its parameters, state, gradient slices and blobs rest in memory "
    "that all ranks of its host have. `peer`: the next rank has a second copy of its state, and "
    "makes the same update of it, overlapping with the next forward pass",
    SETS(redundancy), FIRST_OF("none", "host|peer"))
KEY(FREE_PACKING, "sherd.free_packing", BOOL,
    "stage 3: the plan packs each gather of a unit by itself. This may take less memory if the "
    "sizes of units and their order are irregular. A parameter then has no fixed address "
    "(`sherd_param_address`)",
    SETS(sharding.free_packing))
KEY(EVAL_KEEP, "sherd.eval_keep_units", SIZE,
    "stage 3: number of units that get memory of their own for EVAL, which no other unit of EVAL "
    "takes. They are the first units that are gathered in the order of EVAL. Between "
    "`sherd_eval_begin` and `sherd_eval_end` each of them is gathered only once. Cannot be "
    "combined with `sherd.free_packing`",
    SETS(sharding.eval_keep_units), NUMBER(0), RANGE(0, 131072))
PLAIN("sherd.unused_units", TEXT,
    "effect of an update on a unit that no rank reached in the window. `zero`: its gradient is "
    "zero, so its moments fade and its weights decay. `skip`: its weights and its state do not "
    "change, as in torch with a grad of None. But the number of the update, by which Adam "
    "corrects its bias, counts all updates, also those that skipped the unit: with betas of 0.9 "
    "and 0.999, the first update of a unit that is reached late is 3.2 times as large as in torch",
    SETS(batch.skips_unused), FIRST_OF("zero", "skip"))
PLAIN("sherd.open_windows", BOOL,
    "`true`: a window ends only where the program closes it (`sherd_step_close_window`), so its "
    "length need not be known before. `gradient_accumulation_steps` is then the usual length, "
    "from which the plan makes its numbers of a step. With `deterministic` it is the greatest "
    "length, and a further micro-batch is refused. Gradients are always added up, so their sum "
    "takes its memory also where the usual length is 1",
    SETS(batch.opens_windows))
KEY(MOST_WEIGHT, "sherd.most_weight", SIZE,
    "greatest weight that a micro-batch can have, such as its number of tokens "
    "(`sherd_micro_batch_weight`). The mean of a window is then taken over the weights of all ranks "
    "and micro-batches. Before it is added up, a gradient is multiplied by its weight, divided by "
    "this number. 0: micro-batches have no weights, and all of them count alike",
    SETS(batch.most_weight), NUMBER(0), RANGE(0, 2147483647))
KEY(ACTIVATIONS, "sherd.activations", BLOCK,
    "where activations wait for backward, as far as the program declares them "
    "(`sherd_activation_add`; [activations.md](activations.md))",
    CLOSED, NULLABLE)
KEY(ACTIVATIONS_DEVICE, "sherd.activations.device", TEXT,
    "`none`: in memory of the device. `cpu`: in host memory. `nvme`: in files. The program may "
    "name another one for a unit",
    TIER(offload.activations))
KEY(ACTIVATIONS_PATH, "sherd.activations.nvme_path", FOLDERS,
    "folder of the files; required for device `nvme`. Several folders, on several drives, share "
    "the files in stripes",
    NULLABLE)
PLAIN("sherd.activations.buffer_count", INT,
    "devices `cpu` and `nvme`: places on the device through which activations pass. The "
    "activations that are last in forward stay in them. With `nvme` and a GPU as many buffers in "
    "host memory follow",
    SETS(offload.activations.buffer_count), NUMBER(2), AT_LEAST(1))
PLAIN("sherd.activations.pin_memory", BOOL,
    "locks the host memory, so that transfers overlap with the work of the GPU",
    SETS(offload.activations.pin_memory), ON, LOCAL)
PLAIN("sherd.fingerprints", BLOCK,
    "fingerprints of each unit at each step, by which `sherd diff` finds where two runs part "
    "([diverged.md](diverged.md#a-log-of-fingerprints))",
    CLOSED, NULLABLE)
KEY(FINGERPRINTS_FILE, "sherd.fingerprints.file", TEXT,
    "file to which rank 0 appends a line for each update; the engine makes its folder. Empty: no "
    "fingerprints of units are made. Not on a GPU",
    DERIVES(fingerprints.file), WORD(""))
PLAIN("sherd.fingerprints.state_interval", INT,
    "number of steps in which the state of each unit is counted once: its master weights before an "
    "update, and the other parts after it. Each step counts some of the units. 1: each step counts "
    "all of them, which reads the state once more. 0: state is not counted",
    SETS(fingerprints.state_interval), NUMBER(16), RANGE(0, 1000000))
KEY(GROUPS, "sherd.groups", GROUPS,
    "parameter groups by name. Each entry is a block of `name`, `type`, `params` and `matching`. "
    "`type`: an optimizer for this group alone, from the choices of `optimizer.type`. `params`: "
    "`lr`, `betas`, `eps`, `momentum`, `weight_decay` and `exclude_1d` for this group alone. "
    "Values that an entry lacks are those of `optimizer.params`. `matching`: patterns (`*`, `?`, "
    "`[]`) of parameter names. A parameter that is in the default group of the program goes to "
    "the first group that matches its name. Without `matching`, the program adds a group of this "
    "name. If the program and the entry contradict each other, the engine is refused",
    SETS(groups), RULE("none"))
KEY(MASTER_ENCODING, "sherd.master_encoding", TEXT,
    "how the master weights of bf16 parameters are stored. `fp32`: in 4 bytes. `bf16_beside`: as "
    "the 2 bytes that the bf16 parameter lacks, without loss; parameter and state must rest "
    "together, or the state on `nvme`. `bf16`: in 2 bytes, rounded at random",
    SETS(master_encoding), FIRST_OF("fp32", "bf16_beside|bf16"))
PLAIN("sherd.moment_encoding", TEXT,
    "how the other parts of an optimizer's state are stored. `fp8`: 8-bit floats, with a power of "
    "two as scale for each 64 elements. `bf16` and `fp8` are rounded at random",
    SETS(moment_encoding), FIRST_OF("fp32", "bf16|fp8"))
KEY(HIDDEN_SIZE, "sherd.hidden_size", INT,
    "width of the model; the program gives it. The \"auto\" values of "
    "`stage3_prefetch_bucket_size` and `stage3_param_persistence_threshold` are computed from it",
    AT_LEAST(1), NULLABLE)

/* ---- precision ---- */
PLAIN("fp16", BLOCK,
    "computation in fp16, with loss scaling. If neither `fp16` nor `bf16` is enabled, sherd "
    "computes in fp32")
KEY(FP16_ENABLED, "fp16.enabled", BOOL,
    "parameters and gradients are fp16", AUTO("false, unless the program sets true"))
KEY(LOSS_SCALE, "fp16.loss_scale", REAL,
    "fixed loss scale; 0, or the word \"dynamic\": the loss scale is dynamic",
    DERIVES(numerics.scaler.is_dynamic), NUMBER(0), RANGE(0, 8e37), ZERO_WORD("dynamic"))
KEY(SCALE_POWER, "fp16.initial_scale_power", INT,
    "a dynamic loss scale starts at 2 to the power of this number",
    DERIVES(numerics.scaler.initial_scale), NUMBER(16), RANGE(0, 126))
KEY(SCALE_WINDOW, "fp16.loss_scale_window", SIZE,
    "steps without an overflow after which a dynamic loss scale doubles. DeepSpeed from 0.17.1 on "
    "takes one step more at the start and after each overflow",
    SETS(numerics.scaler.scale_window), NUMBER(1000))
KEY(HYSTERESIS, "fp16.hysteresis", INT,
    "overflows after which a dynamic loss scale halves; 0 counts as 1",
    SETS(numerics.scaler.hysteresis), NUMBER(2))
PLAIN("fp16.consecutive_hysteresis", BOOL,
    "`true`: each step without an overflow starts the count of hysteresis anew. `false`: only a "
    "full `loss_scale_window` does",
    SETS(numerics.scaler.is_consecutive_hysteresis))
KEY(MIN_SCALE, "fp16.min_loss_scale", REAL,
    "smallest dynamic loss scale; fractions are allowed. An overflow at this scale is an error. "
    "0: no lower limit",
    SETS(numerics.scaler.min_scale), NUMBER(1), RANGE(0, 8e37))
PLAIN("bf16", BLOCK, "computation in bf16", NULLABLE)
KEY(BF16_ENABLED, "bf16.enabled", BOOL,
    "parameters and gradients are bf16", AUTO("false, unless the program sets true"))
PLAIN("bf16.check_grad_overflow", BOOL,
    "skips an update whose gradient contains Inf or NaN, in bf16 and fp32 (fp16 always skips it)",
    SETS(numerics.check_overflow), ON)
KEY(BF16_MASTER, "bf16.bf16_master_weights_and_grads", BOOL,
    "`true` means `sherd.master_encoding` `bf16`. Gradients are still added up in "
    "`data_types.grad_accum_dtype` (DeepSpeed adds them up in bf16)",
    DERIVES(master_encoding))
KEY(BF16_STATES, "bf16.bf16_optimizer_states", BOOL,
    "`true` means `sherd.moment_encoding` `bf16`, which rounds at random (DeepSpeed rounds to "
    "nearest). As in DeepSpeed it needs `bf16_master_weights_and_grads`",
    DERIVES(moment_encoding))
PLAIN("data_types", BLOCK, "element types of parameters and of sums of gradients")
PLAIN("data_types.grad_accum_dtype", TEXT,
    "element type in which the gradients of micro-batches are added up (DeepSpeed's default is "
    "the compute type)",
    DTYPE(numerics.accum_dtype), DEFAULT("fp32"))
KEY(PARAM_DTYPE, "data_types.param_dtype", TEXT,
    "must be the compute type, which the blocks `fp16` and `bf16` choose",
    DTYPE(numerics.compute_dtype), RULE("the compute type"), EFFECT(dtype))

/* ---- optimizer ---- */
PLAIN("optimizer", BLOCK, "the optimizer; required, in the file or from the program", CLOSED)
KEY(OPTIMIZER_TYPE, "optimizer.type", TEXT,
    "name of the optimizer. Adam decays weights as AdamW does, unless `adam_w_mode` is false. "
    "Muon updates all parameters that no group gives to another optimizer; DeepSpeed gives AdamW "
    "those with fewer than two dimensions, and those with `embed` or `lm_head` in the name. "
    "`none`: an engine for inference, without gradients, state and steps (a choice of sherd's own)",
    SETS(update.optimizer), CHOICES(sherdi_optimizer_types + 1), ANY_CASE,
    FIX("add \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}} with "
        "the rate you want, or \"type\": \"none\" for inference"))
PLAIN("optimizer.params", BLOCK,
    "numbers for all parameter groups that have none of their own", CLOSED, NULLABLE)
KEY(LR, "optimizer.params.lr", REAL,
    "learning rate. An optimizer may have its own default (Adagrad: 0.01, Muon: 0.02)",
    SETS(update.lr), NUMBER(1e-3), NEEDED("give a learning rate"), EFFECT(lr))
KEY(BETAS, "optimizer.params.betas", PAIR,
    "decay rates of the two moments. An optimizer may have its own default (Lion: 0.9, 0.99)",
    SETS(update.betas), BOTH(0.9, 0.999), BELOW(0, 1), AUTO("the default"), EFFECT(betas))
KEY(EPS, "optimizer.params.eps", REAL,
    "number that is added to the square root of the second moment. An optimizer may have its own "
    "default (Adagrad: 1e-10)",
    SETS(update.eps), NUMBER(1e-8), AUTO("the default"), EFFECT(eps))
KEY(WEIGHT_DECAY, "optimizer.params.weight_decay", REAL,
    "weight decay. With `torch_adam`, the default may be 0.01",
    SETS(update.weight_decay), NUMBER(0.0), AUTO("0.0"), EFFECT(decay))
PLAIN("optimizer.params.bias_correction", BOOL,
    "corrects the moments for their start at zero", SETS(update.bias_correction), ON)
KEY(ADAM_W_MODE, "optimizer.params.adam_w_mode", BOOL,
    "`false`, with type Adam: weight decay is added to the gradient",
    SETS(update.decouples_decay), ON)
KEY(TORCH_ADAM, "optimizer.params.torch_adam", BOOL,
    "`true`: the default of `weight_decay` is that of torch.optim.AdamW, 0.01, where Adam or "
    "AdamW decays as AdamW does. It makes no other difference",
    TRUTHY)
KEY(MAX_COEFF, "optimizer.params.max_coeff", REAL,
    "Lamb: largest trust ratio", SETS(lamb.max_coeff), NUMBER(10.0))
KEY(MIN_COEFF, "optimizer.params.min_coeff", REAL,
    "Lamb: smallest trust ratio", SETS(lamb.min_coeff), NUMBER(0.01))
PLAIN("optimizer.params.eps_inside_sqrt", BOOL,
    "Lamb: eps is added under the square root", SETS(lamb.eps_inside_sqrt))
PLAIN("optimizer.params.lamb_form", TEXT,
    "Lamb: use of the bias corrections. `deepspeed`: they multiply the whole step. `paper`: they "
    "correct the moments from which the direction is made (a key of sherd's own)",
    SETS(lamb.is_papers), FIRST_OF("deepspeed", "paper"))
KEY(EXCLUDE_1D, "optimizer.params.exclude_1d", BOOL,
    "Lamb: parameters with at most one dimension have a trust ratio of 1. A group may say "
    "otherwise for its own parameters (a key of sherd's own)",
    SETS(lamb.exclude_1d))
KEY(MOMENTUM, "optimizer.params.momentum", REAL,
    "SGD and Muon: share of the momentum buffer that stays at each step. Muon's default is 0.95. "
    "With 0, SGD has no buffer",
    SETS(update.sgd.momentum), NUMBER(0.0), BELOW(0, 1), EFFECT(momentum))
KEY(DAMPENING, "optimizer.params.dampening", REAL,
    "SGD: share of the gradient that is not added to the momentum buffer. The first step adds the "
    "whole gradient",
    SETS(update.sgd.dampening), NUMBER(0.0), RANGE(0, 1))
KEY(NESTEROV, "optimizer.params.nesterov", BOOL,
    "SGD and Muon: Nesterov's momentum. Muon's default is `true`",
    SETS(update.sgd.is_nesterov), EFFECT(nesterov))
PLAIN("optimizer.params.ns_steps", INT,
    "Muon: number of Newton-Schulz iterations", SETS(muon.steps), NUMBER(5), RANGE(1, 20))
PLAIN("optimizer.params.adjust_lr_fn", TEXT,
    "Muon: factor of the learning rate for a matrix of r rows and c columns, as in PyTorch. "
    "`original`: max(1, r / c)^0.5. `match_rms_adamw`: 0.2 max(r, c)^0.5, with which you can keep "
    "the rate and the decay of AdamW",
    SETS(muon.matches_rms), FIRST_OF("original", "match_rms_adamw"))
PLAIN("optimizer.params.lr_decay", REAL,
    "Adagrad: step t divides the learning rate by 1 + (t - 1) times this number",
    SETS(update.adagrad.lr_decay), NUMBER(0.0))
PLAIN("optimizer.params.initial_accumulator_value", REAL,
    "Adagrad: start value of the sum of squares. The state holds only the sum of the added squares",
    SETS(update.adagrad.initial), NUMBER(0.0))
KEY(MAX_GRAD_NORM, "optimizer.params.max_grad_norm", REAL,
    "read as `gradient_clipping` if that key is missing, with a warning")

/* ---- scheduler ---- */
PLAIN("scheduler", BLOCK, "the learning rate over time; without this block it is constant", CLOSED)
KEY(SCHEDULER_TYPE, "scheduler.type", TEXT,
    "name of the schedule: one of DeepSpeed's, with DeepSpeed's indexing of steps, or one of "
    "transformers', under its name there ([schedules.md](schedules.md))",
    SETS(schedule.kind), CHOICES(sherdi_schedule_types + 1))
KEY(SCHEDULER_PARAMS, "scheduler.params", BLOCK,
    "numbers of the schedule. A list, where it is allowed, has one number for each parameter group",
    CLOSED, NULLABLE)
KEY(WARMUP_MIN_LR, "scheduler.params.warmup_min_lr", REALS,
    "`WarmupLR`, `WarmupDecayLR`: learning rate at the start",
    SCHEDULE(min_lr), NUMBER(0.0), AUTO("0"))
KEY(WARMUP_MAX_LR, "scheduler.params.warmup_max_lr", REALS,
    "`WarmupLR`, `WarmupDecayLR`: learning rate at the end of the warm-up",
    SCHEDULE(max_lr), RULE("WarmupLR: each group's rate; WarmupDecayLR: 0.001"), NULLABLE,
    AUTO("each group's rate"), EFFECT(max_lr))
KEY(WARMUP_STEPS, "scheduler.params.warmup_num_steps", SIZE,
    "steps of the warm-up. DeepSpeed's schedules read less than 2 as 2. With the schedules of "
    "transformers the default is 0",
    SCHEDULE(warmup_steps), NUMBER(1000), AUTO("0"), EFFECT(warmup_steps))
KEY(WARMUP_TYPE, "scheduler.params.warmup_type", TEXT,
    "shape of the warm-up. DeepSpeed's schedules take `log` or `linear`, and read any other value "
    "as `log`, with a warning. `warmup_stable_decay` takes `linear` (its default), `cosine` or "
    "`1-sqrt`",
    SCHEDULE(warmup_ramp), FIRST_OF("log", "linear|cosine|1-sqrt"), SOFT, EFFECT(warmup_type))
KEY(TOTAL_STEPS, "scheduler.params.total_num_steps", SIZE,
    "step at which the decay ends. Required by `WarmupDecayLR`, `WarmupCosineLR`, `linear`, "
    "`polynomial` and the three cosine schedules; by `warmup_stable_decay` only without "
    "`num_stable_steps`",
    SCHEDULE(total_steps), AT_LEAST(1),
    NEEDED("give the number of steps of the whole training, or leave the block \"scheduler\" out "
           "if the program sets the rates"))
KEY(MIN_RATIO, "scheduler.params.warmup_min_ratio", REAL,
    "`WarmupCosineLR`: learning rate at the start, as a share of the group's rate",
    SCHEDULE(min_ratio), NUMBER(0.0))
KEY(COS_MIN_RATIO, "scheduler.params.cos_min_ratio", REAL,
    "`WarmupCosineLR`: learning rate at the end, as a share of the group's rate",
    SCHEDULE(cos_min_ratio), NUMBER(1e-4))
KEY(CYCLE_MIN_LR, "scheduler.params.cycle_min_lr", REALS,
    "`OneCycle`, required: learning rate at the start and at the end of the cycle",
    SCHEDULE(cycle_min_lr))
KEY(CYCLE_MAX_LR, "scheduler.params.cycle_max_lr", REALS,
    "`OneCycle`, required: learning rate at the top of the cycle", SCHEDULE(cycle_max_lr))
KEY(CYCLE_FIRST_STEPS, "scheduler.params.cycle_first_step_size", SIZE,
    "`OneCycle`: steps from the start of the cycle to its top",
    SCHEDULE(first_steps), NUMBER(2000), AT_LEAST(1))
KEY(CYCLE_SECOND_STEPS, "scheduler.params.cycle_second_step_size", SIZE,
    "`OneCycle`: steps from the top of the cycle to its end",
    SCHEDULE(second_steps), RULE("cycle_first_step_size"), NULLABLE, EFFECT(second))
KEY(CYCLE_FIRST_STAIRS, "scheduler.params.cycle_first_stair_count", INT,
    "`OneCycle`: number of stairs on the way up; below 1: the rate changes evenly",
    SCHEDULE(first_stairs), NUMBER(0), AT_LEAST(-1))
KEY(CYCLE_SECOND_STAIRS, "scheduler.params.cycle_second_stair_count", INT,
    "`OneCycle`: number of stairs on the way down; below 1: the rate changes evenly",
    SCHEDULE(second_stairs), RULE("cycle_first_stair_count"), AT_LEAST(-1), NULLABLE,
    EFFECT(second))
KEY(DECAY_INTERVAL, "scheduler.params.decay_step_size", SIZE,
    "`OneCycle`: number of steps to which `decay_lr_rate` and `decay_mom_rate` refer; both count "
    "from the end of the cycle. 0: nothing decays",
    SCHEDULE(decay_interval), NUMBER(0))
KEY(DECAY_LR_RATE, "scheduler.params.decay_lr_rate", REAL,
    "`OneCycle`: n times `decay_step_size` steps after the cycle, the learning rate is "
    "`cycle_min_lr` divided by 1 + n times this number",
    SCHEDULE(decay_lr_rate), NUMBER(0.0))
KEY(CYCLE_MOMENTUM, "scheduler.params.cycle_momentum", BOOL,
    "`OneCycle`: the first beta moves against the learning rate, and the second beta is 0.99, "
    "whatever the optimizer says",
    SCHEDULE(cycles_momentum), ON)
KEY(CYCLE_MIN_MOM, "scheduler.params.cycle_min_mom", REALS,
    "`OneCycle`: momentum (the first beta) at the top of the cycle, and in the very first step",
    SCHEDULE(cycle_min_mom), NUMBER(0.8), BELOW(0, 1))
KEY(CYCLE_MAX_MOM, "scheduler.params.cycle_max_mom", REALS,
    "`OneCycle`: momentum (the first beta) at the start and at the end of the cycle",
    SCHEDULE(cycle_max_mom), NUMBER(0.9), BELOW(0, 1))
KEY(DECAY_MOM_RATE, "scheduler.params.decay_mom_rate", REAL,
    "`OneCycle`: n times `decay_step_size` steps after the cycle, the momentum is `cycle_max_mom` "
    "multiplied by 1 + n times this number, without a bound, as in DeepSpeed",
    SCHEDULE(decay_mom_rate), NUMBER(0.0))
KEY(RANGE_MIN_LR, "scheduler.params.lr_range_test_min_lr", REALS,
    "`LRRangeTest`: learning rate at the start", SCHEDULE(range_min_lr), NUMBER(1e-3))
KEY(RANGE_STEPS, "scheduler.params.lr_range_test_step_size", SIZE,
    "`LRRangeTest`: number of steps to which `lr_range_test_step_rate` refers",
    SCHEDULE(range_steps), NUMBER(2000), AT_LEAST(1))
KEY(RANGE_RATE, "scheduler.params.lr_range_test_step_rate", REAL,
    "`LRRangeTest`: every `lr_range_test_step_size` steps, the learning rate grows by this number "
    "times `lr_range_test_min_lr`",
    SCHEDULE(range_rate), NUMBER(1.0))
KEY(RANGE_STAIRCASE, "scheduler.params.lr_range_test_staircase", BOOL,
    "`LRRangeTest`: with `true` the learning rate grows only at the end of each "
    "`lr_range_test_step_size`, with `false` at each step",
    SCHEDULE(is_staircase))
KEY(NUM_CYCLES, "scheduler.params.num_cycles", REAL,
    "`cosine`, `cosine_with_min_lr`, `warmup_stable_decay`: number of waves of the cosine. "
    "`cosine_with_restarts`: number of times that the cosine starts; the default is then 1. Both "
    "are as in transformers",
    SCHEDULE(num_cycles), NUMBER(0.5), EFFECT(num_cycles))
KEY(MIN_LR, "scheduler.params.min_lr", REAL,
    "`cosine_with_min_lr`: learning rate at the end, for a group that has the optimizer's rate. "
    "Exactly one of this key and `min_lr_rate` is required",
    SCHEDULE_DERIVES(min_lr_rate), NULLABLE)
KEY(MIN_LR_RATE, "scheduler.params.min_lr_rate", REAL,
    "`cosine_with_min_lr`: learning rate at the end, as a share of the group's rate",
    SCHEDULE_DERIVES(min_lr_rate), RANGE(0, 1), NULLABLE)
KEY(LR_END, "scheduler.params.lr_end", REAL,
    "`polynomial`: learning rate at the end, for a group that has the optimizer's rate",
    SCHEDULE(lr_end), NUMBER(1e-7))
KEY(POWER, "scheduler.params.power", REAL, "`polynomial`: exponent", SCHEDULE(power), NUMBER(1.0))
KEY(TIMESCALE, "scheduler.params.timescale", SIZE,
    "`inverse_sqrt`: steps after the warm-up in which the learning rate falls to the square root "
    "of one half of its value",
    SCHEDULE(timescale), RULE("num_warmup_steps; 10000 if that is 0"), AT_LEAST(1), NULLABLE,
    EFFECT(timescale))
KEY(STABLE_STEPS, "scheduler.params.num_stable_steps", SIZE,
    "`warmup_stable_decay`: steps between the warm-up and the decay",
    SCHEDULE(stable_steps), RULE("num_training_steps minus the steps of warm-up and decay"),
    NULLABLE, EFFECT(stable_steps))
KEY(DECAY_STEPS, "scheduler.params.num_decay_steps", SIZE,
    "`warmup_stable_decay`, required: steps of the decay", SCHEDULE(decay_steps))
KEY(DECAY_TYPE, "scheduler.params.decay_type", TEXT,
    "`warmup_stable_decay`: shape of the decay",
    SCHEDULE_DERIVES(decay_ramp), FIRST_OF("cosine", "linear|1-sqrt"))
KEY(MIN_LR_RATIO, "scheduler.params.min_lr_ratio", REAL,
    "`warmup_stable_decay`: learning rate at the start and at the end, as a share of the group's "
    "rate",
    SCHEDULE_DERIVES(min_lr_rate), NUMBER(0), RANGE(0, 1))

/* ---- zero_optimization ---- */
PLAIN("zero_optimization", BLOCK,
    "the objects that are sharded. The old values `true` and `false` in place of the block mean "
    "stage 1 and stage 0",
    CLOSED, LEGACY_BOOL)
KEY(STAGE, "zero_optimization.stage", INT,
    "0: nothing is sharded. 1: optimizer state is sharded. 2: gradients too. 3: parameters too",
    SETS(sharding.stage), NUMBER(0), RANGE(0, 3), NEEDED("set it to 0, 1, 2 or 3"))
PLAIN("zero_optimization.overlap_comm", BOOL,
    "communicates while the trainer computes",
    SETS(sharding.overlap_comm), RULE("true at stage 3, else false"), NULLABLE, EFFECT(overlap))
KEY(SUB_GROUP, "zero_optimization.sub_group_size", SIZE,
    "most elements in a block of optimizer state (DeepSpeed's sub-group); 0 means the default",
    SETS(sharding.sub_group_size), NUMBER(1e9), ZERO_IS_DEFAULT)
PLAIN("zero_optimization.stage3_prefetch_bucket_size", SIZE,
    "most elements that are gathered ahead of their use. The engine gathers the units of the next "
    "acquire, and more only while less than 8 MiB are gathered ahead. Fractions of the value are "
    "cut off",
    SETS(sharding.prefetch_bucket_size), NUMBER(5e7), TRUNCATE,
    AUTO("0.9 x hidden_size squared, else the default"), EFFECT(prefetch))
PLAIN("zero_optimization.stage3_param_persistence_threshold", SIZE,
    "parameters with at most this number of elements stay whole on each rank",
    SETS(sharding.persistence_threshold), NUMBER(1e5), AUTO("10 x hidden_size, else the default"),
    EFFECT(persistence))
PLAIN("zero_optimization.stage3_model_persistence_threshold", SIZE,
    "most elements that stay whole on each rank, over all parameters",
    SETS(sharding.model_persistence_threshold), NUMBER(9223372036854775807))
PLAIN("zero_optimization.stage3_max_live_parameters", SIZE,
    "most elements that are gathered at a time. The limit applies only to gathers ahead of their "
    "use",
    SETS(sharding.max_live_parameters), NUMBER(1e9))
PLAIN("zero_optimization.stage3_max_reuse_distance", SIZE,
    "a unit stays gathered if at most this number of elements of other units is used before its "
    "next use. DeepSpeed's default of 1e9 would keep models below a billion parameters gathered",
    SETS(sharding.max_reuse_distance), NUMBER(0))
PLAIN("zero_optimization.zero_hpz_partition_size", INT,
    "stage 3: number of ranks that hold a second copy of the parameters among them (ZeRO++). It "
    "divides the ranks of each host; with sherd.elastic there is none where it does not. A unit is "
    "gathered from all ranks once after each update, and "
    "later from this copy, inside the host. 1: there is none",
    SETS(copy_ranks), NUMBER(1), RANGE(1, 131072))

/* ---- offload ---- */
KEY(OFFLOAD_PARAM, "zero_optimization.offload_param", BLOCK,
    "where parameters rest at stage 3", CLOSED, NULLABLE, AUTO_ABSENT, AUTO("no offload"))
KEY(PARAM_DEVICE, "zero_optimization.offload_param.device", TEXT,
    "`none`: on the device that computes with them. `cpu`: in host memory. `nvme`: in files",
    TIER(offload.params), AUTO("none"))
KEY(PARAM_PATH, "zero_optimization.offload_param.nvme_path", FOLDERS,
    "folder of the files; required for device `nvme`. Several folders, on several drives, share "
    "the files in stripes",
    NULLABLE, AUTO("an error with device nvme: the program must give it"))
PLAIN("zero_optimization.offload_param.buffer_count", INT,
    "device `nvme`: number of buffers in memory through which slices pass",
    SETS(offload.params.buffer_count), NUMBER(5), AT_LEAST(1))
PLAIN("zero_optimization.offload_param.buffer_size", SIZE,
    "devices `cpu` and `nvme`: most elements in a buffer, and in one transfer",
    SETS(offload.params.buffer_elems), NUMBER(1e8), AT_LEAST(1))
PLAIN("zero_optimization.offload_param.max_in_cpu", SIZE,
    "device `nvme`: most elements of each rank that stay in host memory",
    SETS(offload.params_in_cpu), NUMBER(1e9))
PLAIN("zero_optimization.offload_param.pin_memory", BOOL,
    "registers the buffers with the kernel, as far as the limit on locked memory allows",
    SETS(offload.params.pin_memory), ON, LOCAL)
KEY(OFFLOAD_OPTIMIZER, "zero_optimization.offload_optimizer", BLOCK,
    "where optimizer state rests at stages 1 to 3",
    CLOSED, NULLABLE, AUTO_ABSENT, AUTO("no offload"))
KEY(STATE_DEVICE, "zero_optimization.offload_optimizer.device", TEXT,
    "`none`: on the device that computes with it. `cpu`: in host memory. `nvme`: in files",
    TIER(offload.state), AUTO("none"))
KEY(STATE_PATH, "zero_optimization.offload_optimizer.nvme_path", FOLDERS,
    "folder of the files; required for device `nvme`. Several folders, on several drives, share "
    "the files in stripes",
    NULLABLE, AUTO("an error with device nvme: the program must give it"))
PLAIN("zero_optimization.offload_optimizer.buffer_count", INT,
    "device `nvme`: number of buffers in memory through which blocks pass",
    SETS(offload.state.buffer_count), NUMBER(4), AT_LEAST(1))
PLAIN("zero_optimization.offload_optimizer.buffer_size", SIZE,
    "devices `cpu` and `nvme`: most elements in a buffer, and in one transfer (a key of sherd's "
    "own)",
    SETS(offload.state.buffer_elems), NUMBER(4194304), AT_LEAST(4096))
PLAIN("zero_optimization.offload_optimizer.pin_memory", BOOL,
    "registers the buffers with the kernel, as far as the limit on locked memory allows",
    SETS(offload.state.pin_memory), ON, LOCAL)
KEY(STATE_PIPELINE_READ, "zero_optimization.offload_optimizer.pipeline_read", BOOL,
    "reads the next blocks while a block is updated. `false` is slower and gives the same bits "
    "(DeepSpeed's default is false)",
    SETS(offload.pipeline_read), ON)
KEY(STATE_PIPELINE_WRITE, "zero_optimization.offload_optimizer.pipeline_write", BOOL,
    "writes the previous blocks while a block is updated. `false` is slower and gives the same "
    "bits (DeepSpeed's default is false)",
    SETS(offload.pipeline_write), ON)
PLAIN("zero_optimization.offload_optimizer.fast_init", BOOL,
    "leaves out one comparison of checksums: the one when the first update reads the filled values",
    SETS(offload.fast_init))
KEY(STATE_RATIO, "zero_optimization.offload_optimizer.ratio", REAL,
    "share of the optimizer state that is offloaded, at any stage (DeepSpeed takes less than 1 "
    "only at stage 3)",
    SETS(offload.ratio), NUMBER(1.0), RANGE(0, 1))
KEY(STATE_GRADIENTS, "zero_optimization.offload_optimizer.gradients", TEXT,
    "where the gradients of offloaded state are added up. `cpu`: in host memory. `nvme`: in a "
    "file, which needs device `nvme` (a key of sherd's own)",
    SETS(offload.gradients_on_nvme), FIRST_OF("cpu", "nvme"))
PLAIN("zero_optimization.offload_optimizer.accumulate", TEXT,
    "where the micro-batches of a step are added up at stages 2 and 3. `cpu`: in host memory; the "
    "gradient of each micro-batch goes down to it. `device`: in an accumulator on the device, "
    "which goes down once (a key of sherd's own)",
    SETS(offload.accumulate), RULE("device on a GPU, else cpu"), CHOICES("cpu|device"), NULLABLE,
    AUTO("device on a GPU, else cpu"), EFFECT(accumulate_place))
KEY(STATE_VERIFY, "zero_optimization.offload_optimizer.verify_reads", BOOL,
    "device `nvme`: compares the checksum of every block that is read (a key of sherd's own)",
    SETS(offload.verify_reads))
KEY(STATE_RESUME, "zero_optimization.offload_optimizer.resume", BOOL,
    "continues from the state files that an earlier run left in `nvme_path`; refused with a ratio "
    "below 1 (a key of sherd's own)",
    SETS(offload.resume_state))
KEY(STATE_KEEP, "zero_optimization.offload_optimizer.keep", BOOL,
    "leaves the state files when the engine is destroyed. A run that dies leaves them in any case "
    "(a key of sherd's own)",
    SETS(offload.keep_state))
KEY(STATE_DURABLE, "zero_optimization.offload_optimizer.durable", BOOL,
    "device `nvme`: when a step is over, its state is on the medium. `false`: the state survives "
    "the end of the process, but not the end of the machine (a key of sherd's own)",
    SETS(offload.durable), ON)
PLAIN("checkpoint", BLOCK,
    "saving and loading with `sherd_checkpoint_save` and `sherd_checkpoint_load`", NULLABLE)
PLAIN("checkpoint.async", BOOL,
    "a save returns when the state is copied to host memory, and the copy is written while "
    "training goes on. The plan counts the memory for the copy (a key of sherd's own)",
    SETS(checkpoint.is_async))
PLAIN("checkpoint.keep_last", INT,
    "complete checkpoints that stay in a folder when a new one is saved there; 0: all (a key of "
    "sherd's own)",
    SETS(checkpoint.keep_last), NUMBER(0))
PLAIN("aio", BLOCK, "how the drive of device `nvme` is read and written", NULLABLE)
PLAIN("aio.block_size", SIZE,
    "most bytes in a request", SETS(io.block_bytes), NUMBER(1048576), AT_LEAST(4096), LOCAL)
PLAIN("aio.queue_depth", INT, "requests in flight", SETS(io.depth), NUMBER(8), AT_LEAST(1), LOCAL)
PLAIN("aio.engine", TEXT,
    "implementation of the requests: `io_uring`, or threads with pread and pwrite (a key of "
    "sherd's own)",
    SETS(io.engine), FIRST_OF("auto", "io_uring|threads"), LOCAL,
    AUTO("io_uring if the kernel has it, else threads"))
PLAIN("aio.rated_tbw", REAL,
    "terabytes that a drive is rated to take, for the line about wear in the plan (a key of "
    "sherd's own)",
    SETS(io.drive_tbw), NUMBER(600), LOCAL)
PLAIN("aio.step_seconds", REAL,
    "seconds of a step, for the line about wear in the plan. 0: the time that a drive of 2 GB/s "
    "needs (a key of sherd's own)",
    SETS(io.step_seconds), NUMBER(0), LOCAL)
/* clang-format on */
#undef KEY
#undef PLAIN
