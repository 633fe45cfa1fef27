/* The element-wise updates, a line each. Each file has two faces. Included plainly, it gives the
 * struct of its coefficients, the function that makes them of a group's numbers
 * (sherdi_group_step), and its formula, written over the type `real` that is defined before (by
 * real.h or kernels/cpu/vector.inc.c). Included through rows.h, it gives its rows.
 * docs/adding-an-optimizer.md says more. A build has the lines of its modules (modules.txt). */
#include "sherd_build.h"

#include "kernels/updates/adam.h"
#ifdef SHERDI_MODULE_LAMB
#include "kernels/updates/lamb.h"
#endif
#ifdef SHERDI_MODULE_UPDATES
#include "kernels/updates/lion.h"
#include "kernels/updates/sgd.h"
#include "kernels/updates/adagrad.h"
#endif
#ifdef SHERDI_MODULE_MUON
#include "kernels/updates/muon.h"
#endif
