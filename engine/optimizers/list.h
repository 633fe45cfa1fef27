/* The optimizers, a line each: its "optimizer.type" in a configuration, and its table. optimizer.h declares
 * them from here, table.c lists them. */
SHERDI_OPTIMIZER("AdamW", sherdi_optimizer_adamw)
SHERDI_OPTIMIZER("Adam", sherdi_optimizer_adam)
SHERDI_OPTIMIZER("Lamb", sherdi_optimizer_lamb)
SHERDI_OPTIMIZER("none", sherdi_optimizer_none)
