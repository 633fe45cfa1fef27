/* Saves and resumes through the public API. Each save or resume is reported to the user and to the
 * log. See saves.h. */
#include "saves.h"

#include "try.h"

#include <sherd_tools.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 4096

/* The blob in the state with the position of a run in its data. */
#define MARK_KEY   "sherd-llm"
#define MARK_BYTES 512
#define RUN_BYTES  256
#define MARK_TEXT(step, sequences, run)                                                            \
    "{\"version\": 1, \"step\": " step ", \"sequences\": " sequences ", \"run\": \"" run "\"}"

/* -------------------------------------------------------------- folders -- */

static sherd_status folder_fail(saves *s, const char *what)
{
    (void)snprintf(s->why, sizeof(s->why),
                   "--save %.700s: %s: %s; name a folder that can be written to", s->o->save_dir,
                   what, strerror(errno));
    return SHERD_E_IO;
}

/* Makes a folder and all folders above it. */
static int folder_make(const char *path)
{
    char folder[PATH_BYTES];

    for (size_t len = 1; path[len - 1] != '\0'; len++) {
        if (len >= sizeof(folder)) {
            errno = ENAMETOOLONG;
            return -1;
        }
        if (path[len] != '/' && path[len] != '\0') {
            continue;
        }
        memcpy(folder, path, len);
        folder[len] = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
            return -1;
        }
    }
    return 0;
}

/* Reads the tag that DIR/latest names; returns 0 if there is no such file. The engine checks the
 * tag when it loads. */
static int latest_read(const char *dir, char tag[SAVES_TAG_BYTES])
{
    char  path[PATH_BYTES];
    FILE *file;
    int   found;

    (void)snprintf(path, sizeof(path), "%s/latest", dir);
    file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    found = fscanf(file, "%255s", tag);
    (void)fclose(file);
    if (found != 1) {
        tag[0] = '\0';
    }
    return 1;
}

const char *saves_advice(const options *o, char out[SAVES_ADVICE_BYTES])
{
    char        tag[SAVES_TAG_BYTES] = "", latest[PATH_BYTES];
    struct stat at;

    if (o->save_dir == NULL) {
        return "--save DIR would have kept checkpoints";
    }
    (void)snprintf(latest, sizeof(latest), "%s/latest", o->save_dir);
    if (!latest_read(o->save_dir, tag) || tag[0] == '\0' || stat(latest, &at) != 0) {
        (void)snprintf(out, SAVES_ADVICE_BYTES, "there is no checkpoint in %.300s yet",
                       o->save_dir);
    } else {
        (void)snprintf(out, SAVES_ADVICE_BYTES,
                       "start again with --resume: the last checkpoint is %.300s/%.100s, %ld s old",
                       o->save_dir, tag, (long)(time(NULL) - at.st_mtime));
    }
    return out;
}

sherd_status saves_open(saves *s)
{
    const char *dir = s->o->save_dir;
    char        tag[SAVES_TAG_BYTES];
    char        latest[PATH_BYTES];
    struct stat at;

    if (dir == NULL || s->r == NULL) {
        return SHERD_OK;
    }
    if (folder_make(dir) != 0 || stat(dir, &at) != 0) {
        return folder_fail(s, "cannot be made");
    }
    errno = ENOTDIR;
    if (!S_ISDIR(at.st_mode) || access(dir, W_OK | X_OK) != 0) {
        return folder_fail(s, "cannot be written to");
    }
    (void)snprintf(latest, sizeof(latest), "%s/latest", dir);
    TRY(sherd_output_check(latest)); /* each save replaces it */
    if (!s->o->is_resumed && s->o->resume_from == NULL && latest_read(dir, tag)) {
        report_warn(s->r,
                    "%s has checkpoints of an earlier run, the latest is %s: this run starts anew "
                    "and saves in the same folder; --resume would go on from there",
                    dir, tag);
    }
    return SHERD_OK;
}

/* ----------------------------------------------------------------- reports -- */

