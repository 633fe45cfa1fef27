/* sherd launch on several hosts: reads their list, and starts the ranks there through ssh, mpirun
 * or srun. See launch.h. */
#include "cli/launch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

extern char **environ;

/* ---- the list ---- */

/* Adds a host. Returns 0, or -1 after it has printed what is wrong. */
static int host_add(launch *job, const char *name, size_t len, long ranks)
{
    launch_host *more;

    if (len == 0 || len >= sizeof(more->name) || name[0] == '-' || ranks < 1 ||
        ranks > LAUNCH_MOST_RANKS || job->num_hosts == LAUNCH_MOST_RANKS) {
        (void)cli_bad("launch", "'%.*s' is not a host and its number of ranks, such as node1:8",
                      (int)len, name);
        return -1;
    }
    more = realloc(job->hosts, (size_t)(job->num_hosts + 1) * sizeof(*more));
    if (more == NULL) {
        (void)fprintf(stderr, "sherd: no memory for the hosts\n");
        return -1;
    }
    job->hosts = more;
    (void)snprintf(more[job->num_hosts].name, sizeof(more->name), "%.*s", (int)len, name);
    more[job->num_hosts++].ranks = (int)ranks;
    return 0;
}

/* Reads "a" or "a:8"; a host without a number has one rank. *has_number_out: it has one. */
static int named_add(launch *job, const char *text, int *has_number_out)
{
    const char *colon = strchr(text, ':');
    int         ranks = 1;

    *has_number_out = colon != NULL;
    if (colon != NULL && !cli_number_read(colon + 1, 1, LAUNCH_MOST_RANKS, &ranks)) {
        ranks = 0;
    }
    return host_add(job, text, colon == NULL ? strlen(text) : (size_t)(colon - text), ranks);
}

/* Reads "a:8,b:8". */
static int hosts_split(launch *job)
{
    char *text   = strdup(job->hosts_text);
    int   status = text == NULL ? -1 : 0;

    for (char *at = text, *end; status == 0 && at != NULL; at = end) {
        int has_number;

        end = strchr(at, ',');
        if (end != NULL) {
            *end++ = '\0';
        }
        status = named_add(job, at, &has_number);
    }
    free(text);
    return status;
}

/* Reads a line of a hostfile: "node1 slots=8", or "node1:8", or "node1"; # begins a comment. Other
 * programs also write max_slots, which is no number of ranks to start. */
static int line_take(launch *job, char *line)
{
    static const char SPACES[] = " \t\r\n";
    char             *rest;
    char             *word;
    int               has_number;

    line[strcspn(line, "#")] = '\0';
    word                     = strtok_r(line, SPACES, &rest);
    if (word == NULL) {
        return 0;
    }
    if (named_add(job, word, &has_number) != 0) {
        return -1;
    }
    while ((word = strtok_r(NULL, SPACES, &rest)) != NULL) {
        if (strncmp(word, "max_slots=", 10) == 0 || strncmp(word, "max-slots=", 10) == 0) {
            continue;
        }
        if (has_number || strncmp(word, "slots=", 6) != 0 ||
            !cli_number_read(word + 6, 1, LAUNCH_MOST_RANKS,
                             &job->hosts[job->num_hosts - 1].ranks)) {
            (void)fprintf(stderr,
                          "sherd: launch: '%s' does not belong into a line of a host; a line is "
                          "such as 'node1 slots=8' or 'node1:8'\n",
                          word);
            return -1;
        }
        has_number = 1;
    }
    return 0;
}

static int hostfile_read(launch *job)
{
    FILE  *file   = fopen(job->hostfile, "re");
    int    status = 0;
    int    number = 0;
    char  *line   = NULL;
    size_t bytes  = 0;

    if (file == NULL) {
        (void)fprintf(stderr, "sherd: %s cannot be read: %s\n", job->hostfile, strerror(errno));
        return -1;
    }
    while (status == 0 && getline(&line, &bytes, file) >= 0) {
        int has_mark = number++ == 0 && strncmp(line, "\xef\xbb\xbf", 3) == 0; /* of UTF-8 */

        status = line_take(job, line + (has_mark ? 3 : 0));
    }
    free(line);
    (void)fclose(file);
    if (status != 0) {
        (void)fprintf(stderr, "sherd: that is line %d of %s\n", number, job->hostfile);
    } else if (job->num_hosts == 0) {
        (void)fprintf(stderr, "sherd: %s names no host\n", job->hostfile);
        return -1;
    }
    return status;
}

