/* DeepSpeed's keys that have no effect here, sorted by the reason; the keys with an effect are in
 * config_keys.h, whose head describes a row; here the reason stands in the place of KEY. The meaning
 * says why the key has no effect. It follows a colon in messages ("KEY is ignored: ..."), so it
 * begins with a small letter and has no full stop at its end.
 *
 *   SAME      a choice that never changes a result: any value is right
 *   HINT      a hint that is not taken: a value other than the default warns
 *   REFUSED   a value other than the default, or a block that is switched on, would change the
 *             training: an error
 *
 * Included by config_impl.h and config_table.c only. */

/* clang-format off */

/* ---- choices that never change a result ---- */
SAME("prescale_gradients", BOOL,
    "sums are taken in fp32, so it does not matter whether the division comes first or last")
SAME("gradient_predivide_factor", REAL,
    "sums are taken in fp32, so it does not matter whether the division comes first or last",
    NUMBER(1.0))
SAME("seq_parallel_communication_data_type", TEXT,
    "sherd has no sequence parallelism, so nothing is sent in this type", WORD("fp32"), NULLABLE)
SAME("zero_allow_untested_optimizer", BOOL, "every optimizer of sherd works at every stage")
SAME("zero_force_ds_cpu_optimizer", BOOL, "sherd has one implementation of each optimizer", ON)
SAME("vocabulary_size", ANY, "it is a hint about the shapes of tensors", NULLABLE)
SAME("optimizer.legacy_fusion", ANY, "it only chooses between implementations")
SAME("optimizer.params.fused", ANY, "it only chooses between implementations")
SAME("optimizer.params.foreach", ANY, "it only chooses between implementations")
SAME("optimizer.params.ns_method", ANY,
    "Muon: it chooses between two ways to compute the same iteration. sherd computes the standard "
    "one, in fp32")
SAME("optimizer.params.set_grad_none", ANY, "the engine owns the gradients")
SAME("zero_optimization.reduce_bucket_size", SIZE,
    "sherd has no buckets: the gradient of a unit is reduced where it was made", NUMBER(5e8))
SAME("zero_optimization.allgather_bucket_size", SIZE,
    "sherd has no buckets: a unit is gathered into the memory that the plan has for it",
    NUMBER(5e8))
SAME("zero_optimization.stage3_gather_16bit_weights_on_model_save", BOOL,
    "weights are exported whole at every stage (docs/weights.md)")
SAME("zero_optimization.contiguous_gradients", BOOL,
    "the gradients of a unit always lie in one piece of memory", ON)
SAME("zero_optimization.reduce_scatter", BOOL, "the sum is the same either way", ON)
SAME("zero_optimization.allgather_partitions", BOOL, "the result is the same either way", ON)
SAME("zero_optimization.use_multi_rank_bucket_allreduce", BOOL,
    "the sum is the same either way", ON)
SAME("zero_optimization.offload_optimizer.cpuadam_cores_perc", REAL,
    "it belongs to super_offload, which sherd does not have", NUMBER(0.8), RANGE(0, 1))
SAME("aio.intra_op_parallelism", INT,
    "requests are in flight at the same time, and do not need a thread each", NUMBER(1))
SAME("aio.single_submit", BOOL, "requests that are ready together always go to the kernel together")
SAME("aio.overlap_events", BOOL, "new requests are always made while others complete", ON)
SAME("zero_optimization.compute_grad_norm", BOOL,
    "the norm is always computed: it shows an overflow, and clipping and the report need it", ON)
SAME("zero_optimization.parameter_alignment", BOOL,
    "every parameter starts at a multiple of 64 elements")
SAME("allgather_size", SIZE,
    "sherd has no buckets: a unit is gathered into the memory that the plan has for it",
    NUMBER(5e8))
SAME("zero_optimization.elastic_checkpoint", BOOL, "every checkpoint loads on any number of ranks")
SAME("zero_optimization.pipeline_loading_checkpoint", BOOL,
    "a checkpoint is always read while the portion before is copied and checked")
SAME("checkpoint.load_universal", BOOL, "every checkpoint loads on any layout")
SAME("checkpoint.tag_validation", TEXT,
    "ranks that save under different tags are always refused",
    FIRST_OF("Warn", "Ignore|Fail"), ANY_CASE)
SAME("checkpoint.parallel_write", OPAQUE, "every rank always writes its own part")
SAME("checkpoint.use_node_local_storage", BOOL,
    "each save finds out which hosts share the folder (docs/checkpoints.md)")
SAME("checkpoint.writer", OPAQUE, "it only chooses between implementations", NULLABLE)
SAME("checkpoint.checkpoint_serialization", BOOL, "it only chooses between implementations", ON)

