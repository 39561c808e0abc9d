/* The bytes from the daemon. */
#ifndef CORTEXFS_INCOMING_H
#define CORTEXFS_INCOMING_H

#include <stddef.h>
#include <stdint.h>

/* Act on the next bytes of the connection. They may be parts of messages, and any number of them. */
void take(const uint8_t *data, size_t size);

/* The connection ended before EXIT: write the daemon's last words, and exit. */
_Noreturn void bereaved(void);

extern const char NO_DAEMON[];

#endif