int saves_is_hearsay(const char *why)
{
    return strstr(why, "its own sherd_last_error() says more") != NULL;
}

/* Writes " (12.3 MiB/s)"; or "" if links were made instead of written data, because then there is
 * no rate. */
static const char *rate_text(double bytes, double seconds, uint64_t kept_bytes, char out[64])
{
    char size[32];

    out[0] = '\0';
    if (kept_bytes == 0 && seconds > 0.0) {
        (void)snprintf(out, 64, " (%s/s)", report_bytes((size_t)(bytes / seconds), size));
    }
    return out;
}

/* Measures the last save or load: the bytes of all ranks together, the times of rank 0. */
static sherd_status checkpoint_measure(const saves *s, report_checkpoint *out)
{
    sherd_checkpoint_report one;
    double                  sums[2];

    sherd_checkpoint_report_init(&one);
    TRY(sherd_checkpoint_query(s->engine, &one));
    sums[0] = (double)one.bytes;
    sums[1] = (double)one.kept_bytes;
    TRY(sherd_world_sum_f64(s->world, sums, 2));
    out->bytes      = (uint64_t)sums[0];
    out->kept_bytes = (uint64_t)sums[1];
    out->blocked_s  = one.blocked_s;
    out->all_s      = one.all_s;
    return SHERD_OK;
}

static sherd_status saved_report(saves *s)
{
    report_checkpoint line = {.what = "checkpoint", .tag = s->tag, .step = s->step};
    char              size[32], rate[64], kept[64] = "";

    TRY(checkpoint_measure(s, &line));
    s->is_complete = 1;
    s->count++;
    s->bytes      = line.bytes;
    s->kept_bytes = line.kept_bytes;
    s->written_bytes += (double)line.bytes;
    s->all_s += line.all_s;
    s->blocked_s += line.blocked_s;
    if (s->r == NULL) {
        return SHERD_OK;
    }
    if (line.kept_bytes > 0) {
        (void)snprintf(kept, sizeof(kept), " and %s kept by links",
                       report_bytes((size_t)line.kept_bytes, rate));
    }
    report_say(s->r, "saved %s: %s%s in %.2f s%s, training stood still for %.2f s", s->tag,
               report_bytes((size_t)line.bytes, size), kept, line.all_s,
               rate_text((double)line.bytes, line.all_s, line.kept_bytes, rate), line.blocked_s);
    return report_checkpoint_write(s->r, &line) == 0 ? SHERD_OK : SHERD_E_IO;
}

/* Chooses the rank that reports a failure: the lowest rank that knows more than that another rank
 * failed; rank 0 if there is none. Collective. */
static sherd_status is_teller_find(const saves *s, const char *why, int *out)
{
    size_t       world_size = (size_t)sherd_world_size(s->world);
    size_t       rank       = (size_t)sherd_world_rank(s->world);
    double      *knows      = calloc(world_size, sizeof(*knows));
    size_t       first      = 0;
    sherd_status status;

    if (knows == NULL) {
        return SHERD_E_NOMEM;
    }
    knows[rank] = !saves_is_hearsay(why);
    status      = sherd_world_sum_f64(s->world, knows, world_size);
    while (first + 1 < world_size && knows[first] == 0) {
        first++;
    }
    *out = knows[first] != 0 ? rank == first : rank == 0;
    free(knows);
    return status;
}

/* Reports a save that failed. Lost ranks and devices end the training; other failures of a save do
 * not. */
static sherd_status failure_report(const saves *s, sherd_status status)
{
    report_checkpoint line = {
        .what = "checkpoint", .tag = s->tag, .step = s->step, .failed = sherd_status_name(status)};
    char why[1024];
    int  is_teller;

    if (status == SHERD_E_PEER_LOST || status == SHERD_E_DEVICE) {
        return status;
    }
    (void)snprintf(why, sizeof(why), "%s", sherd_last_error());
    TRY(is_teller_find(s, why, &is_teller));
    if (is_teller) {
        report_warn(s->r, "rank %d: %s is not saved: %s; training goes on",
                    sherd_world_rank(s->world), s->tag, why);
    }
    return s->r == NULL || report_checkpoint_write(s->r, &line) == 0 ? SHERD_OK : SHERD_E_IO;
}

