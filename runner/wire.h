/*
 * The bytes between runner and daemon: the table of cortexfs/core/wire.py in C. A test compares the two.
 * Numbers are little-endian.
 */
#ifndef CORTEXFS_WIRE_H
#define CORTEXFS_WIRE_H

#define PROTOCOL 3
#define MAGIC "CTX1"
#define SOCKET_NAME ".run.sock"

/* kind: u8, size of the payload: u32 */
#define HEADER_SIZE 5
#define MAX_MESSAGE (1 << 20)

/* the greeting: magic, protocol u32, inode u64, then u32 each: flags, umask, argc, envc, bytes of strings */
enum { TTY_STDIN = 1, TTY_STDOUT = 2, TTY_STDERR = 4, PIPE_STDIN = 8 };

enum {
    STDIN = 'i',      /* bytes; empty: end of input */
    STDOUT = 'o',     /* bytes for standard output */
    STDERR = 'e',     /* bytes for standard error */
    WANT = 'w',       /* u32: how many more bytes of standard input may be sent */
    LAST_WORDS = 'l', /* u32 length, bytes for stdout, the rest for stderr: written if the daemon vanishes */
    REPLACE = 'c',    /* NUL-ended argv: execute this program instead */
    EXIT = 'x'        /* u8 exit status */
};

#endif
