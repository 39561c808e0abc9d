"""The system calls that the host of a WebAssembly plugin makes: all others are as on a kernel without them.

A module cannot make any. If it gets out of its engine by a fault of that, it has these and no program to
execute, no file system to mount and no process to trace. What is refused is ENOSYS and never an end, as
libraries try a call and go on without it.

Rules: a call is here because the interpreter, the engine or its way to the network makes it.
This file must never know what a module is.
"""

from __future__ import annotations

from cortexfs.linux.call_numbers import NUMBERS, names
from cortexfs.linux.seccomp import MACHINES

CALLS = names("""
read write close lseek readv writev pread64 pwrite64 open openat stat fstat newfstatat statx access
faccessat faccessat2 readlink readlinkat getdents64 getcwd chdir fchdir mkdir mkdirat rmdir rename
renameat renameat2 unlink unlinkat ftruncate truncate fsync fdatasync flock fcntl dup dup2 dup3 ioctl
umask statfs fstatfs fchmod utimensat fallocate fadvise64 mmap mprotect munmap mremap msync madvise
mincore brk memfd_create membarrier rt_sigaction rt_sigprocmask rt_sigreturn rt_sigtimedwait sigaltstack
tgkill restart_syscall futex clone exit exit_group set_robust_list set_tid_address rseq arch_prctl prctl
gettid getpid getuid geteuid getgid getegid getgroups getresuid getresgid sched_yield sched_getaffinity
sched_setaffinity sched_setattr sched_getattr getcpu getpriority getrlimit prlimit64 getrusage sysinfo
uname unshare nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday getrandom poll ppoll
select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 pipe pipe2 close_range socket
socketpair connect bind getsockname getpeername getsockopt setsockopt sendto recvfrom sendmsg recvmsg
sendmmsg recvmmsg shutdown
""")


def numbers(machine: str) -> list[int]:
    column = MACHINES[machine].column
    return [NUMBERS[name][column] for name in CALLS]
