/* See saved.h. */
#include "tests/engine/saved.h"

#include "base/hash.h"
#include "offload/checksum.h"
#include "sherd_tools.h"
#include "tests/lib/check.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void saved_need_checksums(void)
{
    if (sherdi_checksum_check_built() != SHERD_OK) {
        test_skip("%s", sherd_last_error());
    }
}

void saved_open_changed(rig *r, sherd_world *world, const rig_options *options, saved_change change)
{
    static const size_t ELEMS[] = {9000, 1, 130, 5000, 700};
    rig_options         given   = *options;
    char                zero[1024];

    (void)snprintf(zero, sizeof(zero),
                   ", \"stage3_param_persistence_threshold\": 150, \"sub_group_size\": 1024%s",
                   options->zero == NULL ? "" : options->zero);
    given.zero = zero;
    rig_open(r, world, &given);
    for (int u = 0; u < 2; u++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "unit%d", u);
        (void)rig_unit(r, name);
        for (int p = 0; p < 5; p++) {
            sherd_param_params params;

            sherd_param_params_init(&params);
            params.frozen = p == 3 && change != SAVED_THAWED;
            (void)snprintf(name, sizeof(name), "unit%d.%d", u, p);
            if (change != SAVED_MISSING || u == 0 || p < 4) {
                (void)rig_param_as(r, u, name,
                                   ELEMS[p] + (change == SAVED_SHAPE && u == 0 && p == 2), &params);
            }
        }
    }
    if (change == SAVED_EXTRA) {
        (void)rig_param(r, 1, "head", 300);
    }
    CHECK_OK(sherd_engine_seal(r->engine));
}

void saved_open(rig *r, sherd_world *world, const rig_options *options)
{
    saved_open_changed(r, world, options, SAVED_SAME);
}

void saved_fill(rig *r)
{
    for (int p = 0; p < r->num_params; p++) {
        CHECK_OK(sherd_param_fill(r->engine, r->params[p].handle, rig_fill, (void *)(uintptr_t)p));
    }
}

void saved_train(rig *r, int count)
{
    sherd_engine_info info;

    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r->engine, &info));
    r->micro = info.step * info.accumulation;
    (void)rig_train(r, count * info.accumulation);
}

/* The parameters together have the fingerprint of the manifest, each in two parts. */
static void fingerprints_check(sherd_checkpoint *c)
{
    const sherd_checkpoint_info *info = sherd_checkpoint_describe(c);
    uint64_t                     sum  = 0;

    for (size_t p = 0; p < info->num_params; p++) {
        sherd_checkpoint_param param;
        uint64_t               front, behind;
        int                    is_damaged;

        sherd_checkpoint_param_init(&param);
        CHECK_OK(sherd_checkpoint_param_at(c, p, &param));
        CHECK_OK(sherd_checkpoint_fingerprint(c, param.name, "master", 0, param.elems / 2, NULL,
                                              &front));
        CHECK_OK(sherd_checkpoint_fingerprint(c, param.name, "master", param.elems / 2,
                                              param.elems - param.elems / 2, &is_damaged, &behind));
        CHECK(!is_damaged);
        sum += front + behind;
    }
    CHECK_INT(info->fingerprint, sum);
}

int64_t saved_verify(const char *dir, const char *tag)
{
    sherd_checkpoint *c;
    int64_t           step;

    CHECK_OK(sherd_checkpoint_open(dir, tag, &c));
    CHECK(sherd_checkpoint_describe(c)->is_complete);
    CHECK_OK(sherd_checkpoint_verify(c, NULL));
    fingerprints_check(c);
    step = sherd_checkpoint_describe(c)->step;
    sherd_checkpoint_close(c);
    return step;
}

const char *saved_dir(const char *name, char out[256])
{
    (void)snprintf(out, 256, "%s/%s", test_scratch(), name);
    return out;
}

int saved_left_behind(const char *dir)
{
    DIR           *folder = opendir(dir);
    struct dirent *entry;
    int            count = 0;

    CHECK(folder != NULL);
    while ((entry = readdir(folder)) != NULL) {
        count += entry->d_name[0] == '.' && strcmp(entry->d_name, ".") != 0 &&
                 strcmp(entry->d_name, "..") != 0;
    }
    (void)closedir(folder);
    return count;
}

static uint64_t file_hash(const char *path)
{
    FILE    *file = fopen(path, "rb");
    char     bytes[65536];
    uint64_t hash = 1;
    size_t   len;

    CHECK(file != NULL);
    while ((len = fread(bytes, 1, sizeof(bytes), file)) > 0) {
        hash = sherdi_hash_bytes(hash, bytes, len);
    }
    (void)fclose(file);
    return hash;
}

uint64_t saved_bytes(const char *folder)
{
    DIR           *open = opendir(folder);
    struct dirent *entry;
    uint64_t       sum = 0;

    CHECK(open != NULL);
    while ((entry = readdir(open)) != NULL) {
        char        path[1024];
        struct stat at;

        (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (lstat(path, &at) == 0 && S_ISREG(at.st_mode)) {
            sum += sherdi_hash_bytes(file_hash(path), entry->d_name, strlen(entry->d_name));
        } else if (S_ISDIR(at.st_mode) && entry->d_name[0] != '.') {
            sum += sherdi_hash_bytes(saved_bytes(path), entry->d_name, strlen(entry->d_name));
        }
    }
    (void)closedir(open);
    return sum;
}
