/* Writes the progress line and the log. See report.h. */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Seconds between two progress lines. A terminal gets them more often, because there each
 * overwrites the one before. */
#define TERMINAL_SECONDS 0.1
#define PLAIN_SECONDS    5.0

struct report {
    report_params p;
    FILE         *log;
    int           is_terminal;
    int           is_line_open; /* a progress line that the next one overwrites */
    const char   *saving;       /* checkpoint that is saved asynchronously; NULL: none */
    int64_t       progress_ns;  /* time of the last line of report_progress */
    double        seconds;      /* of all steps so far */
    double        printed_at;   /* `seconds` at the last progress line */
    double        recent;       /* smoothed seconds of a step */
    double        recent_loss;  /* smoothed loss */
    double        validation;   /* last validation loss; NaN: none yet */
    uint64_t      last_tokens;
    long          last_step; /* the last one that the log has; 0: none, or it is not known */
};

const char *report_bytes(size_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double                   value   = (double)bytes;
    int                      unit    = 0;

    while (value >= 1024.0 && unit < 4) {
        value /= 1024.0;
        unit++;
    }
    (void)snprintf(out, 32, "%.*f %s", unit == 0 ? 0 : unit < 3 ? 1 : 2, value, units[unit]);
    return out;
}

const char *report_duration(double seconds, char out[32])
{
    long whole = seconds > 0.0 && seconds < 1e9 ? (long)(seconds + 0.5) : 0;

    if (whole >= 3600) {
        (void)snprintf(out, 32, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
    } else {
        (void)snprintf(out, 32, "%ld:%02ld", whole / 60, whole % 60);
    }
    return out;
}

/* Opens the log. A log that is continued may end inside a line, if its writer was killed. */
static FILE *log_open(const report_params *params)
{
    FILE *log  = fopen(params->log_path, params->is_appended ? "a+" : "w");
    int   last = '\n';

    if (log != NULL && params->is_appended && fseek(log, -1, SEEK_END) == 0) {
        last = getc(log);
    }
    if (log != NULL && last != '\n' && (fseek(log, 0, SEEK_END) != 0 || putc('\n', log) == EOF)) {
        (void)fclose(log);
        return NULL;
    }
    return log;
}

/* Opens the log of a process that has died: cuts off a line that is not complete, and finds the last
 * step. */
static FILE *log_take(const char *path, long *last_step_out)
{
    FILE  *log        = fopen(path, "r+");
    char  *line       = NULL;
    size_t room       = 0;
    long   end        = 0;
    int    is_cut_off = 0;

    while (log != NULL && !is_cut_off) {
        ssize_t len = getline(&line, &room, log);

        if (len <= 0) {
            break;
        }
        is_cut_off = line[len - 1] != '\n';
        end += is_cut_off ? 0 : (long)len;
        if (!is_cut_off) {
            (void)sscanf(line, "{\"step\": %ld, \"loss\"", last_step_out);
        }
    }
    free(line);
    if (log != NULL &&
        (ftruncate(fileno(log), (off_t)end) != 0 || fseek(log, end, SEEK_SET) != 0)) {
        (void)fclose(log);
        log = NULL;
    }
    return log;
}

report *report_open(const report_params *params)
{
    report *r = calloc(1, sizeof(*r));

    if (r == NULL) {
        (void)fprintf(stderr, "sherd-llm: out of memory\n");
        return NULL;
    }
    r->p = *params;
    /* Under mpirun standard output is always a terminal, of mpirun's own, wherever mpirun's output
     * goes. */
    r->is_terminal = isatty(STDOUT_FILENO) && getenv("OMPI_COMM_WORLD_SIZE") == NULL;
    r->recent      = (double)NAN;
    r->recent_loss = (double)NAN;
    r->validation  = (double)NAN;
    r->printed_at  = -1e9;
    if (params->log_path != NULL) {
        r->log = params->is_taken ? log_take(params->log_path, &r->last_step) : log_open(params);
        if (r->log == NULL) {
            (void)fprintf(stderr, "sherd-llm: %s cannot be written: %s\n", params->log_path,
                          strerror(errno));
            free(r);
            return NULL;
        }
    }
    return r;
}

void report_start_at(report *r, uint64_t tokens)
{
    r->last_tokens = tokens;
}

static int log_complain(const report *r)
{
    (void)fprintf(stderr, "sherd-llm: %s cannot be written: %s\n", r->p.log_path, strerror(errno));
    return -1;
}

static void log_number(FILE *log, const char *name, double value)
{
    if (isfinite(value)) {
        (void)fprintf(log, ", \"%s\": %.9g", name, value);
    } else {
        (void)fprintf(log, ", \"%s\": null", name);
    }
}

/* Writes the figures that depend on the layout: other ranks and stages train the same, with other
 * figures. */
static void figures_write(FILE *log, const report_figures *f)
{
    static const char *const media[REPORT_MEDIA] = {"wire",      "link_down",    "link_up",
                                                    "nvme_read", "nvme_written", "between"};
    const sherd_step_report *times               = &f->engine;

    (void)fprintf(log, ", \"figures\": {\"ranks_off_plan\": %d", f->ranks_off_plan);
    for (int i = 0; i < REPORT_MEDIA; i++) {
        (void)fprintf(log, ", \"%s_bytes\": %llu, \"%s_planned\": %llu", media[i],
                      (unsigned long long)f->counted[i], media[i],
                      (unsigned long long)f->planned[i]);
    }
    (void)fprintf(log, ", \"memory_planned\": %zu, \"memory_held\": %zu", f->memory_planned,
                  f->memory_held);
    log_number(log, "wait_gather_s", times->wait_gather_s);
    log_number(log, "wait_reduce_s", times->wait_reduce_s);
    log_number(log, "wait_read_s", times->wait_read_s);
    log_number(log, "wait_write_s", times->wait_write_s);
    log_number(log, "wait_param_s", times->wait_param_s);
    log_number(log, "step_s", times->step_s);
    log_number(log, "update_s", times->update_s);
    log_number(log, "compute_s", times->compute_s);
    log_number(log, "exposed_s", times->exposed_s);
    log_number(log, "hidden_s", times->hidden_s);
    log_number(log, "beside_s", times->beside_s);
    log_number(log, "beside_read_s", times->beside_read_s);
    log_number(log, "beside_write_s", times->beside_write_s);
    log_number(log, "wait_update_s", times->wait_update_s);
    (void)fprintf(log, "}");
}

static int log_write(FILE *log, const report_step *step)
{
    const sherd_step_report *engine = &step->figures.engine;

    (void)fprintf(log, "{\"step\": %ld", step->step);
    log_number(log, "loss", step->loss);
    log_number(log, "grad_norm", engine->grad_norm);
    log_number(log, "lr", engine->lr);
    log_number(log, "loss_scale", engine->loss_scale);
    (void)fprintf(log, ", \"tokens\": %llu", (unsigned long long)step->tokens);
    log_number(log, "seconds", step->seconds);
    (void)fprintf(log, ", \"updated\": %s", engine->was_updated ? "true" : "false");
    if (!isnan(step->validation_loss)) {
        log_number(log, "validation_loss", step->validation_loss);
    }
    (void)fprintf(log, ", \"fingerprint\": \"0x%016llx\"", (unsigned long long)engine->fingerprint);
    figures_write(log, &step->figures);
    (void)fprintf(log, "}\n");
    return fflush(log) == 0 && !ferror(log) ? 0 : -1;
}

static int is_time_to_print(const report *r, const report_step *step)
{
    if (r->p.is_quiet) {
        return 0;
    }
    if (step->step == r->p.steps || (!r->is_terminal && !isnan(step->validation_loss))) {
        return 1;
    }
    if (r->p.print_every > 0 && !r->is_terminal) {
        return step->step % r->p.print_every == 0;
    }
    return r->seconds - r->printed_at >= (r->is_terminal ? TERMINAL_SECONDS : PLAIN_SECONDS);
}

static void progress_print(report *r, const report_step *step, double rate)
{
    char memory[32], left[32], validation[32] = "", share[32] = "", saving[64] = "";

    if (!isnan(r->validation)) {
        (void)snprintf(validation, sizeof(validation), "  validation %.4f", r->validation);
    }
    if (r->p.peak_rate > 0.0) {
        (void)snprintf(share, sizeof(share), " (MFU %.1f %%)", 100.0 * rate / r->p.peak_rate);
    }
    if (r->saving != NULL) {
        (void)snprintf(saving, sizeof(saving), "  saving %s", r->saving);
    }
    printf("%sstep %ld/%ld  loss %.4f%s  %.0f tokens/s%s  %s per rank  %s left%s%s%s",
           r->is_terminal ? "\r" : "", step->step, r->p.steps, r->recent_loss, validation, rate,
           share, report_bytes(r->p.memory_bytes, memory),
           report_duration(r->recent * (double)(r->p.steps - step->step), left),
           step->figures.engine.was_updated ? "" : "  (skipped: overflow)", saving,
           r->is_terminal ? "\033[K" : "\n");
    (void)fflush(stdout);
    r->is_line_open = r->is_terminal;
    r->printed_at   = r->seconds;
}

/* Returns the moving mean after `value`; a `mean` of NaN means that `value` is the first. */
static double smooth(double mean, double value, double share)
{
    return isnan(mean) ? value : (1.0 - share) * mean + share * value;
}

int report_write(report *r, const report_step *step)
{
    double step_tokens = (double)(step->tokens - r->last_tokens);
    int    is_new      = r->last_step < step->step;

    r->seconds += step->seconds;
    r->last_tokens = step->tokens;
    r->recent      = smooth(r->recent, step->seconds, 0.1);
    r->recent_loss = smooth(r->recent_loss, step->loss, 0.2);
    if (!isnan(step->validation_loss)) {
        r->validation = step->validation_loss;
    }
    if (is_time_to_print(r, step)) {
        progress_print(r, step, step_tokens / r->recent);
    }
    r->last_step = is_new ? step->step : r->last_step;
    return r->log == NULL || !is_new || log_write(r->log, step) == 0 ? 0 : log_complain(r);
}

long report_last_step(const report *r)
{
    return r->last_step;
}

int report_close(report *r)
{
    int result = 0;

    if (r == NULL) {
        return 0;
    }
    if (r->is_line_open) {
        printf("\n");
    }
    if (r->log != NULL && fclose(r->log) != 0) {
        result = log_complain(r);
    }
    free(r);
    return result;
}

/* Ends an open progress line, before another line is written. */
static void line_end(report *r)
{
    if (r->is_line_open) {
        printf("\n");
        r->is_line_open = 0;
    }
    (void)fflush(stdout);
}

void report_say(report *r, const char *fmt, ...)
{
    va_list args;

    if (r->p.is_quiet) {
        return;
    }
    line_end(r);
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    printf("\n");
    (void)fflush(stdout);
}

void report_warn(report *r, const char *fmt, ...)
{
    va_list args;

    if (r != NULL) {
        line_end(r);
    }
    (void)fprintf(stderr, "sherd-llm: ");
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fprintf(stderr, "\n");
}

/* ---------------------------------------------------------- checkpoints -- */

void report_progress(report *r, const char *what, uint64_t done_bytes, uint64_t all_bytes)
{
    double          least_s = r->is_terminal ? TERMINAL_SECONDS : PLAIN_SECONDS;
    struct timespec now;
    int64_t         now_ns;
    char            done[32], all[32];

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (r->progress_ns == 0) {
        r->progress_ns = now_ns; /* no line at the start: a short operation gets none */
    }
    if (r->p.is_quiet || (double)(now_ns - r->progress_ns) < 1e9 * least_s) {
        return;
    }
    printf("%s%s  %s of %s%s", r->is_terminal ? "\r" : "", what,
           report_bytes((size_t)done_bytes, done), report_bytes((size_t)all_bytes, all),
           r->is_terminal ? "\033[K" : "\n");
    (void)fflush(stdout);
    r->is_line_open = r->is_terminal;
    r->progress_ns  = now_ns;
}

void report_saving(report *r, const char *tag)
{
    r->saving = tag;
}

int report_checkpoint_write(report *r, const report_checkpoint *checkpoint)
{
    r->progress_ns = 0;
    if (r->log == NULL) {
        return 0;
    }
    (void)fprintf(r->log, "{\"%s\": \"%s\", \"step\": %ld", checkpoint->what, checkpoint->tag,
                  checkpoint->step);
    if (checkpoint->failed != NULL) {
        (void)fprintf(r->log, ", \"failed\": \"%s\"}\n", checkpoint->failed);
    } else {
        (void)fprintf(r->log, ", \"bytes\": %llu, \"kept_bytes\": %llu",
                      (unsigned long long)checkpoint->bytes,
                      (unsigned long long)checkpoint->kept_bytes);
        log_number(r->log, "blocked_s", checkpoint->blocked_s);
        log_number(r->log, "seconds", checkpoint->all_s);
        (void)fprintf(r->log, "}\n");
    }
    return fflush(r->log) == 0 && !ferror(r->log) ? 0 : log_complain(r);
}

int report_resize_write(report *r, long step, const sherd_move_report *move)
{
    if (r->log == NULL) {
        return 0;
    }
    (void)fprintf(r->log,
                  "{\"resized\": %d, \"from\": %d, \"step\": %ld, "
                  "\"dropped_micro_batches\": %d, \"moved_bytes\": %llu",
                  move->new_size, move->old_size, step, move->dropped_micro_batches,
                  (unsigned long long)move->moved_bytes);
    log_number(r->log, "seconds", move->seconds);
    (void)fprintf(r->log, "}\n");
    return fflush(r->log) == 0 && !ferror(r->log) ? 0 : log_complain(r);
}

int report_loss_write(report *r, const report_loss *loss)
{
    if (r->log == NULL) {
        return 0;
    }
    (void)fprintf(r->log,
                  "{\"lost\": [%s], \"resized\": %d, \"from\": %d, \"step\": %ld, "
                  "\"dropped_micro_batches\": %d, \"moved_bytes\": %llu",
                  loss->lost, loss->after, loss->before, loss->step,
                  loss->move.dropped_micro_batches, (unsigned long long)loss->move.moved_bytes);
    log_number(r->log, "move_s", loss->move.seconds);
    log_number(r->log, "seconds", loss->all_s);
    (void)fprintf(r->log, "}\n");
    return fflush(r->log) == 0 && !ferror(r->log) ? 0 : log_complain(r);
}
