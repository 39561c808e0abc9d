/* What the daemon says. */
#ifndef CORTEXFS_INCOMING_H
#define CORTEXFS_INCOMING_H

#include <stddef.h>
#include <stdint.h>

/* Act on the next bytes of the connection, which may be any part of any number of messages. */
void take(const uint8_t *data, size_t size);

/* The connection ended before EXIT: say what the daemon left to be said, and exit. */
_Noreturn void bereaved(void);

extern const char NO_DAEMON[];

#endif
