/* The bytes to the daemon: the greeting, then standard input. */
#ifndef CORTEXFS_OUTGOING_H
#define CORTEXFS_OUTGOING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Send the object, its arguments and the environment over `daemon`. */
void greet(int daemon, ino_t inode, char **arguments);

/* Allow `bytes` more of standard input to be sent. */
void grant(uint32_t bytes);

/* Wait once, and send standard input on. Returns true if the daemon has sent bytes; false: call again. */
bool wait_for_daemon(void);

#endif