/* With -n the job has fewer ranks than the hosts have room for: the first hosts are filled. */
static int ranks_count(launch *job)
{
    int room = 0;

    for (int h = 0; h < job->num_hosts; h++) {
        int left = job->ranks == 0 ? job->hosts[h].ranks : job->ranks - room;

        job->hosts[h].ranks = job->hosts[h].ranks < left ? job->hosts[h].ranks : left;
        room += job->hosts[h].ranks;
        if (room == job->ranks) {
            job->num_hosts = h + 1;
        }
    }
    if (job->ranks > room) {
        return cli_bad("launch", "the hosts have room for %d ranks, not for %d", room, job->ranks);
    }
    job->all_ranks = room;
    return 0;
}

/* ---- command lines ---- */

#define MOST_WORDS 4096

/* A command that grows word by word; the words are its own. */
typedef struct command_line {
    char *words[MOST_WORDS + 1];
    int   count;
} command_line;

static void word_add(command_line *line, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void word_add(command_line *line, const char *fmt, ...)
{
    va_list args;
    char   *word = NULL;

    va_start(args, fmt);
    if (line->count < MOST_WORDS && vasprintf(&word, fmt, args) >= 0) {
        line->words[line->count++] = word;
    }
    va_end(args);
    line->words[line->count] = NULL;
}

static void words_add(command_line *line, char **words)
{
    for (; *words != NULL; words++) {
        word_add(line, "%s", *words);
    }
}

/* Adds the words of --starter-args, which spaces separate. */
static void given_add(command_line *line, const launch *job)
{
    for (const char *at = job->starter_args == NULL ? "" : job->starter_args; *at != '\0';) {
        size_t len = strcspn(at, " ");

        if (len > 0) {
            word_add(line, "%.*s", (int)len, at);
        }
        at += len + (at[len] == ' ');
    }
}

static void line_free(command_line *line)
{
    for (int i = 0; i < line->count; i++) {
        free(line->words[i]);
    }
    line->count = 0;
}

/* Writes a word as a shell reads it. */
static void quoted_write(FILE *out, const char *word)
{
    if (word[0] != '\0' &&
        word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                          "_-+=:,./@%")] == '\0') {
        (void)fputs(word, out);
        return;
    }
    (void)fputc('\'', out);
    for (; *word != '\0'; word++) {
        (void)fprintf(out, *word == '\'' ? "'\\''" : "%c", *word);
    }
    (void)fputc('\'', out);
}

static void line_write(FILE *out, const command_line *line)
{
    for (int i = 0; i < line->count; i++) {
        (void)fputs(i == 0 ? "" : " ", out);
        quoted_write(out, line->words[i]);
    }
}

/* Whether the ranks get a variable of this process, on any host. The secret is not on a command
 * line. */
