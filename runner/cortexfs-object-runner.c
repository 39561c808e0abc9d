/*
 * The interpreter that the first line of every executable object names.
 *
 * Job: find the daemon beside the object, send it the object and arguments (outgoing.c), copy its
 * output (incoming.c), turn signals into cancel and the last message into an exit status.
 * Rules: its start-up is part of the price of every call, so it uses no stdio, no locale, and no
 * needless system call. Input never sets the size of memory: every buffer is static. A signal is
 * safe wherever it arrives, because on_signal() acts at once and leaves no flag to be checked later.
 * It must never know what a frame, a schema or a policy is: the daemon judges all input.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "incoming.h"
#include "outgoing.h"
#include "say.h"
#include "wire.h"

#define TEXT_OF(number) #number
#define AS_TEXT(name) TEXT_OF(name)
#define LENGTH(table) (sizeof(table) / sizeof *(table))

static const char USAGE_TEXT[] = "usage: cortexfs-object-runner OBJECT [ARGUMENT]...\n";
static const char VERSION_TEXT[] =
    "cortexfs-object-runner " CORTEXFS_VERSION " protocol " AS_TEXT(PROTOCOL) "\n";

static const char NO_OBJECT[] = "no CortexFS object is here, and a copy of one does not work; "
                                "\"ctx ls\" shows the objects";
static const char NO_ENTRY[] = "you may not use this object; ask whoever mounted it";
static const char TOO_LONG[] = "the path is too long; mount /proc or use a shorter one";
static const char TOO_MANY[] = "this process may open no more files; raise \"ulimit -n\"";

/* Why the daemon cannot be reached; any other errno means that it does not answer. */
static const struct {
    int number;
    const char *code, *why;
    int status;
} FAILURES[] = {
    {ENOENT, "ENOENT", NO_OBJECT, NOT_FOUND}, {ENOTDIR, "ENOENT", NO_OBJECT, NOT_FOUND},
    {EACCES, "EACCES", NO_ENTRY, DENIED},     {EPERM, "EPERM", NO_ENTRY, DENIED},
    {EMFILE, "EMFILE", TOO_MANY, FAILED},     {ENAMETOOLONG, "ENAMETOOLONG", TOO_LONG, FAILED},
};

static _Noreturn void unreachable(int number)
{
    for (size_t i = 0; i < LENGTH(FAILURES); i++)
        if (FAILURES[i].number == number)
            fail(FAILURES[i].code, FAILURES[i].why, FAILURES[i].status);
    fail("EHOSTDOWN", NO_DAEMON, NO_RUNTIME);
}

/* The connection, once the greeting is sent: from then on the daemon answers the first SIGINT. */
static volatile sig_atomic_t conversation = -1;
static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    int saved = errno;
    if (conversation < 0 || interrupted || number != SIGINT)
        _exit(128 + number); /* this closes the connection, which also cancels the run */
    interrupted = 1;
    shutdown(conversation, SHUT_WR);
    errno = saved;
}

/* A signal that was ignored on entry (nohup, a script's background job) stays ignored. */
static void watch_signals(void)
{
    static const int watched[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < LENGTH(watched); i++) {
        struct sigaction action;
        if (sigaction(watched[i], NULL, &action) || action.sa_handler == SIG_IGN)
            continue;
        action = (struct sigaction){.sa_handler = on_signal};
        sigaction(watched[i], &action, NULL);
    }
}

/*
 * open() takes the lowest free number, so a number above 2 shows that 0, 1 and 2 are in use. In the place of a
 * closed standard output /dev/null is only readable: output that is lost has to be an error.
 */
static int open_object(const char *path)
{
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(fd);
    int null;
    do
        null = open("/dev/null", O_RDONLY);
    while (null >= 0 && null <= STDERR_FILENO);
    close(null);
    return moved;
}

static char *add_number(char *at, unsigned number)
{
    if (number > 9)
        at = add_number(at, number / 10);
    *at = (char)('0' + number % 10);
    return at + 1;
}

static char *add_fd_path(char *at, int fd)
{
    return add_number(stpcpy(at, "/proc/self/fd/"), (unsigned)fd);
}

/* Returns the real directory of the object, with a final slash; or NULL and errno. */
static char *place_of(int object, const char *typed, bool *proc)
{
    static char place[PATH_MAX];
    char link[32];
    *add_fd_path(link, object) = '\0';
    ssize_t size = readlink(link, place, sizeof place - 1);
    *proc = size > 0 && *place == '/';
    if (*proc)
        place[size] = '\0';
    else if (!realpath(typed, place))
        return NULL;
    strrchr(place, '/')[1] = '\0';
    return place;
}

/*
 * Returns 0, or -1 and errno. The directory is opened, and the socket is looked up in it. So a folder on the
 * way that is renamed after the gate of a confined host has checked the open files
 * (host/confine/socket_gate.py) leads to no other socket. Without /proc, only the path is used.
 */
static int address_beside(int object, const char *typed, struct sockaddr_un *address)
{
    bool proc;
    char *place = place_of(object, typed, &proc);
    if (!place)
        return -1;
    address->sun_family = AF_UNIX;
    if (!proc) {
        if (strlen(place) + sizeof SOCKET_NAME > sizeof address->sun_path) {
            errno = ENAMETOOLONG;
            return -1;
        }
        strcpy(stpcpy(address->sun_path, place), SOCKET_NAME);
        return 0;
    }
    int directory = open(place, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory >= 0)
        strcpy(add_fd_path(address->sun_path, directory), "/" SOCKET_NAME);
    return directory < 0 ? -1 : 0;
}

static int reach_daemon(int object, const char *typed)
{
    struct sockaddr_un address = {0};
    if (address_beside(object, typed, &address))
        return -1;
    int daemon = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (daemon < 0 || connect(daemon, (struct sockaddr *)&address, sizeof address))
        return -1;
    return daemon;
}

static _Noreturn void converse(int daemon)
{
    static uint8_t bytes[64 << 10];
    for (;;) {
        if (!wait_for_daemon())
            continue;
        ssize_t n = recv(daemon, bytes, sizeof bytes, 0);
        if (n > 0)
            take(bytes, (size_t)n);
        else if (n == 0 || errno != EINTR)
            bereaved();
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        say(STDERR_FILENO, USAGE_TEXT, sizeof USAGE_TEXT - 1);
        return USAGE;
    }
    if (!strcmp(argv[1], "--version")) { /* names of objects never begin with a dash */
        say(STDOUT_FILENO, VERSION_TEXT, sizeof VERSION_TEXT - 1);
        return 0;
    }
    const char *slash = strrchr(argv[1], '/');
    object_name = slash ? slash + 1 : argv[1];
    watch_signals();
    struct stat object;
    int fd = open_object(argv[1]);
    if (fd < 0 || fstat(fd, &object))
        unreachable(errno);
    int daemon = reach_daemon(fd, argv[1]);
    if (daemon < 0)
        unreachable(errno);
    greet(daemon, object.st_ino, argv + 2);
    conversation = daemon;
    converse(daemon);
}
