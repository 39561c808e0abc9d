/* What the runner itself writes, and how it gives up: one line in text mode, else two frames. */
#ifndef CORTEXFS_SAY_H
#define CORTEXFS_SAY_H

#include <stddef.h>
#include <stdint.h>

enum { FAILED = 1, USAGE = 2, DENIED = 13, NO_RUNTIME = 69, BROKEN = 70, NOT_FOUND = 127 };

/* The object as messages call it: the last component of the path, as it was typed. */
extern const char *object_name;

/* Write all of it, or exit when standard output takes no more. */
void say(int fd, const void *data, size_t size);

/* The same on standard output, as a line of its own also after a torn one. */
void say_lines(const void *data, size_t size);

/* End as a write to standard output would, whose reader is gone. */
_Noreturn void unread(void);

/* `object: what: why` on standard error. */
void complain(const char *what, const char *why);

/* An error in the mode of this call, then exit. `code` is an errno name, `why` a sentence. */
_Noreturn void fail(const char *code, const char *why, int status);

#endif
