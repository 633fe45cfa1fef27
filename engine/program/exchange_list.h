/* Every kind of exchange: SHERDI_EXCHANGE(kind, words, name, contents of a message, calls that
 * exchange it). The message of a rank has `words` of 64 bits, and sherdi_exchange_bytes adds the
 * bytes for each unit or parameter. A rank that calls something else gets the name in its message;
 * NULL: it gets a name of the caller. docs/inside-worlds.md has this table, and a test compares. */
SHERDI_EXCHANGE(STATUS, 1, "the ranks' statuses", "status",
                "every collective call in which one rank alone can fail, once or more, but for "
                "acquire and release; every boundary with LAMB")
SHERDI_EXCHANGE(CALL, 2, NULL, "status, hash of the arguments",
                "`sherd_step_apply`, `sherd_checkpoint_save`, `sherd_checkpoint_load` (two)")
SHERDI_EXCHANGE(ARGUMENTS, 2, "arguments of a call", "status, hash of call and arguments",
                "`sherd_param_read`, `sherd_param_write`, `sherd_param_fill_from`, "
                "`sherd_grad_norms`, `sherd_engine_set_step`, `sherd_eval_begin`, "
                "`sherd_eval_end`; one more for each argument where ranks differ")
SHERDI_EXCHANGE(USED, 0, "units of any uses",
                "a bit for each open-ended unit and one more, in words of 8 bytes",
                "every micro-batch, if units are open-ended")
SHERDI_EXCHANGE(USES, 5, "sherd_step",
                "status, hash of the uses, micro-batches, those with a backward, which call",
                "every boundary")
SHERDI_EXCHANGE(UNIT_USES, 0, "the uses of units", "four counts of 8 bytes for each unit",
                "a boundary where the ranks differ")
SHERDI_EXCHANGE(NORM, 24, "the norm of sherd_step", "status, exact sum of squares, counts",
                "every boundary")
SHERDI_EXCHANGE(OUTCOME, 2, "an outcome", "status, share of the fingerprint",
                "every boundary (a queued one in the first call that reads or changes state, "
                "`sherd_step_wait` too, or at the next boundary), `sherd_param_write`, "
                "`sherd_step_undo`, `sherd_checkpoint_load`; with state on NVMe also "
                "`sherd_engine_set_step`, the start, and `sherd_engine_seal` of a resumed run")
SHERDI_EXCHANGE(FIRST_VALUES, 2, "first values", "status, share of the frozen fingerprint",
                "the start (the first acquire, or a call that needs values)")
SHERDI_EXCHANGE(FIRST_HASHES, 1, "hashes of first values",
                "status; a hash of 8 bytes for each parameter", "the start")
SHERDI_EXCHANGE(GENERATION, 2, "the state on NVMe", "status, generation",
                "with state on NVMe the start, and `sherd_engine_seal` of a resumed run")
SHERDI_EXCHANGE(STEPS, 3, "the steps of the state on NVMe", "status, step, micro-step",
                "`sherd_engine_seal` of a resumed run")
SHERDI_EXCHANGE(RUNS, 2, "files of state", "status, a bit for each run that could be resumed",
                "`sherd_engine_seal` with `resume`")
SHERDI_EXCHANGE(BEGUN, 2, "sherd_step_undo", "status, whether the drive has gone back",
                "a `sherd_step_undo` that fails")
SHERDI_EXCHANGE(FINGERPRINT, 2, "the fingerprint", "status, share of the fingerprint",
                "`sherd_engine_fingerprint`, `sherd_param_fingerprint`")
SHERDI_EXCHANGE(FROZEN, 2, "frozen parameters of a checkpoint",
                "status, share of the frozen fingerprint", "`sherd_checkpoint_load`")
SHERDI_EXCHANGE(LOADED, 3, "the values of a checkpoint",
                "status, shares of the fingerprints of parameters and state",
                "`sherd_checkpoint_load`")
SHERDI_EXCHANGE(SAVED, 9, "the files of a checkpoint", "status, sizes and checksums of files",
                "`sherd_checkpoint_save` (two, the second when all is written)")
SHERDI_EXCHANGE(SAVING, 2, "an asynchronous save", "status, whether the save is in progress",
                "every boundary during an asynchronous save")
SHERDI_EXCHANGE(ACQUIRE, 0, NULL, "nothing: the ranks meet",
                "every acquire at stage 3 with `SHERD_DEBUG=1`")
