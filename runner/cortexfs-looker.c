/*
 * Reads for the daemon where its callers are: namespaces, root and working directory.
 *
 *     cortexfs-looker    with a socket (SOCK_SEQPACKET) as standard input
 *
 * Job: answer one question after another, until the daemon is gone (cortexfs/pool/callers.py).
 * Rules: only this process keeps CAP_SYS_PTRACE. Without it, a daemon of root cannot see where processes of
 * other users are; with it, it could write into every process. So this process reads eight bytes at a time,
 * as two numbers, and does nothing else with its power. It opens by O_PATH alone, and asks no file system for
 * attributes, as it may hang.
 * It must never know what a caller wants, or which user it is.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LENGTH(table) (sizeof(table) / sizeof *(table))
#define CAPABILITIES_VERSION 0x20080522 /* _LINUX_CAPABILITY_VERSION_3 */
#define SYS_PTRACE_BIT 19
#define DONT_SYNC 0x4000 /* AT_STATX_DONT_SYNC */
#define WANTED 0x1100u /* STATX_INO and STATX_MNT_ID; offsets in struct statx follow */
#define INODE_AT 32
#define MOUNT_AT 144

/* The order is that of NAMESPACES in cortexfs/linux/syscalls.py. */
static const char *const NAMESPACES[] = {"ns/user", "ns/mnt", "ns/pid", "ns/net", "ns/ipc", "ns/uts", "ns/cgroup"};

struct question {
    uint32_t number;
    uint32_t pid;
};

struct answer {
    uint32_t number;
    uint32_t error; /* an errno */
    uint64_t mount, inode; /* of the root directory */
    uint64_t namespaces[LENGTH(NAMESPACES)];
};

/* Writes "/proc/" and the number to `text`, which has room for 17 bytes. */
static void name_of(uint32_t pid, char *text)
{
    char digits[10];
    size_t count = 0;
    do
        digits[count++] = (char)('0' + pid % 10);
    while (pid /= 10);
    memcpy(text, "/proc/", 6);
    text += 6;
    while (count)
        *text++ = digits[--count];
    *text = 0;
}

/* Reads the number from a link such as "net:[4026531840]", in half the time of stat(2). Returns an errno. */
static int namespace_of(int process, const char *name, uint64_t *number)
{
    char text[64];
    ssize_t size = readlinkat(process, name, text, sizeof text);
    if (size < 0)
        return errno;
    for (ssize_t i = 0; i < size; i++)
        if (text[i] >= '0' && text[i] <= '9')
            *number = *number * 10 + (uint64_t)(text[i] - '0');
    return 0;
}

static int root_of(int process, struct answer *answer)
{
    unsigned char found[256];
    /* Without the flag, a FUSE file system at the root is asked, and may never answer. */
    if (syscall(SYS_statx, process, "root", DONT_SYNC, WANTED, found))
        return errno;
    uint32_t mask;
    memcpy(&mask, found, sizeof mask);
    if ((mask & WANTED) != WANTED)
        return ENOSYS;
    memcpy(&answer->inode, found + INODE_AT, sizeof answer->inode);
    memcpy(&answer->mount, found + MOUNT_AT, sizeof answer->mount);
    return 0;
}

/* Returns an errno. Opens the working directory as `directory`, unless access to it is denied. */
static int look(int process, struct answer *answer, int *directory)
{
    for (size_t i = 0; i < LENGTH(NAMESPACES); i++) {
        int failed = namespace_of(process, NAMESPACES[i], &answer->namespaces[i]);
        if (failed)
            return failed;
    }
    int error = root_of(process, answer);
    if (error)
        return error;
    *directory = openat(process, "cwd", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return *directory < 0 && errno != EACCES ? errno : 0;
}

static int say(const struct answer *answer, int directory)
{
    union {
        struct cmsghdr aligned;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {(void *)answer, sizeof *answer};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (directory >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &directory, sizeof directory);
    }
    ssize_t sent;
    do
        sent = sendmsg(STDIN_FILENO, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0;
}

static int answer(const struct question *question)
{
    struct answer answer = {.number = question->number};
    char name[16 + 1];
    int directory = -1;
    name_of(question->pid, name);
    int process = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    answer.error = (uint32_t)(process < 0 ? errno : look(process, &answer, &directory));
    int failed = say(&answer, directory);
    if (directory >= 0)
        close(directory);
    if (process >= 0)
        close(process);
    return failed;
}

/* Keep only CAP_SYS_PTRACE, and gain no power by executing a program. */
static void give_up(void)
{
    struct {
        uint32_t version;
        int pid;
    } header = {CAPABILITIES_VERSION, 0};
    struct {
        uint32_t effective, permitted, inheritable;
    } sets[2] = {0};
    syscall(SYS_capget, &header, sets);
    sets[0].permitted &= 1u << SYS_PTRACE_BIT;
    sets[0].effective = sets[0].permitted;
    sets[0].inheritable = 0;
    memset(&sets[1], 0, sizeof sets[1]);
    syscall(SYS_capset, &header, sets);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

int main(void)
{
    give_up();
    for (;;) {
        struct question question;
        ssize_t size = read(STDIN_FILENO, &question, sizeof question);
        if (size < 0 && errno == EINTR)
            continue;
        if (size != sizeof question || answer(&question))
            return size != 0;
    }
}
