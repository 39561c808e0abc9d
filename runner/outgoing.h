/* What goes to the daemon: the greeting, then standard input. */
#ifndef CORTEXFS_OUTGOING_H
#define CORTEXFS_OUTGOING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Say over `daemon` who is called with what. */
void greet(int daemon, ino_t inode, char **arguments);

/* The daemon takes `bytes` more of standard input. */
void grant(uint32_t bytes);

/* Move standard input along until the daemon has something to say, or nobody reads it; false: ask again. */
bool wait_for_daemon(void);

#endif
