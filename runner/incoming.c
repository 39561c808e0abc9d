/*
 * The bytes from the daemon: output is copied, small messages are gathered and acted upon.
 *
 * Rules: the daemon is trusted with this call, but not with this memory. A size is checked before a
 * byte is kept, and long messages are never held whole. Unknown kinds are skipped, so that a newer
 * daemon may send more kinds.
 */
#define _GNU_SOURCE
#include "incoming.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "outgoing.h"
#include "say.h"
#include "wire.h"

#define RESTART "; run \"ctx restart\""

enum {
    MAX_WORDS = 4 << 10,
    MAX_REPLACE = 8 << 10,
    MAX_REPLACE_ARGUMENTS = 64,
};

const char NO_DAEMON[] = "the CortexFS daemon does not answer; start it with \"ctx mount\"";

static char last_words[MAX_WORDS];
static uint32_t last_words_size;

static uint32_t number_at(const void *data)
{
    const uint8_t *at = data;
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static _Noreturn void broken(const char *why)
{
    fail("EPROTO", why, BROKEN);
}

static void want(char *payload, uint32_t size)
{
    (void)size;
    grant(number_at(payload));
}

/* Last words that do not fit are dropped: our own message says as much as a half of them. */
static void keep_words(char *payload, uint32_t size)
{
    bool whole = size >= 4 && size <= MAX_WORDS && number_at(payload) <= size - 4;
    last_words_size = whole ? size : 0;
    memcpy(last_words, payload, last_words_size);
}

static void become(char *payload, uint32_t size)
{
    char *arguments[MAX_REPLACE_ARGUMENTS + 1] = {NULL};
    size_t count = 0;
    if (payload[size - 1])
        broken("the daemon named a program and no end of it" RESTART);
    for (char *at = payload; at < payload + size; at += strlen(at) + 1) {
        if (count == MAX_REPLACE_ARGUMENTS)
            broken("the daemon named a program with over 64 arguments" RESTART);
        arguments[count++] = at;
    }
    execv(arguments[0], arguments);
    complain(arguments[0], strerror(errno));
    _exit(BROKEN);
}

static void leave(char *payload, uint32_t size)
{
    (void)size;
    _exit((unsigned char)*payload);
}

/* Kinds with a rule are gathered whole; STDOUT and STDERR flow through. */
static const struct rule {
    uint8_t kind;
    uint32_t least, most;
    void (*act)(char *payload, uint32_t size);
} RULES[] = {
    {WANT, 4, 4, want},
    {LAST_WORDS, 0, MAX_MESSAGE, keep_words},
    {REPLACE, 1, MAX_REPLACE, become},
    {EXIT, 1, 1, leave},
};

static struct {
    uint8_t header[HEADER_SIZE];
    size_t have; /* bytes of the header */
    uint32_t size, left;
    const struct rule *rule; /* NULL: STDOUT, STDERR or an unknown kind */
    char gathered[MAX_REPLACE];
} in;

static void begin(void)
{
    in.size = in.left = number_at(in.header + 1);
    in.rule = NULL;
    if (in.size > MAX_MESSAGE)
        broken("the daemon sent a message of over 1 MiB" RESTART);
    for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++)
        if (RULES[i].kind == in.header[0])
            in.rule = &RULES[i];
    if (in.rule && (in.size < in.rule->least || in.size > in.rule->most))
        broken("the daemon sent a message of an impossible size" RESTART);
}

static void take_part(const uint8_t *data, size_t size)
{
    size_t done = in.size - in.left;
    if (in.rule && done + size <= sizeof in.gathered)
        memcpy(in.gathered + done, data, size);
    else if (in.header[0] == STDOUT)
        say(STDOUT_FILENO, data, size);
    else if (in.header[0] == STDERR)
        say(STDERR_FILENO, data, size);
    in.left -= (uint32_t)size;
}

void take(const uint8_t *data, size_t size)
{
    while (size) {
        size_t part = 1;
        if (in.have < HEADER_SIZE) {
            in.header[in.have++] = *data;
            if (in.have == HEADER_SIZE)
                begin();
        } else {
            part = size < in.left ? size : in.left;
            take_part(data, part);
        }
        data += part;
        size -= part;
        if (in.have == HEADER_SIZE && !in.left) {
            in.have = 0;
            if (in.rule)
                in.rule->act(in.gathered, in.size);
        }
    }
}

_Noreturn void bereaved(void)
{
    if (!last_words_size)
        fail("EHOSTDOWN", NO_DAEMON, NO_RUNTIME);
    uint32_t size = number_at(last_words);
    say_lines(last_words + 4, size);
    say(STDERR_FILENO, last_words + 4 + size, last_words_size - 4 - size);
    _exit(NO_RUNTIME);
}
