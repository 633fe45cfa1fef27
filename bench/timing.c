#include "bench/timing.h"

#include "base/clock.h"
#include "sherd_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The rest of the first line of `path` that starts with `key`, or "?". */
static void line_find(const char *path, const char *key, char *out, size_t out_bytes)
{
    char  line[512];
    FILE *file = fopen(path, "r");

    (void)snprintf(out, out_bytes, "?");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            char *value = line + strlen(key);

            value += strspn(value, " \t:");
            value[strcspn(value, "\n")] = '\0';
            (void)snprintf(out, out_bytes, "%s", value);
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

typedef struct machine_words {
    char           cpu[256];
    char           memory[64];
    char           huge_pages[64];
    struct utsname system;
    long           cores;
} machine_words;

static void machine_read(machine_words *words)
{
    memset(words, 0, sizeof(*words));
    line_find("/proc/cpuinfo", "model name", words->cpu, sizeof(words->cpu));
    line_find("/proc/meminfo", "MemTotal", words->memory, sizeof(words->memory));
    line_find("/sys/kernel/mm/transparent_hugepage/enabled", "", words->huge_pages,
              sizeof(words->huge_pages));
    (void)uname(&words->system);
    words->cores = sysconf(_SC_NPROCESSORS_ONLN);
}

void bench_print_machine(int argc, char **argv)
{
    machine_words words;

    machine_read(&words);
    (void)printf("# machine  %s, %ld cores, %s, %s %s, huge pages %s\n", words.cpu, words.cores,
                 words.memory, words.system.sysname, words.system.release, words.huge_pages);
    (void)printf("# sherd    %s, %s\n# command ", SHERDI_VERSION, SHERDI_COMPILER);
    for (int i = 0; i < argc; i++) {
        (void)printf(" %s", argv[i]);
    }
    (void)printf("\n");
}

static void json_string_print(const char *text)
{
    (void)putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            (void)putchar('\\');
        }
        if ((unsigned char)*text >= 0x20) {
            (void)putchar(*text);
        }
    }
    (void)putchar('"');
}

void bench_print_machine_json(int argc, char **argv)
{
    machine_words words;

    machine_read(&words);
    (void)printf("\"cpu\": ");
    json_string_print(words.cpu);
    (void)printf(", \"cores\": %ld, \"memory\": ", words.cores);
    json_string_print(words.memory);
    (void)printf(", \"kernel\": ");
    json_string_print(words.system.release);
    (void)printf(", \"huge_pages\": ");
    json_string_print(words.huge_pages);
    (void)printf(", \"sherd\": ");
    json_string_print(SHERDI_VERSION);
    (void)printf(", \"compiler\": ");
    json_string_print(SHERDI_COMPILER);
    (void)printf(", \"command\": [");
    for (int i = 0; i < argc; i++) {
        (void)printf("%s", i > 0 ? ", " : "");
        json_string_print(argv[i]);
    }
    (void)printf("]");
}

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

bench_stat bench_stat_of(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), double_compare);
    return (bench_stat){
        .median = (values[(count - 1) / 2] + values[count / 2]) / 2,
        .min    = values[0],
        .max    = values[count - 1],
    };
}

void bench_rounds(size_t rounds, size_t num_rows, bench_row_fn run, void *ctx, double *seconds)
{
    for (size_t row = 0; row < num_rows; row++) {
        run(ctx, row);
    }
    for (size_t round = 0; round < rounds; round++) {
        for (size_t row = 0; row < num_rows; row++) {
            int64_t start_ns = sherdi_now_ns();

            run(ctx, row);
            seconds[round * num_rows + row] = (double)(sherdi_now_ns() - start_ns) * 1e-9;
        }
    }
}
