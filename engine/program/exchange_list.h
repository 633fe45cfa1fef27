/* Every kind of exchange: SHERDI_EXCHANGE(kind, words, name, more). The message of a rank has `words`
 * of 64 bits, and what `more` adds for each unit or parameter of `plan`, if a row has it. A rank that
 * calls something else gets the name in its message; NULL: it gets a name of the caller.
 * docs/inside-worlds.md says of each what a message has, and which calls exchange it; a test
 * compares the kinds and sizes. */
SHERDI_EXCHANGE(STATUS, 1, "the ranks' statuses")
SHERDI_EXCHANGE(CALL, 2, NULL)
SHERDI_EXCHANGE(ARGUMENTS, 2, "arguments of a call")
SHERDI_EXCHANGE(WEIGHT, 2, "the weights of a micro-batch")
SHERDI_EXCHANGE(USED, 0, "units of any uses", +plan->layout.used_words)
SHERDI_EXCHANGE(USES, 5, "sherd_step")
SHERDI_EXCHANGE(UNIT_USES, 0, "the uses of units",
                +plan->layout.num_units *(sizeof(sherdi_unit_uses) / 8))
SHERDI_EXCHANGE(NORM, 24, "the norm of sherd_step")
SHERDI_EXCHANGE(OUTCOME, 2, "an outcome", +plan->layout.sum_words * plan->layout.num_units)
SHERDI_EXCHANGE(FIRST_VALUES, 2, "first values")
SHERDI_EXCHANGE(FIRST_HASHES, 1, "hashes of first values", +plan->layout.num_params)
SHERDI_EXCHANGE(GENERATION, 2, "the state on NVMe")
SHERDI_EXCHANGE(STEPS, 3, "the steps of the state on NVMe")
SHERDI_EXCHANGE(RUNS, 2, "files of state")
SHERDI_EXCHANGE(BEGUN, 2, "sherd_step_undo")
SHERDI_EXCHANGE(FINGERPRINT, 2, "the fingerprint")
SHERDI_EXCHANGE(FROZEN, 2, "frozen parameters of a checkpoint")
SHERDI_EXCHANGE(LOADED, 3, "the values of a checkpoint")
SHERDI_EXCHANGE(SAVED, 9, "the files of a checkpoint")
SHERDI_EXCHANGE(SAVING, 2, "an asynchronous save")
SHERDI_EXCHANGE(PARTS, 2, "the parts of a checkpoint")
SHERDI_EXCHANGE(ACQUIRE, 0, NULL)
