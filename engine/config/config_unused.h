/* DeepSpeed's keys that have no effect here, told apart by why; those with one are in config_keys.h. A row:
 *
 *   X(id, path, type, why, (default, range and other attributes as in config_keys.h), meaning)
 *
 *   SAME      a choice that never changes a result: any value is right
 *   HINT      a hint that is not taken: a value other than the default warns
 *   REFUSED   a value other than the default, or a block that is switched on, would train something else: an error
 *
 * Included by config_impl.h and config_table.c only. */

/* clang-format off */
#define SHERDI_CONFIG_UNUSED(X) \
    /* ---- choices that never change a result ---- */ \
    X(PRESCALE, "prescale_gradients", BOOL, SAME, (OFF), "sums are taken in fp32, so dividing first or last gives the same") \
    X(PREDIVIDE, "gradient_predivide_factor", REAL, SAME, (NUMBER(1.0), RANGE(0, INFINITY)), \
      "sums are taken in fp32, so dividing first or last gives the same") \
    X(SEQ_COMM_DTYPE, "seq_parallel_communication_data_type", TEXT, SAME, (FIRST("fp32"), NULLABLE), \
      "without sequence parallelism nothing is sent in it") \
    X(UNTESTED_OPTIMIZER, "zero_allow_untested_optimizer", BOOL, SAME, (OFF), "every optimizer here works at every stage") \
    X(FORCE_CPU_OPTIMIZER, "zero_force_ds_cpu_optimizer", BOOL, SAME, (ON), "there is one optimizer implementation") \
    X(VOCABULARY_SIZE, "vocabulary_size", ANY, SAME, (NULLABLE), "a hint about tensor shapes") \
    X(LEGACY_FUSION, "optimizer.legacy_fusion", ANY, SAME, (), "a choice between implementations") \
    X(TORCH_ADAM, "optimizer.params.torch_adam", ANY, SAME, (), "a choice between implementations") \
    X(FUSED, "optimizer.params.fused", ANY, SAME, (), "a choice between implementations") \
    X(FOREACH, "optimizer.params.foreach", ANY, SAME, (), "a choice between implementations") \
    X(NS_METHOD, "optimizer.params.ns_method", ANY, SAME, (), "Muon: two ways through the same iteration; here it is the standard one, in fp32") \
    X(SET_GRAD_NONE, "optimizer.params.set_grad_none", ANY, SAME, (), "the engine owns the gradients") \
    X(REDUCE_BUCKET, "zero_optimization.reduce_bucket_size", SIZE, SAME, (NUMBER(5e8), RANGE(0, INFINITY)), \
      "a unit is reduced where its gradient was made, in no bucket") \
    X(ALLGATHER_BUCKET, "zero_optimization.allgather_bucket_size", SIZE, SAME, (NUMBER(5e8), RANGE(0, INFINITY)), \
      "a unit is gathered into its planned place, in no bucket") \
    X(GATHER_ON_SAVE, "zero_optimization.stage3_gather_16bit_weights_on_model_save", BOOL, SAME, (OFF), \
      "the engine writes no weights; the program reads them whole in the units that it acquires") \
    X(CONTIGUOUS, "zero_optimization.contiguous_gradients", BOOL, SAME, (ON), "gradients of a unit are always one piece of memory") \
    X(REDUCE_SCATTER, "zero_optimization.reduce_scatter", BOOL, SAME, (ON), "the sum is the same either way") \
    X(ALLGATHER_PARTITIONS, "zero_optimization.allgather_partitions", BOOL, SAME, (ON), "the result is the same either way") \
    X(MULTI_RANK_BUCKET, "zero_optimization.use_multi_rank_bucket_allreduce", BOOL, SAME, (ON), "the sum is the same either way") \
    X(STATE_CORES, "zero_optimization.offload_optimizer.cpuadam_cores_perc", REAL, SAME, (NUMBER(0.8), RANGE(0, 1)), "about super_offload") \
    X(AIO_PARALLELISM, "aio.intra_op_parallelism", INT, SAME, (NUMBER(1), RANGE(0, INT_MAX)), \
      "requests are in flight together without a thread for each") \
    X(AIO_SINGLE, "aio.single_submit", BOOL, SAME, (OFF), "requests that are ready together are handed to the kernel together") \
    X(AIO_OVERLAP, "aio.overlap_events", BOOL, SAME, (ON), "requests are made while others complete") \
    X(COMPUTE_NORM, "zero_optimization.compute_grad_norm", BOOL, SAME, (ON), "the norm is always taken: it finds an overflow, and clipping and the report need it") \
    X(ALIGNMENT, "zero_optimization.parameter_alignment", BOOL, SAME, (OFF), "every parameter starts at a multiple of 64 elements") \
    X(ALLGATHER_SIZE, "allgather_size", SIZE, SAME, (NUMBER(5e8), RANGE(0, INFINITY)), "a unit is gathered into its planned place, in no bucket") \
    X(ELASTIC_CHECKPOINT, "zero_optimization.elastic_checkpoint", BOOL, SAME, (OFF), "every checkpoint loads on any number of ranks") \
    X(PIPELINE_LOADING, "zero_optimization.pipeline_loading_checkpoint", BOOL, SAME, (OFF), "reading a checkpoint runs beside copying and checking it") \
    X(CHECKPOINT_UNIVERSAL, "checkpoint.load_universal", BOOL, SAME, (OFF), "every checkpoint loads on any layout") \
    X(CHECKPOINT_TAGS, "checkpoint.tag_validation", TEXT, SAME, (FIRST("Warn"), CHOICES("Warn|Ignore|Fail"), ANY_CASE), \
      "ranks that save under different tags are always refused") \
    X(CHECKPOINT_PARALLEL, "checkpoint.parallel_write", BLOCK, SAME, (OPAQUE), "every rank always writes its own part") \
    X(CHECKPOINT_WRITER, "checkpoint.writer", BLOCK, SAME, (OPAQUE, NULLABLE), "a choice between implementations") \
    X(CHECKPOINT_SERIAL, "checkpoint.checkpoint_serialization", BOOL, SAME, (ON), "a choice between implementations") \
    /* ---- hints that are not taken ---- */ \
    X(SPARSE_GRADIENTS, "sparse_gradients", BOOL, HINT, (OFF), "embedding gradients are exchanged whole") \
    X(DUMP_STATE, "dump_state", BOOL, HINT, (OFF), "sherd_config_dump prints the resolved configuration") \
    X(LOG_LEVEL, "log_level", ANY, HINT, (NULLABLE), "sherd_log_set and SHERD_LOG choose the level") \
    X(DROP_LAST, "dataloader_drop_last", BOOL, HINT, (OFF), "the trainer loads the data") \
    X(PYTHON_GC, "disable_python_gc", BOOL, HINT, (OFF), "the program decides over its garbage collector: gc.disable() in Python") \
    X(DISABLE_ALLGATHER, "disable_allgather", BOOL, HINT, (OFF), "has no effect in DeepSpeed either") \
    X(GRAPH_HARVESTING, "graph_harvesting", BOOL, HINT, (OFF), "a speed hint for CUDA graphs") \
    X(EXPERT_PARALLELISM, "use_data_before_expert_parallelism", BOOL, HINT, (OFF), "a layout hint for expert parallelism") \
    X(FP16_AUTO_CAST, "fp16.auto_cast", BOOL, HINT, (OFF), "the trainer casts its inputs") \
    X(FP16_OPT_LEVEL, "fp16.opt_level", ANY, HINT, (), "a key of Apex, not of this block") \
    X(FP16_FP16, "fp16.fp16", ANY, HINT, (), "not a key of this block; fp16.enabled is") \
    X(FP16_TOLERANCE, "fp16.fp16_scale_tolerance", ANY, HINT, (), "a key of Fairseq, not of this block") \
    X(BF16_IMMEDIATE, "bf16.immediate_grad_update", BOOL, HINT, (OFF), "when gradients are accumulated, a memory hint") \
    X(BF16_AUTO_CAST, "bf16.auto_cast", ANY, HINT, (), "not a key of this block; the trainer casts its inputs") \
    X(BF16_LOSS_SCALE, "bf16.loss_scale", ANY, HINT, (), "bf16 needs no loss scale") \
    X(BF16_POWER, "bf16.initial_scale_power", ANY, HINT, (), "bf16 needs no loss scale") \
    X(BF16_WINDOW, "bf16.loss_scale_window", ANY, HINT, (), "bf16 needs no loss scale") \
    X(BF16_HYSTERESIS, "bf16.hysteresis", ANY, HINT, (), "bf16 needs no loss scale") \
    X(BF16_MIN_SCALE, "bf16.min_loss_scale", ANY, HINT, (), "bf16 needs no loss scale") \
    X(BUFFER_DTYPE, "data_types.buffer_dtype", TEXT, HINT, (NULLABLE), "buffers that are no parameters are the trainer's") \
    X(KEEP_FP32, "data_types.keep_in_fp32_modules", ANY, HINT, (), "buffers that are no parameters are the trainer's; a parameter keeps fp32 where it is declared so") \
    X(ROUND_ROBIN, "zero_optimization.round_robin_gradients", BOOL, HINT, (OFF), "a speed hint for gradient copies") \
    X(IGNORE_UNUSED, "zero_optimization.ignore_unused_parameters", BOOL, HINT, (ON), "a unit without a backward pass has a gradient of zero") \
    X(LOAD_FP32, "zero_optimization.load_from_fp32_weights", BOOL, HINT, (ON), "checkpoints always have the weights in fp32") \
    X(LEGACY_STAGE1, "zero_optimization.legacy_stage1", BOOL, HINT, (OFF), "there is one stage 1") \
    X(LINEAR, "zero_optimization.memory_efficient_linear", BOOL, HINT, (ON), "a memory hint for PyTorch modules") \
    X(OVERRIDE_APPLY, "zero_optimization.override_module_apply", BOOL, HINT, (ON), "about PyTorch modules") \
    X(TRACE_WARNINGS, "zero_optimization.log_trace_cache_warnings", BOOL, HINT, (OFF), "about messages") \
    X(SANITY_CHECKS, "zero_optimization.enable_sanity_checks", BOOL, HINT, (OFF), "checks are always on") \
    X(MUON_BUFFER, "zero_optimization.save_muon_momentum_buffer_in_memory", BOOL, HINT, (OFF), "a memory hint for Muon") \
    X(GRANULARITY, "zero_optimization.stage3_module_granularity_threshold", SIZE, HINT, (NUMBER(0), RANGE(0, INFINITY)), \
      "the program declares its units") \
    X(FETCH_ALL_REDUCE, "zero_optimization.stage3_use_all_reduce_for_fetch_params", BOOL, HINT, (OFF), "a speed hint for gathers") \
    X(GATHER_SEQUENTIAL, "zero_optimization.stage3_allgather_sequential", BOOL, HINT, (OFF), "a speed hint for gathers") \
    X(HPZ, "zero_optimization.zero_hpz_partition_size", INT, HINT, (NUMBER(1), RANGE(0, INT_MAX)), \
      "a speed hint: a second copy of the parameters per host") \
    X(QUANTIZED_WEIGHTS, "zero_optimization.zero_quantized_weights", BOOL, HINT, (OFF), "a lossy short cut on the wire; weights travel whole") \
    X(QUANTIZED_FROZEN, "zero_optimization.zero_quantized_nontrainable_weights", BOOL, HINT, (OFF), \
      "a lossy short cut on the wire; weights travel whole") \
    X(QUANTIZED_GRADIENTS, "zero_optimization.zero_quantized_gradients", BOOL, HINT, (OFF), "a lossy short cut on the wire; gradients travel whole") \
    X(LOCO, "zero_optimization.zeropp_loco_param", BLOCK, HINT, (OPAQUE, NULLABLE), "about quantized gradients") \
    X(MICS_SIZE, "zero_optimization.mics_shard_size", INT, HINT, (NUMBER(-1), RANGE(-1, INT_MAX)), "a speed hint: shards over fewer ranks") \
    X(MICS_GATHER, "zero_optimization.mics_hierarchical_params_gather", BOOL, HINT, (OFF), "a speed hint: shards over fewer ranks") \
    X(ZENFLOW, "zero_optimization.zenflow", BLOCK, HINT, (OPAQUE, NULLABLE), \
      "a lossy short cut around offloaded updates; all updates are synchronous") \
    X(LEAF_MODULE, "zero_optimization.leaf_module", BLOCK, HINT, (OPAQUE, NULLABLE), "the program declares its units") \
    X(STATE_SUPER, "zero_optimization.offload_optimizer.super_offload", BOOL, HINT, (OFF), "a speed hint for offloaded updates") \
    X(AIO_GDS, "aio.use_gds", BOOL, HINT, (OFF), "a speed hint for GPUs") \
    X(ACTIVATION_CHECKPOINTING, "activation_checkpointing", BLOCK, HINT, (OPAQUE), "the trainer decides what it recomputes") \
    X(WANDB, "wandb", BLOCK, HINT, (OPAQUE), "a service that its own package in the program speaks to; csv_monitor and tensorboard write files, which wandb can take over (wandb sync)") \
    X(COMET, "comet", BLOCK, HINT, (OPAQUE), "a service that its own package in the program speaks to; csv_monitor and tensorboard write files") \
    X(COMMS_ALL, "comms_logger.prof_all", BOOL, HINT, (ON), "every gather and reduction of the engine is counted") \
    X(COMMS_OPS, "comms_logger.prof_ops", ANY, HINT, (), "every gather and reduction of the engine is counted") \
    X(COMMS_DEBUG, "comms_logger.debug", BOOL, HINT, (OFF), "a line of the log names the unit that is moved") \
    X(FLOPS_PROFILER, "flops_profiler", BLOCK, HINT, (OPAQUE), "no operations are counted") \
    X(TIMERS, "timers", BLOCK, HINT, (OPAQUE), "the trainer keeps its own clocks") \
    X(AUTOTUNING, "autotuning", BLOCK, HINT, (OPAQUE), "the file runs as it stands, untuned") \
    X(CHECKPOINT_LOCAL, "checkpoint.use_node_local_storage", BOOL, HINT, (OFF), "a checkpoint is one folder that all hosts share") \
    X(NEBULA, "nebula", BLOCK, HINT, (OPAQUE), "a service that stores checkpoints; sherd_checkpoint_save writes to a folder") \
    X(DATASTATES, "datastates_ckpt", BLOCK, HINT, (OPAQUE), "checkpoint.async writes beside the training") \
    X(COMPILE, "compile", BLOCK, HINT, (OPAQUE), "about compiling PyTorch modules") \
    X(PIPELINE, "pipeline", BLOCK, HINT, (OPAQUE), "pipeline parallelism is the trainer's; the world is the data-parallel group") \
    /* ---- what would train something else ---- */ \
    X(ALLREDUCE_OP, "gradient_allreduce_op", TEXT, REFUSED, (FIRST("mean"), CHOICES("mean|sum")), "gradients are averaged over the ranks") \
    X(MANAGED_ACCUMULATION, "managed_gradient_accumulation", BOOL, REFUSED, (ON), \
      "the engine counts micro-batches; sherd_step_close_window ends a window early") \
    X(SEQUENCE_PARALLEL, "sequence_parallel_size", INT, REFUSED, (NUMBER(1), RANGE(1, INT_MAX)), \
      "sequence parallelism is the trainer's; the world is the data-parallel group") \
    X(FP16_MASTER, "fp16.fp16_master_weights_and_grads", BOOL, REFUSED, (OFF), "an fp16 master loses updates below 2^-11 of a weight, and fp16 has no exponents for moments; masters are fp32") \
    X(AMSGRAD, "optimizer.params.amsgrad", BOOL, REFUSED, (OFF), "AMSGrad is another optimizer") \
    X(FP32_STATES, "optimizer.params.fp32_optimizer_states", BOOL, REFUSED, (ON), "optimizer states are fp32") \
    X(LAST_ITERATION, "scheduler.params.last_batch_iteration", INT, REFUSED, (NUMBER(-1), RANGE(-1, INT_MAX)), \
      "the schedule starts with the first step, and goes on where it was when state files are resumed") \
    X(TENSOR_PARALLEL, "tensor_parallel", BLOCK, REFUSED, (), \
      "read for its size alone: tensor parallelism is the trainer's; the world is the data-parallel group") \
    X(AUTOTP, "tensor_parallel.autotp_size", INT, REFUSED, (NUMBER(0), RANGE(0, INT_MAX), ONE_IS_OFF), "the engine does not split modules") \
    X(EXPERT_PARALLEL, "expert_parallel", BLOCK, REFUSED, (OPAQUE), "experts are not split over ranks; the world is the data-parallel group") \
    X(AMP, "amp", BLOCK, REFUSED, (OPAQUE), "Apex mixed precision; use the fp16 or bf16 block") \
    X(TORCH_AUTOCAST, "torch_autocast", BLOCK, REFUSED, (OPAQUE), "PyTorch's autocast; use the bf16 or fp16 block") \
    X(ELASTICITY, "elasticity", BLOCK, REFUSED, (OPAQUE), "changes the batch with the number of ranks; give the batch sizes") \
    X(HYBRID_ENGINE, "hybrid_engine", BLOCK, REFUSED, (OPAQUE), "an inference engine for RLHF") \
    X(COMPRESSION, "compression_training", BLOCK, REFUSED, (OPAQUE, ACTIVE_NESTED), "changes the model") \
    X(QUANTIZE, "quantize_training", BLOCK, REFUSED, (OPAQUE, ACTIVE_PRESENT), "changes the weights") \
    X(WEIGHT_QUANTIZATION, "weight_quantization", BLOCK, REFUSED, (OPAQUE, ACTIVE_PRESENT), "changes the weights") \
    X(EIGENVALUE, "eigenvalue", BLOCK, REFUSED, (OPAQUE), "drives quantization") \
    X(SPARSE_ATTENTION, "sparse_attention", BLOCK, REFUSED, (OPAQUE, ACTIVE_PRESENT), "changes the model; attention is the trainer's") \
    X(LAYER_DROP, "progressive_layer_drop", BLOCK, REFUSED, (OPAQUE), "changes the model") \
    X(CURRICULUM, "curriculum_learning", BLOCK, REFUSED, (OPAQUE), "changes the data; loading is the trainer's") \
    X(DATA_EFFICIENCY, "data_efficiency", BLOCK, REFUSED, (OPAQUE), "changes the data and the model")
/* clang-format on */