static sherd_status log_checked(saves *s, sherd_status status)
{
    if (status == SHERD_E_IO) {
        (void)snprintf(s->why, sizeof(s->why), "the log cannot be written");
    }
    return status;
}

static void progress_show(void *ctx, uint64_t done_bytes, uint64_t all_bytes)
{
    saves *s = ctx;

    report_progress(s->r, s->tag, done_bytes, all_bytes);
}

/* --------------------------------------------------------------- saving -- */

/* Reports how the last save ended. */
static sherd_status outcome_report(saves *s, sherd_status status)
{
    s->is_running = 0;
    if (s->r != NULL) {
        report_saving(s->r, NULL);
    }
    return log_checked(s, status == SHERD_OK ? saved_report(s) : failure_report(s, status));
}

sherd_status saves_settle(saves *s)
{
    return s->is_running ? outcome_report(s, sherd_checkpoint_wait(s->engine, NULL)) : SHERD_OK;
}

void saves_drop(saves *s)
{
    if (s->is_running && s->r != NULL) {
        report_saving(s->r, NULL);
        report_warn(s->r, "%s is not saved: a rank was lost; training goes on", s->tag);
    }
    s->is_running = 0;
}

static sherd_status is_running_find(saves *s)
{
    sherd_checkpoint_report now;

    sherd_checkpoint_report_init(&now);
    TRY(sherd_checkpoint_query(s->engine, &now));
    s->is_running = now.is_running;
    return SHERD_OK;
}

static sherd_status save(saves *s, const saves_position *position)
{
    sherd_save_params params;
    sherd_status      status;

    TRY(saves_settle(s));
    sherd_save_params_init(&params);
    params.keep_last    = s->o->keep;
    params.progress     = s->r != NULL ? progress_show : NULL;
    params.progress_ctx = s;
    s->step             = position->step;
    s->is_complete      = 0;
    (void)snprintf(s->tag, sizeof(s->tag), "step-%06ld", position->step);
    status = sherd_checkpoint_save(s->engine, s->o->save_dir, s->tag, &params);
    if (status == SHERD_OK) {
        TRY(is_running_find(s));
    }
    if (s->is_running && s->r != NULL) {
        report_saving(s->r, s->tag);
    }
    return s->is_running ? SHERD_OK : outcome_report(s, status);
}

int saves_is_due(const saves *s, long step)
{
    return s->engine != NULL && s->o->save_dir != NULL &&
           (s->is_running || (s->o->save_every > 0 && step % s->o->save_every == 0));
}

sherd_status saves_step(saves *s, const saves_position *position, int is_last)
{
    long every = s->o->save_every;

    if (s->o->save_dir == NULL) {
        return SHERD_OK;
    }
    if (s->is_running) {
        TRY(is_running_find(s));
        TRY(s->is_running ? SHERD_OK : outcome_report(s, sherd_checkpoint_wait(s->engine, NULL)));
    }
    if (is_last || (every > 0 && position->step % every == 0)) {
        TRY(save(s, position));
    }
    return is_last ? saves_settle(s) : SHERD_OK;
}

sherd_status saves_mark(saves *s, const saves_position *position)
{
    char text[MARK_BYTES];
    int  len = snprintf(text, sizeof(text), MARK_TEXT("%ld", "%llu", "%.255s"), position->step,
                        (unsigned long long)position->sequences, s->run);

    if (s->engine == NULL) {
        return SHERD_OK;
    }
    return sherd_blob_set(s->engine, MARK_KEY, text, (size_t)len, NULL);
}

int saves_has(const saves *s, long step)
{
    return s->is_complete && s->step == step;
}

