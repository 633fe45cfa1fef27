/* Groups of a configuration. */
#ifndef SHERDI_ENGINE_OPTIMIZERS_GROUPS_H
#define SHERDI_ENGINE_OPTIMIZERS_GROUPS_H

/* Entries after the last one are 0. */
#define SHERDI_MAX_GROUPS 16

/* An entry of sherd.groups. NaN, or a number below 0: the entry does not give this value. */
typedef struct sherdi_group_settings {
    char name[64];
    char matching[256]; /* patterns of parameter names, each with its NUL; an empty one ends them */
    int  optimizer;     /* number in the list of optimizers, from 1 on; 0: none is named */
    int  exclude_1d;
    double lr, betas[2], eps, weight_decay;
} sherdi_group_settings;

#endif
