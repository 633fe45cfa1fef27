/* The element-wise updates, a line each. A file has two faces. Included as it is, it gives the struct of its coefficients,
 * how they are made of a group's numbers, and its formula, over the `real` that is defined by then (real.h, or
 * kernels/cpu/vector.h). Under rows.h it gives its rows. */
#include "kernels/updates/adam.h"
#include "kernels/updates/lamb.h"
#include "kernels/updates/lion.h"
#include "kernels/updates/sgd.h"
#include "kernels/updates/adagrad.h"
#include "kernels/updates/muon.h"