/* ---- hints that are not taken ---- */
HINT("sparse_gradients", BOOL, "the gradients of embeddings are always exchanged whole")
HINT("dump_state", BOOL, "sherd_config_dump prints the resolved configuration")
HINT("log_level", ANY, "sherd_log_set and SHERD_LOG choose the level", NULLABLE)
HINT("dataloader_drop_last", BOOL, "the trainer loads the data")
HINT("disable_python_gc", BOOL,
    "the program controls its garbage collector (gc.disable() in Python)")
HINT("disable_allgather", BOOL, "it has no effect in DeepSpeed either")
HINT("graph_harvesting", BOOL, "it is a speed hint for CUDA graphs")
HINT("use_data_before_expert_parallelism", BOOL, "it is a layout hint for expert parallelism")
HINT("fp16.auto_cast", BOOL, "the trainer casts its inputs")
HINT("fp16.opt_level", ANY, "it is a key of Apex, not of this block")
HINT("fp16.fp16", ANY, "this block does not have this key; use fp16.enabled")
HINT("fp16.fp16_scale_tolerance", ANY, "it is a key of Fairseq, not of this block")
HINT("bf16.immediate_grad_update", BOOL,
    "it is a memory hint about the time at which gradients are accumulated")
HINT("bf16.auto_cast", ANY, "this block does not have this key; the trainer casts its inputs")
HINT("bf16.loss_scale", ANY, "bf16 needs no loss scale")
HINT("bf16.initial_scale_power", ANY, "bf16 needs no loss scale")
HINT("bf16.loss_scale_window", ANY, "bf16 needs no loss scale")
HINT("bf16.hysteresis", ANY, "bf16 needs no loss scale")
HINT("bf16.min_loss_scale", ANY, "bf16 needs no loss scale")
HINT("data_types.buffer_dtype", TEXT,
    "buffers that are not parameters belong to the trainer", NULLABLE)
HINT("data_types.keep_in_fp32_modules", ANY,
    "buffers that are not parameters belong to the trainer; a parameter stays fp32 if the program "
    "declares it as fp32")
HINT("zero_optimization.round_robin_gradients", BOOL, "it is a speed hint for copies of gradients")
HINT("zero_optimization.ignore_unused_parameters", BOOL,
    "a unit without a backward pass has a gradient of zero", ON)
HINT("zero_optimization.load_from_fp32_weights", BOOL,
    "checkpoints always contain the weights in fp32", ON)
HINT("zero_optimization.legacy_stage1", BOOL, "sherd has one implementation of stage 1")
HINT("zero_optimization.memory_efficient_linear", BOOL,
    "it is a memory hint for PyTorch modules", ON)
HINT("zero_optimization.override_module_apply", BOOL, "it is about PyTorch modules", ON)
HINT("zero_optimization.log_trace_cache_warnings", BOOL, "it is about messages of DeepSpeed")
HINT("zero_optimization.enable_sanity_checks", BOOL, "the checks are always on")
HINT("zero_optimization.save_muon_momentum_buffer_in_memory", BOOL, "it is a memory hint for Muon")
HINT("zero_optimization.stage3_module_granularity_threshold", SIZE,
    "the program declares its units", NUMBER(0))
HINT("zero_optimization.stage3_use_all_reduce_for_fetch_params", BOOL,
    "it is a speed hint for gathers")
HINT("zero_optimization.stage3_allgather_sequential", BOOL, "it is a speed hint for gathers")
HINT("zero_optimization.zero_quantized_weights", BOOL,
    "it compresses weights on the wire with loss; sherd sends them whole")
HINT("zero_optimization.zero_quantized_nontrainable_weights", BOOL,
    "it compresses weights on the wire with loss; sherd sends them whole")
HINT("zero_optimization.zero_quantized_gradients", BOOL,
    "it compresses gradients on the wire with loss; sherd sends them whole")
HINT("zero_optimization.zeropp_loco_param", OPAQUE, "it is about quantized gradients", NULLABLE)
HINT("zero_optimization.mics_shard_size", INT,
    "it is a speed hint: shards lie on fewer ranks, which sherd.shard_size sets", NUMBER(-1),
    AT_LEAST(-1))
HINT("zero_optimization.mics_hierarchical_params_gather", BOOL,
    "it is a speed hint: shards lie on fewer ranks")
HINT("zero_optimization.zenflow", OPAQUE,
    "it is a lossy shortcut for offloaded updates; in sherd all updates are synchronous", NULLABLE)
HINT("zero_optimization.leaf_module", OPAQUE, "the program declares its units", NULLABLE)
HINT("zero_optimization.offload_optimizer.super_offload", BOOL,
    "it is a speed hint for offloaded updates")
