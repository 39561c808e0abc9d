/* The runner's own output and errors. An error is one line in text mode, else two frames. */
#ifndef CORTEXFS_SAY_H
#define CORTEXFS_SAY_H

#include <stddef.h>
#include <stdint.h>

enum { FAILED = 1, USAGE = 2, DENIED = 13, NO_RUNTIME = 69, BROKEN = 70, NOT_FOUND = 127 };

/* The object's name in messages: the last component of the path, as it was typed. */
extern const char *object_name;

/* Write all of it, or exit if standard output fails. */
void say(int fd, const void *data, size_t size);

/* The same on standard output, and on a line of its own, even after an unfinished line. */
void say_lines(const void *data, size_t size);

/* End as a write to standard output without a reader would end us. */
_Noreturn void unread(void);

/* Write `object: what: why` to standard error. */
void complain(const char *what, const char *why);

/* Write an error in the mode of this call, and exit. `code` is an errno name, `why` a sentence. */
_Noreturn void fail(const char *code, const char *why, int status);

#endif
