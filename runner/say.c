/*
 * Writing to standard output and error, and the runner's own errors.
 *
 * Rules: all bytes are written, whatever O_NONBLOCK and signals do. SIGPIPE keeps its inherited
 * disposition, so that a closed pipe ends the runner as it ends cat.
 */
#define _GNU_SOURCE
#include "say.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *object_name = "cortexfs-object-runner";
static char last_written = '\n';

static bool write_fully(int fd, const char *data, size_t size)
{
    while (size) {
        ssize_t n = write(fd, data, size);
        if (n >= 0) {
            data += n;
            size -= (size_t)n;
        } else if (errno == EAGAIN) {
            /* O_NONBLOCK belongs to the open file. Other processes share it, and may have set the flag. */
            struct pollfd full = {fd, POLLOUT, 0};
            poll(&full, 1, -1);
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

void say(int fd, const void *data, size_t size)
{
    if (!size)
        return;
    bool written = write_fully(fd, data, size);
    if (fd != STDOUT_FILENO)
        return; /* a failure of standard error cannot be reported, and must not end the run */
    if (!written) {
        complain("write error", strerror(errno));
        _exit(FAILED);
    }
    last_written = ((const char *)data)[size - 1];
}

_Noreturn void unread(void)
{
    raise(SIGPIPE);
    complain("write error", strerror(EPIPE));
    _exit(FAILED);
}

void say_lines(const void *data, size_t size)
{
    if (size && last_written != '\n')
        say(STDOUT_FILENO, "\n", 1);
    say(STDOUT_FILENO, data, size);
}

/* A text that is written by one call, so that lines of parallel calls do not mix. */
struct text {
    char bytes[1024];
    size_t size;
};

static void add(struct text *text, const char *words)
{
    for (; *words && text->size < sizeof text->bytes; words++)
        text->bytes[text->size++] = *words;
}

static void add_quoted(struct text *text, const char *words)
{
    for (; *words; words++) {
        if (*words == '"')
            add(text, "\\");
        add(text, (char[]){*words, '\0'});
    }
}

/* A file name may hold control characters, which must not reach a terminal. */
static void add_printable(struct text *text, const char *name)
{
    for (; *name; name++)
        add(text, (char[]){(unsigned char)*name < ' ' || *name == 0x7f ? '?' : *name, '\0'});
}

void complain(const char *what, const char *why)
{
    struct text text = {.size = 0};
    add_printable(&text, object_name);
    add(&text, ": ");
    add(&text, what);
    add(&text, ": ");
    add(&text, why);
    add(&text, "\n");
    say(STDERR_FILENO, text.bytes, text.size);
}

static bool text_mode(void)
{
    const char *output = getenv("CTX_OUTPUT");
    if (output && !strcmp(output, "text"))
        return true;
    return !(output && !strcmp(output, "jsonl")) && isatty(STDOUT_FILENO);
}

_Noreturn void fail(const char *code, const char *why, int status)
{
    struct text frames = {.size = 0};
    if (text_mode()) {
        complain(code, why);
        _exit(status);
    }
    add(&frames, "{\"type\":\"error\",\"code\":\"");
    add(&frames, code);
    add(&frames, "\",\"message\":\"");
    add_quoted(&frames, why);
    add(&frames, "\"}\n{\"type\":\"done\",\"status\":\"error\",\"code\":\"");
    add(&frames, code);
    add(&frames, "\"}\n");
    say_lines(frames.bytes, frames.size);
    _exit(status);
}
