/* Prints the rates and betas of a configuration's schedule, for tests in Python that compare them
 * with the code after which they are made: print_schedule CONFIG STEPS. It prints one line for each
 * step, with the rate and both betas of each of two groups. The first group has the optimizer's
 * rate, the second half of it. */
#include "engine/config/config_impl.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    sherd_config   *config = NULL;
    sherdi_settings settings;

    if (argc != 3 || sherd_config_load(argv[1], &config) != SHERD_OK ||
        sherdi_config_resolve(config, 1, &settings) != SHERD_OK) {
        (void)fprintf(stderr, "print_schedule CONFIG STEPS: %s\n", sherd_last_error());
        sherd_config_destroy(config);
        return 1;
    }
    for (int64_t step = 1; step <= strtoll(argv[2], NULL, 10); step++) {
        for (size_t group = 0; group < 2; group++) {
            sherdi_schedule_point point    = {.group    = group,
                                              .group_lr = group == 0 ? settings.update.lr
                                                                     : settings.update.lr / 2,
                                              .step     = step};
            double                betas[2] = {settings.update.betas[0], settings.update.betas[1]};

            sherdi_schedule_betas(&settings.schedule, &point, betas);
            (void)printf("%.17g %.17g %.17g%s", sherdi_schedule_lr(&settings.schedule, &point),
                         betas[0], betas[1], group == 0 ? " " : "\n");
        }
    }
    sherd_config_destroy(config);
    return 0;
}
