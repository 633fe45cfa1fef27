/* See offload_peer.h. */
#include "bench/offload_peer.h"

#include "base/clock.h"
#include "models/process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WATCH_MS 20
#define PRINT_S  10.0

/* ----------------------------------------------------------------- memory -- */

/* Pages of a process, those shared with others in equal parts; 0: not known. */
static size_t pss_bytes(pid_t process)
{
    char   path[64];
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)process);
    process_lines_add(path, (const char *const[]){"Pss"}, (size_t *const[]){&bytes}, 1);
    return bytes;
}

int offload_peak_watch(pid_t process, int fd, double limit_s, const char *what, size_t *peak_out)
{
    struct pollfd wanted    = {.fd = fd, .events = POLLIN};
    int64_t       start_ns  = sherdi_now_ns();
    double        printed_s = 0.0;
    size_t        peak      = 0;

    do {
        double passed_s = (double)(sherdi_now_ns() - start_ns) * 1e-9;
        size_t bytes    = peak_out != NULL ? pss_bytes(process) : 0;

        peak = bytes > peak ? bytes : peak;
        if (passed_s > limit_s) {
            return -1;
        }
        if (what != NULL && passed_s - printed_s >= PRINT_S) {
            printed_s = passed_s;
            (void)fprintf(stderr, "\r%s: %.0f s", what, passed_s);
        }
    } while (poll(&wanted, 1, WATCH_MS) == 0);
    if (peak_out != NULL) {
        *peak_out = peak;
    }
    return 0;
}

/* ------------------------------------------------------------------ start -- */

static int port_free(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t          len     = sizeof(address);
    int                probe   = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (probe < 0 || bind(probe, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        getsockname(probe, (struct sockaddr *)&address, &len) != 0) {
        address.sin_port = 0;
    }
    if (probe >= 0) {
        (void)close(probe);
    }
    return ntohs(address.sin_port);
}

static void number_set(const char *name, int value)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%d", value);
    (void)setenv(name, text, 1);
}

/* As torchrun sets it; the tools that compile for DeepSpeed are in the interpreter's folder. */
static void environment_set(const offload_peer_params *p)
{
    const char *slash = strrchr(p->python, '/'), *path = getenv("PATH");
    char        text[4096];

    if (slash != NULL) {
        (void)snprintf(text, sizeof(text), "%.*s:%s", (int)(slash - p->python), p->python,
                       path != NULL ? path : "/usr/bin:/bin");
        (void)setenv("PATH", text, 1);
    }
    number_set("RANK", 0);
    number_set("LOCAL_RANK", 0);
    number_set("WORLD_SIZE", 1);
    number_set("LOCAL_SIZE", 1);
    number_set("MASTER_PORT", port_free());
    number_set("OMP_NUM_THREADS", p->threads);
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
}

static _Noreturn void peer_run(const offload_peer_params *p, const char *folder)
{
    char        text[9][32];
    const char *words[40] = {p->python,     BENCH_TRAINER_PEERS,
                             "--serve",     "deepspeed",
                             "--stage",     "3",
                             "--clip",      "1.0",
                             "--precision", p->precision,
                             "--offload",   "nvme",
                             "--nvme-path", folder};
    const struct {
        const char *name;
        size_t      value;
    } sizes[]    = {{"--layers", p->sizes.layers},
                    {"--width", p->sizes.hidden},
                    {"--heads", p->sizes.heads},
                    {"--vocab", p->sizes.vocab},
                    {"--batch", p->batch},
                    {"--length", p->length},
                    {"--threads", (size_t)p->threads},
                    {"--started", (size_t)time(NULL)}};
    size_t count = 14;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        (void)snprintf(text[i], sizeof(text[i]), "%zu", sizes[i].value);
        words[count++] = sizes[i].name;
        words[count++] = text[i];
    }
    environment_set(p);
    (void)execvp(words[0], (char *const *)(uintptr_t)words);
    (void)fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
    _exit(127);
}

/* The end of its output, after the reason. */
static void left_out_say(const offload_peer *peer, const char *why)
{
    char   text[1024] = "";
    size_t len;

    if (fseek(peer->said, -(long)sizeof(text) + 1, SEEK_END) != 0) {
        rewind(peer->said);
    }
    len       = fread(text, 1, sizeof(text) - 1, peer->said);
    text[len] = '\0';
    (void)fprintf(stderr, "\nbench-offload: DeepSpeed is left out: %s: %s\n", why, text);
}

