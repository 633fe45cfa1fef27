/* The library's optimizers, and a line more. */
#include_next "engine/optimizers/list.h"
SHERDI_OPTIMIZER("HeavyBall", test_optimizer_sgd)