static int is_passed_on(const char *variable)
{
    static const char *const NAMES[] = {"SHERD_",          "OMP_",        "OPENBLAS_",
                                        "NCCL_",           "PYTHONPATH=", "CUDA_VISIBLE_DEVICES=",
                                        "LD_LIBRARY_PATH="};
    static const char *const NOT[]   = {
          "SHERD_JOB_SECRET=", "SHERD_RANK=", "SHERD_WORLD_SIZE=", "SHERD_RENDEZVOUS=", "SHERD_SSH="};

    for (size_t i = 0; i < sizeof(NOT) / sizeof(NOT[0]); i++) {
        if (strncmp(variable, NOT[i], strlen(NOT[i])) == 0) {
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        if (strncmp(variable, NAMES[i], strlen(NAMES[i])) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Returns the path of this command. */
static const char *own_path(void)
{
    static char path[4096];
    ssize_t     len = readlink("/proc/self/exe", path, sizeof(path) - 1);

    path[len > 0 ? len : 0] = '\0';
    return len > 0 ? path : "sherd";
}

/* ---- ssh ---- */

/* Returns the name of a host without the user's, which only ssh gets. */
static const char *host_of(const char *name)
{
    const char *at = strrchr(name, '@');

    return at == NULL ? name : at + 1;
}

/* Whether no ssh is needed: as the same user on this host. */
static int is_this_host(const char *name)
{
    char own[128] = "";

    (void)gethostname(own, sizeof(own) - 1);
    return strcmp(name, "localhost") == 0 || strcmp(name, own) == 0;
}

/* Returns a port that is free on this host; or, where rank 0 is on another one, one that probably
 * is. */
static int port_choose(const launch *job)
{
    struct sockaddr_in at    = {.sin_family = AF_INET};
    socklen_t          bytes = sizeof(at);
    uint16_t           drawn = 0;
    int                fd;

    if (!is_this_host(host_of(job->hosts[0].name))) {
        (void)getrandom(&drawn, sizeof(drawn), 0);
        return 20000 + drawn % 10000;
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 &&
        getsockname(fd, (struct sockaddr *)&at, &bytes) == 0) {
        drawn = ntohs(at.sin_port);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return drawn == 0 ? 29600 : drawn;
}

/* Makes the command that runs on a host: this one, in this folder, with the variables. */
static void part_line(command_line *line, const launch *job, int host, int first)
{
    char folder[4096];

    word_add(line, "env");
    word_add(line, "-C");
    word_add(line, "%s", getcwd(folder, sizeof(folder)) == NULL ? "/" : folder);
    for (char **variable = environ; *variable != NULL; variable++) {
        if (is_passed_on(*variable)) {
            word_add(line, "%s", *variable);
        }
    }
    word_add(line, "%s", own_path());
    word_add(line, "launch");
    word_add(line, "--part");
    word_add(line, "%d:%d:%d", first, job->hosts[host].ranks, job->all_ranks);
    word_add(line, "--meeting");
    word_add(line, "tcp://%s:%d", host_of(job->hosts[0].name), job->port);
    word_add(line, "--grace");
    word_add(line, "%d", job->grace_s);
    word_add(line, "--");
    words_add(line, job->program);
}

/* Makes the command that starts a part: through ssh, whose other end reads one text as a shell. */
static void ssh_line(command_line *line, const launch *job, int host, int first)
{
    static command_line part;
    char               *text = NULL;
    size_t              len  = 0;
    FILE               *out;

    if (is_this_host(job->hosts[host].name)) {
        part_line(line, job, host, first);
        return;
    }
    word_add(line, "%s", getenv("SHERD_SSH") == NULL ? "ssh" : getenv("SHERD_SSH"));
    given_add(line, job);
    word_add(line, "%s", job->hosts[host].name);
    part_line(&part, job, host, first);
    out = open_memstream(&text, &len);
    if (out != NULL) {
        line_write(out, &part);
        (void)fclose(out);
        word_add(line, "%s", text);
    }
    free(text);
    line_free(&part);
}

/* Returns the secret of the job: the user's, or one that is drawn. */
static const char *secret_take(void)
{
    static char   secret[33];
    unsigned char drawn[16];

    if (getenv("SHERD_JOB_SECRET") != NULL) {
        return getenv("SHERD_JOB_SECRET");
    }
    if (getrandom(drawn, sizeof(drawn), 0) != (ssize_t)sizeof(drawn)) {
        return "";
    }
    for (size_t i = 0; i < sizeof(drawn); i++) {
        (void)snprintf(secret + 2 * i, 3, "%02x", drawn[i]);
    }
    return secret;
}

/* Starts a part on each host. */
static int parts_start(launch *job, const sigset_t *before)
{
    static command_line line;
    const char         *secret = secret_take();
    int                 first  = 0;

    job->port = job->port == 0 ? port_choose(job) : job->port;
    for (int h = 0; h < job->num_hosts; h++) {
        int status = 0;

        ssh_line(&line, job, h, first);
        if (job->is_dry) {
            line_write(stdout, &line);
            (void)printf("\n");
        } else {
            status = launch_child_start(job, h, line.words, 1, before);
        }
        line_free(&line);
        if (status != 0) {
            return status;
        }
        if (!job->is_dry) {
            (void)dprintf(job->children[h].control, "%s\n", secret);
        }
        first += job->hosts[h].ranks;
    }
    return 0;
}

/* ---- mpirun, srun ---- */

static int are_equal(const launch *job)
{
    for (int h = 1; h < job->num_hosts; h++) {
        if (job->hosts[h].ranks != job->hosts[0].ranks) {
            return 0;
        }
    }
    return 1;
}

/* Adds the hosts as one word: "a:8,b:8", or without numbers. */
static void hosts_add(command_line *line, const launch *job, const char *option, int has_numbers)
{
    char  *text = NULL;
    size_t len  = 0;
    FILE  *out  = open_memstream(&text, &len);

    for (int h = 0; h < job->num_hosts && out != NULL; h++) {
        (void)fprintf(out, "%s%s", h == 0 ? "" : ",", job->hosts[h].name);
        if (has_numbers) {
            (void)fprintf(out, ":%d", job->hosts[h].ranks);
        }
    }
    if (out != NULL) {
        (void)fclose(out);
        word_add(line, "%s%s", option, text);
    }
    free(text);
}

static void mpirun_line(command_line *line, const launch *job)
{
    word_add(line, "mpirun");
    word_add(line, "-n");
    word_add(line, "%d", job->all_ranks);
    word_add(line, "--host");
    hosts_add(line, job, "", 1);
    for (char **variable = environ; *variable != NULL; variable++) {
        if (is_passed_on(*variable)) {
            word_add(line, "-x");
            word_add(line, "%.*s", (int)strcspn(*variable, "="), *variable);
        }
    }
    if (getenv("SHERD_JOB_SECRET") != NULL) { /* by its name: the value is not on the line */
        word_add(line, "-x");
        word_add(line, "SHERD_JOB_SECRET");
    }
}

static void srun_line(command_line *line, const launch *job)
{
    word_add(line, "srun");
    word_add(line, "--nodes=%d", job->num_hosts);
    word_add(line, "--ntasks=%d", job->all_ranks);
    word_add(line, "--ntasks-per-node=%d", job->hosts[0].ranks);
    hosts_add(line, job, "--nodelist=", 0);
    word_add(line, "--kill-on-bad-exit=1");
}

/* Starts mpirun or srun, which starts this command once for each rank, and this the program. */
static int started_by(launch *job, int is_mpirun, const sigset_t *before)
{
    static command_line line;
    int                 status = 0;

    (is_mpirun ? mpirun_line : srun_line)(&line, job);
    given_add(&line, job);
    word_add(&line, "%s", own_path());
    word_add(&line, "launch");
    word_add(&line, "--part");
    word_add(&line, is_mpirun ? "mpirun" : "srun");
    word_add(&line, "--");
    words_add(&line, job->program);
    if (job->is_dry) {
        line_write(stdout, &line);
        (void)printf("\n");
    } else {
        status = launch_child_start(job, -1, line.words, 0, before);
    }
    line_free(&line);
    return status;
}

/* Whether a program is in a folder of PATH. */
static int has_program(const char *name)
{
    const char *path = getenv("PATH");

    for (const char *at = path == NULL ? "" : path; *at != '\0';) {
        size_t len = strcspn(at, ":");
        char   file[4096];

        (void)snprintf(file, sizeof(file), "%.*s/%s", (int)len, at, name);
        if (access(file, X_OK) == 0) {
            return 1;
        }
        at += len + (at[len] == ':');
    }
    return 0;
}

/* srun inside an allocation of Slurm; else mpirun, because MPI also moves data between hosts without
 * a GPU; else ssh. */
static const char *starter_choose(const launch *job)
{
    if (job->starter != NULL) {
        return job->starter;
    }
    if (getenv("SLURM_JOB_ID") != NULL && has_program("srun")) {
        return "srun";
    }
    return has_program("mpirun") ? "mpirun" : "ssh";
}

int launch_hosts_read(launch *job)
{
    if (job->hosts_text != NULL && job->hostfile != NULL) {
        return cli_bad("launch", "--hosts and --hostfile exclude each other");
    }
    if ((job->hosts_text != NULL ? hosts_split(job) : hostfile_read(job)) != 0) {
        return 2;
    }
    job->starter = starter_choose(job);
    if (strcmp(job->starter, "ssh") != 0 && strcmp(job->starter, "mpirun") != 0 &&
        strcmp(job->starter, "srun") != 0) {
        return cli_bad("launch", "--starter is ssh, mpirun or srun, not '%s'", job->starter);
    }
    if (ranks_count(job) != 0) {
        return 2;
    }
    if (strcmp(job->starter, "srun") == 0 && !are_equal(job)) {
        return cli_bad("launch", "srun starts as many ranks on each host; give the hosts equal "
                                 "numbers, or use --starter mpirun");
    }
    return 0;
}

int launch_hosts_start(launch *job, const sigset_t *before)
{
    return strcmp(job->starter, "ssh") == 0
               ? parts_start(job, before)
               : started_by(job, strcmp(job->starter, "mpirun") == 0, before);
}

/* ---- a part ---- */

/* Reads the first line of the standard input, one byte at a time: orders follow. */
static void secret_read(void)
{
    char   secret[4096];
    char   byte;
    size_t len = 0;

    while (read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n') {
        secret[len] = byte;
        len += len + 1 < sizeof(secret);
    }
    secret[len] = '\0';
    if (len > 0) {
        (void)setenv("SHERD_JOB_SECRET", secret, 1);
    }
}

/* Reads the rank that another launcher has set. */
static int wrapped_read(launch *job, const char *variable)
{
    if (getenv(variable) == NULL || !cli_number_read(getenv(variable), 0, 1 << 20, &job->first)) {
        return cli_bad("launch", "%s has not set %s for this rank", job->part, variable);
    }
    job->is_wrapped = 1;
    job->ranks      = 1;
    return 0;
}

int launch_part_read(launch *job)
{
    job->output.is_part = 1;
    job->is_prefixed    = 1;
    if (strcmp(job->part, "mpirun") == 0) {
        return wrapped_read(job, "OMPI_COMM_WORLD_RANK");
    }
    if (strcmp(job->part, "srun") == 0) {
        return wrapped_read(job, "SLURM_PROCID");
    }
    if (sscanf(job->part, "%d:%d:%d", &job->first, &job->ranks, &job->all_ranks) != 3 ||
        job->ranks < 1 || job->ranks > LAUNCH_MOST_RANKS || job->meeting == NULL) {
        return cli_bad("launch", "--part is what sherd launch gives to its own parts");
    }
    job->orders = STDIN_FILENO;
    secret_read();
    return 0;
}
