"""The system calls that the host of a WebAssembly plugin makes: all others are as on a kernel without them.

A module cannot make any. If it gets out of its engine by a fault of that, it has these and no program to
execute, no file system to mount and no process to trace. What is refused is ENOSYS and never an end, as
libraries try a call and go on without it.

Rules: a call is here because the interpreter, the engine or its way to the network makes it.
This file must never know what a module is.
"""

from __future__ import annotations

from cortexfs.linux.seccomp import MACHINES

# By name, the numbers on x86_64 and on aarch64.
_TABLE = """
read 0 63  write 1 64  close 3 57  lseek 8 62  readv 19 65  writev 20 66  pread64 17 67  pwrite64 18 68
open 2 -  openat 257 56  stat 4 -  fstat 5 80  newfstatat 262 79  statx 332 291  access 21 -
faccessat 269 48  faccessat2 439 439  readlink 89 -  readlinkat 267 78  getdents64 217 61  getcwd 79 17
chdir 80 49  fchdir 81 50  mkdir 83 -  mkdirat 258 34  rmdir 84 -  rename 82 -  renameat 264 38
renameat2 316 276  unlink 87 -  unlinkat 263 35  ftruncate 77 46  truncate 76 45  fsync 74 82
fdatasync 75 83  flock 73 32  fcntl 72 25  dup 32 23  dup2 33 -  dup3 292 24  ioctl 16 29  umask 95 166
statfs 137 43  fstatfs 138 44  fchmod 91 52  utimensat 280 88  fallocate 285 47  fadvise64 221 223
mmap 9 222  mprotect 10 226  munmap 11 215  mremap 25 216  msync 26 227  madvise 28 233  mincore 27 232
brk 12 214  memfd_create 319 279  membarrier 324 283  rt_sigaction 13 134  rt_sigprocmask 14 135
rt_sigreturn 15 139  rt_sigtimedwait 128 137  sigaltstack 131 132  tgkill 234 131
restart_syscall 219 128  futex 202 98  clone 56 220  exit 60 93  exit_group 231 94
set_robust_list 273 99  set_tid_address 218 96  rseq 334 293  arch_prctl 158 -  prctl 157 167
gettid 186 178  getpid 39 172  getuid 102 174  geteuid 107 175  getgid 104 176  getegid 108 177
getgroups 115 158  getresuid 118 148  getresgid 120 150  sched_yield 24 124  sched_getaffinity 204 123
sched_setaffinity 203 122  sched_setattr 314 274  sched_getattr 315 275  getcpu 309 168
getpriority 140 141  getrlimit 97 163  prlimit64 302 261  getrusage 98 165  sysinfo 99 179  uname 63 160
unshare 272 97  nanosleep 35 101  clock_nanosleep 230 115  clock_gettime 228 113  clock_getres 229 114
gettimeofday 96 169  getrandom 318 278  poll 7 -  ppoll 271 73  select 23 -  pselect6 270 72
epoll_create1 291 20  epoll_ctl 233 21  epoll_wait 232 -  epoll_pwait 281 22  eventfd2 290 19  pipe 22 -
pipe2 293 59  close_range 436 436  socket 41 198  socketpair 53 199  connect 42 203  bind 49 200
getsockname 51 204  getpeername 52 205  getsockopt 55 209  setsockopt 54 208  sendto 44 206
recvfrom 45 207  sendmsg 46 211  recvmsg 47 212  sendmmsg 307 269  recvmmsg 299 243  shutdown 48 210
"""
_WORDS = iter(_TABLE.split())
CALLS = {name: (next(_WORDS), next(_WORDS)) for name in _WORDS}


def numbers(machine: str) -> list[int]:
    """Returns the numbers of all of them on a machine."""
    column = MACHINES[machine].column
    return [int(each[column]) for each in CALLS.values() if each[column] != "-"]