void saves_say(const saves *s)
{
    char size[32], rate[64];

    if (s->count == 0) {
        return;
    }
    report_say(
        s->r,
        "%ld checkpoint%s saved in %s, the last is %s of %s%s; training stood still for %.2f s",
        s->count, s->count == 1 ? "" : "s", s->o->save_dir, s->tag,
        report_bytes((size_t)(s->bytes + s->kept_bytes), size),
        rate_text(s->written_bytes, s->all_s, s->kept_bytes, rate), s->blocked_s);
}

/* ------------------------------------------------------------- resuming -- */

/* Reads the position that came with the state, and of which run it is. If another program saved the
 * state, `position` does not change. */
static sherd_status mark_read(saves *s, saves_position *position, char run[RUN_BYTES])
{
    char               text[MARK_BYTES] = "";
    size_t             len              = sizeof(text) - 1;
    unsigned long long sequences;
    long               step;

    (void)snprintf(run, RUN_BYTES, "%s", s->run);
    if (sherd_blob_get(s->engine, MARK_KEY, NULL, &len, NULL) != SHERD_OK) {
        return SHERD_OK;
    }
    if (len < sizeof(text)) {
        TRY(sherd_blob_get(s->engine, MARK_KEY, text, &len, NULL));
    }
    if (sscanf(text, MARK_TEXT("%ld", "%llu", "%255[^\"]"), &step, &sequences, run) != 3) {
        (void)snprintf(s->why, sizeof(s->why),
                       "%s was saved by another version of this program, which stores the position "
                       "in the data otherwise; use that one",
                       s->tag[0] != '\0' ? s->tag : "the state on NVMe");
        return SHERD_E_INVAL;
    }
    *position = (saves_position){.step = step, .sequences = sequences};
    return SHERD_OK;
}

sherd_status saves_mark_read(saves *s, saves_position *position)
{
    char run[RUN_BYTES];

    return mark_read(s, position, run);
}

/* Finds the position of what was just loaded. If nobody has marked one, the engine's count of
 * updates stands for the steps. */
static sherd_status position_find(saves *s, saves_position *position)
{
    sherd_engine_info info;
    char              run[RUN_BYTES];

    sherd_engine_info_init(&info);
    TRY(sherd_engine_query(s->engine, &info));
    position->step      = (long)info.step;
    position->sequences = (uint64_t)info.samples;
    TRY(mark_read(s, position, run));
    if (s->r != NULL && strcmp(run, s->run) != 0) {
        report_warn(s->r,
                    "%s is of a run with %s; this one has %s: it goes on otherwise than that one "
                    "would have",
                    s->tag, run, s->run);
    }
    return SHERD_OK;
}

/* Loads a checkpoint. `tag` NULL: the latest, whose tag is already in `s->tag`. */
static sherd_status load(saves *s, const char *dir, const char *tag, saves_position *position)
{
    sherd_load_params params;
    report_checkpoint line = {.what = "resumed", .tag = s->tag};
    char              size[32], rate[64];

    sherd_load_params_init(&params);
    params.progress     = s->r != NULL ? progress_show : NULL;
    params.progress_ctx = s;
    TRY(sherd_blob_set(s->engine, MARK_KEY, NULL, 0, NULL)); /* drops the mark of state on NVMe */
    TRY(sherd_checkpoint_load(s->engine, dir, tag, &params));
    TRY(position_find(s, position));
    TRY(checkpoint_measure(s, &line));
    line.step = position->step;
    if (s->r == NULL) {
        return SHERD_OK;
    }
    report_say(s->r, "goes on from step %ld of %s/%s: %s in %.2f s%s", position->step, dir, s->tag,
               report_bytes((size_t)line.bytes, size), line.all_s,
               rate_text((double)line.bytes, line.all_s, 0, rate));
    return log_checked(s, report_checkpoint_write(s->r, &line) == 0 ? SHERD_OK : SHERD_E_IO);
}

static int is_checkpoint(const char *folder)
{
    char path[PATH_BYTES];

    (void)snprintf(path, sizeof(path), "%s/manifest.json", folder);
    return access(path, F_OK) == 0;
}

