/*
 * The bytes to the daemon: the greeting, then as much of standard input as the daemon wants.
 *
 * Rules: standard input is not read before the daemon asks, as a shell's `while read` loop must keep
 * its lines. Sending never keeps us from reading, or two full sockets would wait for each other. A
 * daemon that takes no more is no error here: its messages, or the end of them, decide.
 */
#define _GNU_SOURCE
#include "outgoing.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "say.h"
#include "wire.h"

enum {
    CHUNK = 64 << 10,        /* the size of a pipe: more at once gains nothing */
    MAX_VARIABLE = 32 << 10, /* bytes; a longer variable is not sent */
    UNREAD_MS = 1000,        /* an exit status follows the last line within 1 ms */
};

/* The variables of the caller that a tool may see. A name that ends in '_' is a prefix. */
static const char *const ALLOWED[] = {
    "PATH", "HOME", "USER",    "LOGNAME", "SHELL",    "LANG",   "LANGUAGE",   "LC_",
    "TZ",   "TERM", "COLUMNS", "LINES",   "NO_COLOR", "TMPDIR", "CTX_OUTPUT", "CTX_ROOT",
    "CTX_MCP_SESSION",
};

/* Bytes to be sent: all of the greeting, then one STDIN message at a time. */
static struct {
    uint8_t bytes[HEADER_SIZE + CHUNK];
    size_t start, end;
    int daemon;
    bool refused;
} out;

static uint64_t credit; /* bytes of standard input that the daemon still wants */
static bool input_ended;

/* Send as many bytes as the socket takes. */
static void push(int flags)
{
    ssize_t n = send(out.daemon, out.bytes + out.start, out.end - out.start, MSG_NOSIGNAL | flags);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    out.refused = n < 0; /* the daemon closed, or our SIGINT did */
    out.start += n < 0 ? 0 : (size_t)n;
    if (out.refused || out.start == out.end)
        out.start = out.end = 0;
}

static void put(const void *data, size_t size)
{
    while (size && !out.refused) {
        size_t room = sizeof out.bytes - out.end;
        size_t part = size < room ? size : room;
        memcpy(out.bytes + out.end, data, part);
        out.end += part;
        data = (const uint8_t *)data + part;
        size -= part;
        while (out.end == sizeof out.bytes)
            push(0);
    }
}

static void put_number(uint64_t number, size_t size)
{
    for (; size; size--, number >>= 8)
        put(&(uint8_t){(uint8_t)number}, 1);
}

static bool allowed(const char *variable)
{
    for (size_t i = 0; i < sizeof ALLOWED / sizeof *ALLOWED; i++) {
        size_t size = strlen(ALLOWED[i]);
        if (strncmp(variable, ALLOWED[i], size))
            continue;
        if (ALLOWED[i][size - 1] == '_' ? strchr(variable, '=') != NULL : variable[size] == '=')
            return strlen(variable) <= MAX_VARIABLE;
    }
    return false;
}

/* Returns the number of strings, or of those that are allowed if they are `chosen`, and adds up their bytes.
 * Sends them, too, if `aloud`. */
static uint32_t strings(char **each, bool chosen, bool aloud, size_t *bytes)
{
    uint32_t count = 0;
    for (; *each; each++) {
        if (chosen && !allowed(*each))
            continue;
        size_t size = strlen(*each) + 1;
        *bytes += size;
        count++;
        if (aloud)
            put(*each, size);
    }
    return count;
}

static mode_t current_umask(void)
{
    mode_t mask = umask(077);
    umask(mask);
    return mask;
}

/* A pipe as standard input is reported only if a person is at standard error, for whom it matters. */
static unsigned terminals(void)
{
    struct stat input;
    unsigned found = (isatty(0) ? TTY_STDIN : 0) | (isatty(1) ? TTY_STDOUT : 0);
    if (!isatty(2))
        return found;
    return found | TTY_STDERR | (!fstat(0, &input) && S_ISFIFO(input.st_mode) ? PIPE_STDIN : 0);
}

void greet(int daemon, ino_t inode, char **arguments)
{
    size_t size = 0;
    uint32_t argc = strings(arguments, false, false, &size);
    uint32_t envc = strings(environ, true, false, &size);
    out.daemon = daemon;
    put(MAGIC, 4);
    put_number(PROTOCOL, 4);
    put_number(inode, 8);
    put_number(terminals(), 4);
    put_number(current_umask(), 4);
    put_number(argc, 4);
    put_number(envc, 4);
    put_number(size, 4);
    strings(arguments, false, true, &size);
    strings(environ, true, true, &size);
    while (out.end)
        push(0);
}

void grant(uint32_t bytes)
{
    credit += bytes;
}

static void read_input(void)
{
    size_t most = credit < CHUNK ? (size_t)credit : CHUNK;
    ssize_t n = read(STDIN_FILENO, out.bytes + HEADER_SIZE, most);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) { /* input that cannot be read (a directory, a lost terminal) counts as ended */
        input_ended = true;
        n = 0;
    }
    credit -= (uint64_t)n;
    put(&(uint8_t){STDIN}, 1);
    put_number((uint64_t)n, 4);
    out.end += (size_t)n; /* the bytes are in place: they were read behind the header */
}

/* Standard output has lost its reader, perhaps because the reader had the last line. So messages of the next
 * UNREAD_MS still count, as the exit status may be among them. */
static bool wait_unread(void)
{
    struct pollfd daemon = {out.daemon, POLLIN, 0};
    int heard = poll(&daemon, 1, UNREAD_MS);
    if (!heard)
        unread();
    return heard > 0;
}

bool wait_for_daemon(void)
{
    bool sending = out.end > 0;
    bool reading = !sending && credit && !input_ended && !out.refused;
    struct pollfd ready[] = {
        {out.daemon, (short)(sending ? POLLIN | POLLOUT : POLLIN), 0},
        {reading ? STDIN_FILENO : -1, POLLIN, 0},
        {STDOUT_FILENO, 0, 0},
    };
    if (poll(ready, 3, -1) < 0)
        return false;
    /* POLLERR alone means a pipe without a reader; a lost terminal has POLLHUP too, and sends SIGHUP. */
    if (ready[2].revents == POLLERR && !(ready[0].revents & ~POLLOUT))
        return wait_unread();
    if (ready[1].revents)
        read_input();
    if (out.end)
        push(MSG_DONTWAIT);
    return ready[0].revents & ~POLLOUT;
}
