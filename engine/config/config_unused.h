/* DeepSpeed's keys that have no effect here, sorted by the reason; the keys with an effect are in
 * config_keys.h. A row:
 *
 *   X(id, path, type, why, (default, range and other attributes as in config_keys.h), meaning)
 *
 * The meaning says why the key has no effect. It follows a colon in messages ("KEY is ignored:
 * ..."), so it begins with a small letter and has no full stop at its end.
 *
 *   SAME      a choice that never changes a result: any value is right
 *   HINT      a hint that is not taken: a value other than the default warns
 *   REFUSED   a value other than the default, or a block that is switched on, would change the
 *             training: an error
 *
 * Included by config_impl.h and config_table.c only. */

/* clang-format off */
#define SHERDI_CONFIG_UNUSED(X) \
    /* ---- choices that never change a result ---- */ \
    X(PRESCALE, "prescale_gradients", BOOL, SAME, (OFF), \
      "sums are taken in fp32, so it does not matter whether the division comes first or last") \
    X(PREDIVIDE, "gradient_predivide_factor", REAL, SAME, (NUMBER(1.0), RANGE(0, INFINITY)), \
      "sums are taken in fp32, so it does not matter whether the division comes first or last") \
    X(SEQ_COMM_DTYPE, "seq_parallel_communication_data_type", TEXT, SAME, (FIRST("fp32"), \
      NULLABLE), \
      "sherd has no sequence parallelism, so nothing is sent in this type") \
    X(UNTESTED_OPTIMIZER, "zero_allow_untested_optimizer", BOOL, SAME, (OFF), \
      "every optimizer of sherd works at every stage") \
    X(FORCE_CPU_OPTIMIZER, "zero_force_ds_cpu_optimizer", BOOL, SAME, (ON), \
      "sherd has one implementation of each optimizer") \
    X(VOCABULARY_SIZE, "vocabulary_size", ANY, SAME, (NULLABLE), \
      "it is a hint about the shapes of tensors") \
    X(LEGACY_FUSION, "optimizer.legacy_fusion", ANY, SAME, (), \
      "it only chooses between implementations") \
    X(FUSED, "optimizer.params.fused", ANY, SAME, (), \
      "it only chooses between implementations") \
    X(FOREACH, "optimizer.params.foreach", ANY, SAME, (), \
      "it only chooses between implementations") \
    X(NS_METHOD, "optimizer.params.ns_method", ANY, SAME, (), \
      "Muon: it chooses between two ways to compute the same iteration. sherd computes the " \
      "standard one, in fp32") \
    X(SET_GRAD_NONE, "optimizer.params.set_grad_none", ANY, SAME, (), \
      "the engine owns the gradients") \
    X(REDUCE_BUCKET, "zero_optimization.reduce_bucket_size", SIZE, SAME, (NUMBER(5e8), \
      RANGE(0, INFINITY)), \
      "sherd has no buckets: the gradient of a unit is reduced where it was made") \
    X(ALLGATHER_BUCKET, "zero_optimization.allgather_bucket_size", SIZE, SAME, (NUMBER(5e8), \
      RANGE(0, INFINITY)), \
      "sherd has no buckets: a unit is gathered into the memory that the plan has for it") \
    X(GATHER_ON_SAVE, "zero_optimization.stage3_gather_16bit_weights_on_model_save", BOOL, SAME, ( \
      OFF), \
      "weights are exported whole at every stage (docs/weights.md)") \
    X(CONTIGUOUS, "zero_optimization.contiguous_gradients", BOOL, SAME, (ON), \
      "the gradients of a unit always lie in one piece of memory") \
    X(REDUCE_SCATTER, "zero_optimization.reduce_scatter", BOOL, SAME, (ON), \
      "the sum is the same either way") \
    X(ALLGATHER_PARTITIONS, "zero_optimization.allgather_partitions", BOOL, SAME, (ON), \
      "the result is the same either way") \
    X(MULTI_RANK_BUCKET, "zero_optimization.use_multi_rank_bucket_allreduce", BOOL, SAME, (ON), \
      "the sum is the same either way") \
    X(STATE_CORES, "zero_optimization.offload_optimizer.cpuadam_cores_perc", REAL, SAME, ( \
      NUMBER(0.8), RANGE(0, 1)), \
      "it belongs to super_offload, which sherd does not have") \
    X(AIO_PARALLELISM, "aio.intra_op_parallelism", INT, SAME, (NUMBER(1), RANGE(0, INT_MAX)), \
      "requests are in flight at the same time, and do not need a thread each") \
    X(AIO_SINGLE, "aio.single_submit", BOOL, SAME, (OFF), \
      "requests that are ready together always go to the kernel together") \
    X(AIO_OVERLAP, "aio.overlap_events", BOOL, SAME, (ON), \
      "new requests are always made while others complete") \
    X(COMPUTE_NORM, "zero_optimization.compute_grad_norm", BOOL, SAME, (ON), \
      "the norm is always computed: it shows an overflow, and clipping and the report need it") \
    X(ALIGNMENT, "zero_optimization.parameter_alignment", BOOL, SAME, (OFF), \
      "every parameter starts at a multiple of 64 elements") \
    X(ALLGATHER_SIZE, "allgather_size", SIZE, SAME, (NUMBER(5e8), RANGE(0, INFINITY)), \
      "sherd has no buckets: a unit is gathered into the memory that the plan has for it") \
    X(ELASTIC_CHECKPOINT, "zero_optimization.elastic_checkpoint", BOOL, SAME, (OFF), \
      "every checkpoint loads on any number of ranks") \
    X(PIPELINE_LOADING, "zero_optimization.pipeline_loading_checkpoint", BOOL, SAME, (OFF), \
      "a checkpoint is always read while the portion before is copied and checked") \
    X(CHECKPOINT_UNIVERSAL, "checkpoint.load_universal", BOOL, SAME, (OFF), \
      "every checkpoint loads on any layout") \
    X(CHECKPOINT_TAGS, "checkpoint.tag_validation", TEXT, SAME, (FIRST("Warn"), \
      CHOICES("Warn|Ignore|Fail"), ANY_CASE), \
      "ranks that save under different tags are always refused") \
    X(CHECKPOINT_PARALLEL, "checkpoint.parallel_write", BLOCK, SAME, (OPAQUE), \
      "every rank always writes its own part") \
    X(CHECKPOINT_WRITER, "checkpoint.writer", BLOCK, SAME, (OPAQUE, NULLABLE), \
      "it only chooses between implementations") \
    X(CHECKPOINT_SERIAL, "checkpoint.checkpoint_serialization", BOOL, SAME, (ON), \
      "it only chooses between implementations") \
    /* ---- hints that are not taken ---- */ \
    X(SPARSE_GRADIENTS, "sparse_gradients", BOOL, HINT, (OFF), \
      "the gradients of embeddings are always exchanged whole") \
    X(DUMP_STATE, "dump_state", BOOL, HINT, (OFF), \
      "sherd_config_dump prints the resolved configuration") \
    X(LOG_LEVEL, "log_level", ANY, HINT, (NULLABLE), \
      "sherd_log_set and SHERD_LOG choose the level") \
    X(DROP_LAST, "dataloader_drop_last", BOOL, HINT, (OFF), \
      "the trainer loads the data") \
    X(PYTHON_GC, "disable_python_gc", BOOL, HINT, (OFF), \
      "the program controls its garbage collector (gc.disable() in Python)") \
    X(DISABLE_ALLGATHER, "disable_allgather", BOOL, HINT, (OFF), \
      "it has no effect in DeepSpeed either") \
    X(GRAPH_HARVESTING, "graph_harvesting", BOOL, HINT, (OFF), \
      "it is a speed hint for CUDA graphs") \
    X(EXPERT_PARALLELISM, "use_data_before_expert_parallelism", BOOL, HINT, (OFF), \
      "it is a layout hint for expert parallelism") \
    X(FP16_AUTO_CAST, "fp16.auto_cast", BOOL, HINT, (OFF), \
      "the trainer casts its inputs") \
    X(FP16_OPT_LEVEL, "fp16.opt_level", ANY, HINT, (), \
      "it is a key of Apex, not of this block") \
    X(FP16_FP16, "fp16.fp16", ANY, HINT, (), \
      "this block does not have this key; use fp16.enabled") \
    X(FP16_TOLERANCE, "fp16.fp16_scale_tolerance", ANY, HINT, (), \
      "it is a key of Fairseq, not of this block") \
    X(BF16_IMMEDIATE, "bf16.immediate_grad_update", BOOL, HINT, (OFF), \
      "it is a memory hint about the time at which gradients are accumulated") \
    X(BF16_AUTO_CAST, "bf16.auto_cast", ANY, HINT, (), \
      "this block does not have this key; the trainer casts its inputs") \
    X(BF16_LOSS_SCALE, "bf16.loss_scale", ANY, HINT, (), \
      "bf16 needs no loss scale") \
    X(BF16_POWER, "bf16.initial_scale_power", ANY, HINT, (), \
      "bf16 needs no loss scale") \
    X(BF16_WINDOW, "bf16.loss_scale_window", ANY, HINT, (), \
      "bf16 needs no loss scale") \
    X(BF16_HYSTERESIS, "bf16.hysteresis", ANY, HINT, (), \
      "bf16 needs no loss scale") \
    X(BF16_MIN_SCALE, "bf16.min_loss_scale", ANY, HINT, (), \
      "bf16 needs no loss scale") \
    X(BUFFER_DTYPE, "data_types.buffer_dtype", TEXT, HINT, (NULLABLE), \
      "buffers that are not parameters belong to the trainer") \
    X(KEEP_FP32, "data_types.keep_in_fp32_modules", ANY, HINT, (), \
      "buffers that are not parameters belong to the trainer; a parameter stays fp32 if the " \
      "program declares it as fp32") \
    X(ROUND_ROBIN, "zero_optimization.round_robin_gradients", BOOL, HINT, (OFF), \
      "it is a speed hint for copies of gradients") \
    X(IGNORE_UNUSED, "zero_optimization.ignore_unused_parameters", BOOL, HINT, (ON), \
      "a unit without a backward pass has a gradient of zero") \
    X(LOAD_FP32, "zero_optimization.load_from_fp32_weights", BOOL, HINT, (ON), \
      "checkpoints always contain the weights in fp32") \
    X(LEGACY_STAGE1, "zero_optimization.legacy_stage1", BOOL, HINT, (OFF), \
      "sherd has one implementation of stage 1") \
    X(LINEAR, "zero_optimization.memory_efficient_linear", BOOL, HINT, (ON), \
      "it is a memory hint for PyTorch modules") \
    X(OVERRIDE_APPLY, "zero_optimization.override_module_apply", BOOL, HINT, (ON), \
      "it is about PyTorch modules") \
    X(TRACE_WARNINGS, "zero_optimization.log_trace_cache_warnings", BOOL, HINT, (OFF), \
      "it is about messages of DeepSpeed") \
    X(SANITY_CHECKS, "zero_optimization.enable_sanity_checks", BOOL, HINT, (OFF), \
      "the checks are always on") \
    X(MUON_BUFFER, "zero_optimization.save_muon_momentum_buffer_in_memory", BOOL, HINT, (OFF), \
      "it is a memory hint for Muon") \
    X(GRANULARITY, "zero_optimization.stage3_module_granularity_threshold", SIZE, HINT, ( \
      NUMBER(0), RANGE(0, INFINITY)), \
      "the program declares its units") \
    X(FETCH_ALL_REDUCE, "zero_optimization.stage3_use_all_reduce_for_fetch_params", BOOL, HINT, ( \
      OFF), \
      "it is a speed hint for gathers") \
    X(GATHER_SEQUENTIAL, "zero_optimization.stage3_allgather_sequential", BOOL, HINT, (OFF), \
      "it is a speed hint for gathers") \
    X(HPZ, "zero_optimization.zero_hpz_partition_size", INT, HINT, (NUMBER(1), RANGE(0, INT_MAX)), \
      "it is a speed hint: each host holds a second copy of the parameters") \
    X(QUANTIZED_WEIGHTS, "zero_optimization.zero_quantized_weights", BOOL, HINT, (OFF), \
      "it compresses weights on the wire with loss; sherd sends them whole") \
    X(QUANTIZED_FROZEN, "zero_optimization.zero_quantized_nontrainable_weights", BOOL, HINT, ( \
      OFF), \
      "it compresses weights on the wire with loss; sherd sends them whole") \
    X(QUANTIZED_GRADIENTS, "zero_optimization.zero_quantized_gradients", BOOL, HINT, (OFF), \
      "it compresses gradients on the wire with loss; sherd sends them whole") \
    X(LOCO, "zero_optimization.zeropp_loco_param", BLOCK, HINT, (OPAQUE, NULLABLE), \
      "it is about quantized gradients") \
    X(MICS_SIZE, "zero_optimization.mics_shard_size", INT, HINT, (NUMBER(-1), RANGE(-1, INT_MAX)), \
      "it is a speed hint: shards lie on fewer ranks") \
    X(MICS_GATHER, "zero_optimization.mics_hierarchical_params_gather", BOOL, HINT, (OFF), \
      "it is a speed hint: shards lie on fewer ranks") \
    X(ZENFLOW, "zero_optimization.zenflow", BLOCK, HINT, (OPAQUE, NULLABLE), \
      "it is a lossy shortcut for offloaded updates; in sherd all updates are synchronous") \
    X(LEAF_MODULE, "zero_optimization.leaf_module", BLOCK, HINT, (OPAQUE, NULLABLE), \
      "the program declares its units") \
    X(STATE_SUPER, "zero_optimization.offload_optimizer.super_offload", BOOL, HINT, (OFF), \
      "it is a speed hint for offloaded updates") \
    X(AIO_GDS, "aio.use_gds", BOOL, HINT, (OFF), \
      "it is a speed hint for GPUs") \
    X(ACTIVATION_CHECKPOINTING, "activation_checkpointing", BLOCK, HINT, (OPAQUE), \
      "the trainer decides which activations it computes again") \
    X(WANDB, "wandb", BLOCK, HINT, (OPAQUE), \
      "a program talks to this service through the package wandb; csv_monitor and tensorboard " \
      "write files, and `wandb sync` takes over those of tensorboard") \
    X(COMET, "comet", BLOCK, HINT, (OPAQUE), \
      "a program talks to this service through its own package; csv_monitor and tensorboard " \
      "write files") \
    X(COMMS_ALL, "comms_logger.prof_all", BOOL, HINT, (ON), \
      "every gather and every reduction of the engine is counted") \
    X(COMMS_OPS, "comms_logger.prof_ops", ANY, HINT, (), \
      "every gather and every reduction of the engine is counted") \
    X(COMMS_DEBUG, "comms_logger.debug", BOOL, HINT, (OFF), \
      "a line of comms_logger.verbose names the unit that is moved") \
    X(FLOPS_PROFILER, "flops_profiler", BLOCK, HINT, (OPAQUE), \
      "sherd does not count operations") \
    X(TIMERS, "timers", BLOCK, HINT, (OPAQUE), \
      "the trainer has clocks of its own") \
    X(AUTOTUNING, "autotuning", BLOCK, HINT, (OPAQUE), \
      "sherd uses the values of the file and does not tune them") \
    X(CHECKPOINT_LOCAL, "checkpoint.use_node_local_storage", BOOL, HINT, (OFF), \
      "a checkpoint is one folder that all hosts share") \
    X(NEBULA, "nebula", BLOCK, HINT, (OPAQUE), \
      "it is a service that stores checkpoints; sherd_checkpoint_save writes to a folder") \
    X(DATASTATES, "datastates_ckpt", BLOCK, HINT, (OPAQUE), \
      "checkpoint.async writes a checkpoint while training goes on") \
    X(COMPILE, "compile", BLOCK, HINT, (OPAQUE), \
      "it is about compiling PyTorch modules") \
    X(PIPELINE, "pipeline", BLOCK, HINT, (OPAQUE), \
      "pipeline parallelism belongs to the trainer; sherd's world is the data-parallel group") \
    /* ---- keys that would change the training ---- */ \
    X(ALLREDUCE_OP, "gradient_allreduce_op", TEXT, REFUSED, (FIRST("mean"), CHOICES("mean|sum")), \
      "sherd averages gradients over the ranks") \
    X(MANAGED_ACCUMULATION, "managed_gradient_accumulation", BOOL, REFUSED, (ON), \
      "the engine counts the micro-batches; sherd_step_close_window ends a window early") \
    X(SEQUENCE_PARALLEL, "sequence_parallel_size", INT, REFUSED, (NUMBER(1), RANGE(1, INT_MAX)), \
      "sequence parallelism belongs to the trainer; sherd's world is the data-parallel group") \
    X(FP16_MASTER, "fp16.fp16_master_weights_and_grads", BOOL, REFUSED, (OFF), \
      "an fp16 master loses updates below 2^-11 of a weight, and fp16 has no exponents for " \
      "the moments; with fp16, masters are fp32") \
    X(AMSGRAD, "optimizer.params.amsgrad", BOOL, REFUSED, (OFF), \
      "AMSGrad is another optimizer") \
    X(MUON_LR, "optimizer.params.muon_lr", ANY, REFUSED, (), \
      "write the rate of the matrices as lr") \
    X(MUON_ADAM_LR, "optimizer.params.adam_lr", ANY, REFUSED, (), \
      "give a group of sherd.groups the type AdamW, this rate, and the parameters that are " \
      "not for Muon") \
    X(MUON_HEADS, "optimizer.params.per_head_muon", BOOL, REFUSED, (OFF), \
      "Muon makes a whole matrix orthogonal, not the part of each head") \
    X(FP32_STATES, "optimizer.params.fp32_optimizer_states", BOOL, REFUSED, (ON), \
      "the state of an optimizer is fp32, unless sherd.master_encoding or " \
      "sherd.moment_encoding chooses fewer bits") \
    X(LAST_ITERATION, "scheduler.params.last_batch_iteration", INT, REFUSED, (NUMBER(-1), \
      RANGE(-1, INT_MAX)), \
      "the schedule starts with the first step; where state files are resumed, it continues " \
      "from where it was") \
    X(TENSOR_PARALLEL, "tensor_parallel", BLOCK, REFUSED, (), \
      "only its size is read: tensor parallelism belongs to the trainer; sherd's world is the " \
      "data-parallel group") \
    X(AUTOTP, "tensor_parallel.autotp_size", INT, REFUSED, (NUMBER(0), RANGE(0, INT_MAX), \
      ONE_IS_OFF), \
      "the engine does not split modules") \
    X(EXPERT_PARALLEL, "expert_parallel", BLOCK, REFUSED, (OPAQUE), \
      "sherd does not split experts over ranks; sherd's world is the data-parallel group") \
    X(AMP, "amp", BLOCK, REFUSED, (OPAQUE), \
      "it is the mixed precision of Apex; use the fp16 or bf16 block") \
    X(TORCH_AUTOCAST, "torch_autocast", BLOCK, REFUSED, (OPAQUE), \
      "it is the autocast of PyTorch; use the bf16 or fp16 block") \
    X(ELASTICITY, "elasticity", BLOCK, REFUSED, (OPAQUE), \
      "it changes the batch with the number of ranks; give the batch sizes") \
    X(HYBRID_ENGINE, "hybrid_engine", BLOCK, REFUSED, (OPAQUE), \
      "it is an inference engine for RLHF") \
    X(COMPRESSION, "compression_training", BLOCK, REFUSED, (OPAQUE, ACTIVE_NESTED), \
      "it changes the model") \
    X(QUANTIZE, "quantize_training", BLOCK, REFUSED, (OPAQUE, ACTIVE_PRESENT), \
      "it changes the weights") \
    X(WEIGHT_QUANTIZATION, "weight_quantization", BLOCK, REFUSED, (OPAQUE, ACTIVE_PRESENT), \
      "it changes the weights") \
    X(EIGENVALUE, "eigenvalue", BLOCK, REFUSED, (OPAQUE), \
      "it controls quantization") \
    X(SPARSE_ATTENTION, "sparse_attention", BLOCK, REFUSED, (OPAQUE, ACTIVE_PRESENT), \
      "it changes the model; attention belongs to the trainer") \
    X(LAYER_DROP, "progressive_layer_drop", BLOCK, REFUSED, (OPAQUE), \
      "it changes the model") \
    X(CURRICULUM, "curriculum_learning", BLOCK, REFUSED, (OPAQUE), \
      "it changes the data; loading belongs to the trainer") \
    X(DATA_EFFICIENCY, "data_efficiency", BLOCK, REFUSED, (OPAQUE), \
      "it changes the data and the model")
/* clang-format on */