/* Loads the checkpoint FOLDER, which is DIR/TAG. */
static sherd_status load_from(saves *s, const char *folder, saves_position *position)
{
    char   dir[PATH_BYTES];
    size_t end = strlen(folder), start;

    while (end > 1 && folder[end - 1] == '/') {
        end--;
    }
    for (start = end; start > 0 && folder[start - 1] != '/';) {
        start--;
    }
    if (start >= sizeof(dir) || end - start >= sizeof(s->tag)) {
        (void)snprintf(s->why, sizeof(s->why), "--resume-from names too long a path");
        return SHERD_E_INVAL;
    }
    (void)snprintf(s->tag, sizeof(s->tag), "%.*s", (int)(end - start), folder + start);
    (void)snprintf(dir, sizeof(dir), "%.*s", (int)start, folder);
    while (start > 1 && dir[start - 1] == '/') {
        dir[--start] = '\0';
    }
    if (s->r != NULL && !is_checkpoint(folder)) {
        (void)snprintf(s->why, sizeof(s->why),
                       "--resume-from %.700s: no checkpoint is there; name a folder that has a "
                       "manifest.json, or the one above it with --save and --resume",
                       folder);
        return SHERD_E_IO;
    }
    return load(s, start == 0 ? "." : dir, s->tag, position);
}

/* Sets `s->tag` on all ranks to the latest checkpoint that rank 0 finds in the folder of --save;
 * "": none. */
static sherd_status latest_find(saves *s)
{
    struct {
        int  is_there;
        char tag[SAVES_TAG_BYTES];
    } found = {0};

    if (s->r != NULL) {
        found.is_there = latest_read(s->o->save_dir, found.tag);
    }
    TRY(sherd_world_broadcast(s->world, &found, sizeof(found), 0));
    (void)snprintf(s->tag, sizeof(s->tag), "%s",
                   found.is_there && found.tag[0] == '\0' ? "latest" : found.tag);
    return SHERD_OK;
}

/* Returns whether to continue from state on NVMe. If it is as far as the latest checkpoint, nothing
 * is lost and the checkpoint need not be read. State that was trained with another seed or other
 * data may belong to another run; in this case the checkpoint counts. */
static int state_is_further(const saves *s, const sherd_engine_info *info, long step)
{
    long saved;

    return info->is_resumed &&
           (s->tag[0] == '\0' || (info->resume_differs[0] == '\0' &&
                                  sscanf(s->tag, "step-%ld", &saved) == 1 && step >= saved));
}

static void anew_say(const saves *s)
{
    if (s->r != NULL && s->o->save_dir != NULL) {
        report_warn(
            s->r, "--resume finds no checkpoint in %s and no state on NVMe that fits: starts anew",
            s->o->save_dir);
    } else if (s->r != NULL) {
        report_warn(s->r,
                    "--resume finds no state that fits this model, configuration and number of "
                    "ranks: starts anew; checkpoints (--save DIR) fit any number");
    }
}

sherd_status saves_resume(saves *s, saves_position *position, int *is_loaded_out)
{
    sherd_engine_info info;
    char run[RUN_BYTES]; /* not compared here: the engine reports how NVMe state differs */

    *is_loaded_out = 0;
    sherd_engine_info_init(&info);
    TRY(sherd_engine_query(s->engine, &info));
    TRY(mark_read(s, position, run));
    if (s->o->resume_from != NULL) {
        *is_loaded_out = 1;
        return load_from(s, s->o->resume_from, position);
    }
    if (s->o->is_resumed && s->o->save_dir != NULL) {
        TRY(latest_find(s));
    }
    if (state_is_further(s, &info, position->step)) {
        if (s->r != NULL) {
            report_say(s->r, "goes on from step %ld of run %016llx", position->step,
                       (unsigned long long)info.state_run);
        }
    } else if (s->tag[0] != '\0') {
        *is_loaded_out = 1;
        return load(s, s->o->save_dir, NULL, position);
    } else if (s->o->is_resumed) {
        anew_say(s);
    }
    return SHERD_OK;
}