/* Its answer is a line; -1: there is none in time. */
static int answer_read(offload_peer *peer, const char *what, size_t *peak_out, char *line,
                       size_t line_bytes)
{
    size_t  len = 0;
    ssize_t got = 0;

    while (len + 1 < line_bytes && (len == 0 || line[len - 1] != '\n')) {
        if (offload_peak_watch(peer->process, peer->from, peer->limit_s, what,
                               len == 0 ? peak_out : NULL) != 0) {
            return -1;
        }
        got = read(peer->from, line + len, line_bytes - 1 - len);
        if (got <= 0) {
            return -1;
        }
        len += (size_t)got;
    }
    line[len] = '\0';
    return 0;
}

static double steps_ask(offload_peer *peer, const char *what, size_t count, size_t *peak_out)
{
    static const char KEY[] = "\"seconds\": [";
    char              line[4096];
    const char       *at;
    char             *end;
    double            sum = 0.0;

    (void)fprintf(peer->to, "step %zu\n", count);
    (void)fflush(peer->to);
    if (answer_read(peer, what, peak_out, line, sizeof(line)) != 0) {
        return -1.0;
    }
    at = strstr(line, KEY);
    if (at == NULL) {
        return -1.0;
    }
    at += sizeof(KEY) - 1;
    for (size_t i = 0; i < count; i++) {
        sum += strtod(at, &end);
        at = end + 1;
    }
    return sum / (double)count;
}

static int process_start(const offload_peer_params *params, offload_peer *out)
{
    int to[2], from[2];

    out->limit_s = params->limit_s;
    out->said    = tmpfile();
    (void)snprintf(out->folder, sizeof(out->folder), "%s/deepspeed.XXXXXX", params->folder);
    if (out->said == NULL || mkdtemp(out->folder) == NULL || pipe2(to, O_CLOEXEC) != 0 ||
        pipe2(from, O_CLOEXEC) != 0) {
        return -1;
    }
    (void)fflush(NULL);
    out->process = fork();
    if (out->process == 0) {
        (void)dup2(to[0], STDIN_FILENO);
        (void)dup2(from[1], STDOUT_FILENO);
        (void)dup2(fileno(out->said), STDERR_FILENO);
        peer_run(params, out->folder);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    out->to   = fdopen(to[1], "w");
    out->from = from[0];
    return out->process < 0 || out->to == NULL ? -1 : 0;
}

/* As Ctrl-C does: a script that is killed while it compiles leaves a lock that the next one waits
 * for. */
static void process_end(const offload_peer *peer)
{
    struct pollfd ended = {.fd = peer->from};

    (void)kill(peer->process, SIGINT);
    for (int tries = 0; tries < 500 && poll(&ended, 1, WATCH_MS) == 0; tries++) {
    }
    (void)kill(peer->process, SIGKILL);
}

int offload_peer_start(const offload_peer_params *params, offload_peer *out)
{
    char line[4096];

    *out = (offload_peer){.process = 0};
    if (process_start(params, out) != 0) {
        (void)fprintf(stderr, "bench-offload: DeepSpeed is left out: %s\n", strerror(errno));
        return -1;
    }
    if (answer_read(out, "DeepSpeed starts", NULL, line, sizeof(line)) != 0 ||
        steps_ask(out, "DeepSpeed's first step", 1, NULL) < 0.0 ||
        steps_ask(out, "DeepSpeed's second step", 1, NULL) < 0.0) {
        left_out_say(out, "it ended, or was not ready in time");
        process_end(out);
        offload_peer_stop(out);
        return -1;
    }
    return 0;
}

double offload_peer_turn(offload_peer *peer, size_t count, size_t *peak_out)
{
    double seconds = steps_ask(peer, NULL, count, peak_out);

    if (seconds < 0.0) {
        left_out_say(peer, "it ended in a step");
    }
    return seconds;
}

static int path_remove(const char *path, const struct stat *stat, int kind, struct FTW *walk)
{
    (void)stat;
    (void)kind;
    (void)walk;
    return remove(path);
}

void offload_peer_stop(offload_peer *peer)
{
    (void)fclose(peer->to);
    (void)close(peer->from);
    (void)waitpid(peer->process, NULL, 0);
    (void)fclose(peer->said);
    (void)nftw(peer->folder, path_remove, 16, FTW_DEPTH | FTW_PHYS);
}
