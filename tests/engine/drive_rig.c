#include "tests/engine/drive_rig.h"

#include "tests/lib/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *drive_keys(const char *more, char out[1024])
{
    (void)snprintf(out, 1024,
                   ", \"sub_group_size\": 2048, \"offload_optimizer\": {\"device\": \"nvme\","
                   " \"nvme_path\": \"%s\"%s}, \"offload_param\": {\"device\": \"nvme\","
                   " \"nvme_path\": \"%s\", \"max_in_cpu\": %s}",
                   test_scratch(), more, test_scratch(),
                   getenv("SHERD_TEST_STATE") == NULL ? "0" : "1e9");
    return out;
}

rig_options drive_options(const char *keys)
{
    return (rig_options){
        .stage = 3, .accumulation = 1, .dtype = SHERD_BF16, .clip = 1, .zero = keys, .top = ""};
}

void drive_open(rig *r, sherd_world *world, const char *more)
{
    char        keys[1024];
    rig_options options = drive_options(drive_keys(more, keys));

    rig_open(r, world, &options);
    rig_three(r, DRIVE_ELEMS);
}

sherd_status drive_step_try(rig *r, sherd_step_report *report)
{
    for (int u = 0; u < 2 * r->num_units; u++) {
        int          is_forward = u < r->num_units;
        int          unit       = is_forward ? u : 2 * r->num_units - 1 - u;
        sherd_pass   pass       = is_forward ? SHERD_FORWARD : SHERD_BACKWARD;
        sherd_status status     = sherd_unit_acquire(r->engine, r->units[unit], pass);

        if (status == SHERD_OK && !is_forward) {
            rig_touch(r, unit, 1);
        }
        if (status == SHERD_OK) {
            status = sherd_unit_release(r->engine, r->units[unit], pass);
        }
        if (status != SHERD_OK) {
            return status;
        }
    }
    sherd_step_report_init(report);
    return sherd_step(r->engine, report);
}

uint64_t drive_reference[DRIVE_STEPS];

void drive_reference_train(sherd_world *world, void *ctx)
{
    rig         r;
    rig_options options = drive_options("");

    options.top = ctx == NULL ? "" : ctx;
    rig_open(&r, world, &options);
    rig_three(&r, DRIVE_ELEMS);
    rig_seal(&r);
    drive_reference[0] = rig_fingerprint(&r);
    for (size_t step = 1; step < DRIVE_STEPS; step++) {
        drive_reference[step] = rig_train(&r, 1).fingerprint;
    }
    rig_close(&r);
}

void drive_bits_flip(void)
{
    DIR           *dir = opendir(test_scratch());
    struct dirent *entry;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        char          path[1024];
        unsigned char byte;
        off_t         at;
        int           fd;

        (void)snprintf(path, sizeof(path), "%s/%s", test_scratch(), entry->d_name);
        if (strstr(entry->d_name, ".slots-") == NULL) {
            continue;
        }
        fd = open(path, O_RDWR | O_CLOEXEC);
        CHECK(fd >= 0);
        for (at = 100; pread(fd, &byte, 1, at) == 1; at += 4096) {
            byte ^= 4;
            CHECK(pwrite(fd, &byte, 1, at) == 1);
        }
        CHECK(fsync(fd) == 0); /* before a read that bypasses the cache */
        (void)close(fd);
    }
    (void)closedir(dir);
}
