/* tensorboard: one file of events for each run, which TensorBoard opens. TensorFlow's record_writer
 * defines the frame of a record: the length in 8 bytes, a masked CRC-32C of these bytes, the data,
 * and a masked CRC-32C of the data, all little endian. The data is an Event in the encoding of
 * protocol buffers, with the fields 1 wall_time, 2 step, 3 file_version and 5 summary. A summary
 * has the field 1 value, and a value has the fields 1 tag and 2 simple_value, an fp32. */
#include "engine/monitor/monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES (SHERDI_MONITOR_FOLDER_BYTES + 256)
/* The most bytes of an event with its tag and the frame of 16 bytes. */
#define RECORD_BYTES (SHERDI_MONITOR_TAG_BYTES + 64)

typedef struct board {
    sherdi_monitor base;
    char           path[PATH_BYTES];
    int            fd;    /* the file's descriptor + 1; 0: no file */
    uint64_t       bytes; /* whole records in the file */
} board;

typedef struct bytes {
    unsigned char *data;
    size_t         len;
} bytes;

/* ---- records ---- */

/* CRC with Castagnoli's polynomial; the bits of a byte from the lowest on (RFC 3720, appendix
 * B.4). */
static uint32_t crc32c(const unsigned char *data, size_t len_bytes)
{
    uint32_t crc = 0xffffffffu;

    for (size_t i = 0; i < len_bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

/* The checksum of data that contains its own checksum is weak, so TensorFlow rotates each checksum
 * and adds a constant. */
static uint32_t masked_crc(const unsigned char *data, size_t len_bytes)
{
    uint32_t crc = crc32c(data, len_bytes);

    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static void fixed_put(bytes *out, uint64_t value, int width)
{
    for (int i = 0; i < width; i++) {
        out->data[out->len++] = (unsigned char)(value >> (8 * i));
    }
}

static void varint_put(bytes *out, uint64_t value)
{
    for (; value >= 128; value >>= 7) {
        out->data[out->len++] = (unsigned char)(value | 128);
    }
    out->data[out->len++] = (unsigned char)value;
}

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void field_put(bytes *out, unsigned number, unsigned wire)
{
    varint_put(out, number << 3 | wire);
}

static void text_put(bytes *out, unsigned number, const char *text)
{
    size_t len = strlen(text);

    field_put(out, number, WIRE_BYTES);
    varint_put(out, len);
    memcpy(out->data + out->len, text, len);
    out->len += len;
}

/* Appends the message `inside` as a field. */
static void message_put(bytes *out, unsigned number, const bytes *inside)
{
    field_put(out, number, WIRE_BYTES);
    varint_put(out, inside->len);
    memcpy(out->data + out->len, inside->data, inside->len);
    out->len += inside->len;
}

static void scalar_put(bytes *out, const sherdi_monitor_event *event)
{
    unsigned char value_data[RECORD_BYTES], summary_data[RECORD_BYTES];
    bytes         value   = {value_data, 0};
    bytes         summary = {summary_data, 0};
    float         number  = (float)event->value;
    uint32_t      bits;

    memcpy(&bits, &number, sizeof(bits));
    text_put(&value, 1, event->tag);
    field_put(&value, 2, WIRE_32);
    fixed_put(&value, bits, 4);
    message_put(&summary, 1, &value);
    message_put(out, 5, &summary);
}

/* Appends a record with the present time: of `version`, or if that is NULL, of `event`. */
static void record_put(bytes *out, const char *version, const sherdi_monitor_event *event,
                       int64_t at)
{
    unsigned char   data[RECORD_BYTES];
    bytes           message = {data, 0};
    struct timespec now;
    double          wall;
    uint64_t        bits;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    wall = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    memcpy(&bits, &wall, sizeof(bits));
    field_put(&message, 1, WIRE_64);
    fixed_put(&message, bits, 8);
    if (version != NULL) {
        text_put(&message, 3, version);
    } else {
        field_put(&message, 2, WIRE_VARINT);
        varint_put(&message, (uint64_t)at);
        scalar_put(&message, event);
    }
    fixed_put(out, message.len, 8);
    fixed_put(out, masked_crc(out->data + out->len - 8, 8), 4);
    memcpy(out->data + out->len, message.data, message.len);
    out->len += message.len;
    fixed_put(out, masked_crc(message.data, message.len), 4);
}

/* ---- the file ---- */

static sherd_status board_append(board *board, const bytes *records)
{
    SHERDI_TRY(sherdi_monitor_append(board->fd - 1, board->path, board->bytes, records->data,
                                     records->len));
    board->bytes += records->len;
    return SHERD_OK;
}

/* The loop finds a free name: another run may have begun in the same second, on a host of this name
 * and with the same process number. */
static sherd_status board_open(sherdi_monitor *state)
{
    board        *board = (struct board *)(void *)state;
    unsigned char data[RECORD_BYTES];
    bytes         head      = {data, 0};
    char          host[128] = "";

    (void)gethostname(host, sizeof(host) - 1);
    for (int n = 0; board->fd == 0; n++) {
        (void)snprintf(board->path, sizeof(board->path),
                       "%s/events.out.tfevents.%" PRId64 ".%s.%ld.%d", state->folder,
                       (int64_t)time(NULL), host, (long)getpid(), n);
        board->fd = 1 + open(board->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (board->fd == 0 && errno != EEXIST) {
            return sherdi_fail(SHERD_E_IO, "tensorboard: cannot make %s: %s", board->path,
                               strerror(errno));
        }
    }
    record_put(&head, "brain.Event:2", NULL, 0);
    return board_append(board, &head);
}

static sherd_status board_write(sherdi_monitor *state, const sherdi_monitor_event *events,
                                size_t count, int64_t at)
{
    board        *board = (struct board *)(void *)state;
    unsigned char data[SHERDI_MONITOR_MOST_EVENTS * RECORD_BYTES];
    bytes         records = {data, 0};

    for (size_t i = 0; i < count; i++) {
        record_put(&records, NULL, &events[i], at);
    }
    return board_append(board, &records);
}

static void board_close(sherdi_monitor *state)
{
    board *board = (struct board *)(void *)state;

    if (board->fd != 0) {
        (void)close(board->fd - 1);
    }
    board->fd = 0;
}

const sherdi_monitor_ops sherdi_monitor_tensorboard = {
    .name        = "tensorboard",
    .state_bytes = sizeof(board),
    .open        = board_open,
    .write       = board_write,
    .close       = board_close,
};
