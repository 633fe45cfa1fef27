/* The settings of options.h, for members_list.h: it reads this file once for each of its uses. */
/* clang-format off */
SHERDI_SETTINGS_OF(sherdi_offloads_settings offload,
                   .offload = {.state          = {&sherdi_tier_device, .buffer_count = 4,
                                                  .buffer_elems = 4194304, .pin_memory = 1},
                               .params         = {&sherdi_tier_device, .buffer_count = 5,
                                                  .buffer_elems = 100000000, .pin_memory = 1},
                               .activations    = {&sherdi_tier_device, .buffer_count = 2,
                                                  .pin_memory = 1},
                               .params_in_cpu  = 1000000000,
                               .ratio          = 1,
                               .pipeline_read  = 1,
                               .pipeline_write = 1,
                               .durable        = 1},)
SHERDI_SETTINGS_OF(sherdi_lamb_settings lamb, .lamb = {.max_coeff = 10, .min_coeff = 0.01},)
SHERDI_SETTINGS_OF(sherdi_muon_settings muon, .muon = {.steps = 5},)
SHERDI_SETTINGS_OF(int copy_ranks, .copy_ranks = 1,) /* of a host, with a second copy; 1: none */
SHERDI_SETTINGS_OF(double elastic[2],) /* least and most ranks; 0: moves are not planned */
SHERDI_SETTINGS_OF(int redundancy,) /* sherdi_redundancy */
SHERDI_SETTINGS_OF(int master_encoding,) /* sherdi_master_encoding */
SHERDI_SETTINGS_OF(int moment_encoding,) /* sherdi_moment_encoding */
SHERDI_SETTINGS_OF(sherdi_checkpoint_settings checkpoint,)
SHERDI_SETTINGS_OF(sherdi_io_settings io,
                   .io = {.block_bytes = 1048576, .depth = 8, .drive_tbw = 600},)
SHERDI_SETTINGS_OF(sherdi_monitor_settings monitors[SHERDI_MONITORS],)
SHERDI_SETTINGS_OF(sherdi_watch_settings watch,)
SHERDI_SETTINGS_OF(sherdi_fingerprint_settings fingerprints,
                   .fingerprints = {.state_interval = 16},)
/* clang-format on */