HINT("aio.use_gds", BOOL, "it is a speed hint for GPUs")
HINT("activation_checkpointing", OPAQUE, "the trainer decides which activations it computes again")
HINT("wandb", OPAQUE,
    "a program talks to this service through the package wandb; csv_monitor and tensorboard write "
    "files, and `wandb sync` takes over those of tensorboard")
HINT("comet", OPAQUE,
    "a program talks to this service through its own package; csv_monitor and tensorboard write "
    "files")
HINT("comms_logger.prof_all", BOOL, "every gather and every reduction of the engine is counted", ON)
HINT("comms_logger.prof_ops", ANY, "every gather and every reduction of the engine is counted")
HINT("comms_logger.debug", BOOL, "a line of comms_logger.verbose names the unit that is moved")
HINT("flops_profiler", OPAQUE, "sherd does not count operations")
HINT("timers", OPAQUE, "the trainer has clocks of its own")
HINT("autotuning", OPAQUE, "sherd uses the values of the file and does not tune them")
HINT("nebula", OPAQUE,
    "it is a service that stores checkpoints; sherd_checkpoint_save writes to a folder")
HINT("datastates_ckpt", OPAQUE, "checkpoint.async writes a checkpoint while training goes on")
HINT("compile", OPAQUE, "it is about compiling PyTorch modules")
HINT("pipeline", OPAQUE,
    "pipeline parallelism belongs to the trainer; sherd's world is the data-parallel group")

/* ---- keys that would change the training ---- */
REFUSED("gradient_allreduce_op", TEXT,
    "sherd averages gradients over the ranks", FIRST_OF("mean", "sum"))
REFUSED("managed_gradient_accumulation", BOOL,
    "the engine counts the micro-batches; sherd_step_close_window ends a window early", ON)
REFUSED("sequence_parallel_size", INT,
    "sequence parallelism belongs to the trainer; sherd's world is the data-parallel group",
    NUMBER(1), AT_LEAST(1))
REFUSED("fp16.fp16_master_weights_and_grads", BOOL,
    "an fp16 master loses updates below 2^-11 of a weight, and fp16 has no exponents for the "
    "moments; with fp16, masters are fp32")
REFUSED("optimizer.params.amsgrad", BOOL, "AMSGrad is another optimizer")
REFUSED("optimizer.params.muon_lr", ANY, "write the rate of the matrices as lr")
REFUSED("optimizer.params.adam_lr", ANY,
    "give a group of sherd.groups the type AdamW, this rate, and the parameters that are not for "
    "Muon")
REFUSED("optimizer.params.per_head_muon", BOOL,
    "Muon makes a whole matrix orthogonal, not the part of each head")
REFUSED("optimizer.params.fp32_optimizer_states", BOOL,
    "the state of an optimizer is fp32, unless sherd.master_encoding or sherd.moment_encoding "
    "chooses fewer bits",
    ON)
REFUSED("scheduler.params.last_batch_iteration", INT,
    "the schedule starts with the first step; where state files are resumed, it continues from "
    "where it was",
    NUMBER(-1), AT_LEAST(-1))
REFUSED("tensor_parallel", BLOCK,
    "only its size is read: tensor parallelism belongs to the trainer; sherd's world is the "
    "data-parallel group")
REFUSED("tensor_parallel.autotp_size", INT,
    "the engine does not split modules", NUMBER(0), ONE_IS_OFF)
REFUSED("expert_parallel", OPAQUE,
    "sherd does not split experts over ranks; sherd's world is the data-parallel group")
REFUSED("amp", OPAQUE, "it is the mixed precision of Apex; use the fp16 or bf16 block")
REFUSED("torch_autocast", OPAQUE, "it is the autocast of PyTorch; use the bf16 or fp16 block")
REFUSED("elasticity", OPAQUE, "it changes the batch with the number of ranks; give the batch sizes")
REFUSED("hybrid_engine", OPAQUE, "it is an inference engine for RLHF")
REFUSED("compression_training", OPAQUE, "it changes the model", ACTIVE_NESTED)
REFUSED("quantize_training", OPAQUE, "it changes the weights", ACTIVE_PRESENT)
REFUSED("weight_quantization", OPAQUE, "it changes the weights", ACTIVE_PRESENT)
REFUSED("eigenvalue", OPAQUE, "it controls quantization")
REFUSED("sparse_attention", OPAQUE,
    "it changes the model; attention belongs to the trainer", ACTIVE_PRESENT)
REFUSED("progressive_layer_drop", OPAQUE, "it changes the model")
REFUSED("curriculum_learning", OPAQUE, "it changes the data; loading belongs to the trainer")
REFUSED("data_efficiency", OPAQUE, "it changes the data and the model")
/* clang-format on */
#undef SAME
#undef HINT
#undef REFUSED
