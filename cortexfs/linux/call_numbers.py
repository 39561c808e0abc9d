"""The numbers of system calls by name, on x86_64 and on aarch64.

This file must never know who may make a call.
"""

from __future__ import annotations

# "-": this machine lacks the call.
_TABLE = """
access 21 -  add_key 248 217  arch_prctl 158 -  bind 49 200  bpf 321 280  brk 12 214  chdir 80 49
chmod 90 -  chown 92 -  clock_getres 229 114  clock_gettime 228 113  clock_nanosleep 230 115  clone 56 220
clone3 435 435  close 3 57  close_range 436 436  connect 42 203  creat 85 -  dup 32 23  dup2 33 -
dup3 292 24  epoll_create1 291 20  epoll_ctl 233 21  epoll_pwait 281 22  epoll_wait 232 -  eventfd2 290 19
execve 59 221  execveat 322 281  exit 60 93  exit_group 231 94  faccessat 269 48  faccessat2 439 439
fadvise64 221 223  fallocate 285 47  fchdir 81 50  fchmod 91 52  fchmodat 268 53  fchmodat2 452 452
fchown 93 55  fchownat 260 54  fcntl 72 25  fdatasync 75 83  file_setattr 469 469  flock 73 32  fork 57 -
fremovexattr 199 16  fsconfig 431 431  fsetxattr 190 7  fsmount 432 432  fsopen 430 430  fspick 433 433
fstat 5 80  fstatfs 138 44  fsync 74 82  ftruncate 77 46  futex 202 98  futimesat 261 -  getcpu 309 168
getcwd 79 17  getdents64 217 61  getegid 108 177  geteuid 107 175  getgid 104 176  getgroups 115 158
getpeername 52 205  getpid 39 172  getpriority 140 141  getrandom 318 278  getresgid 120 150
getresuid 118 148  getrlimit 97 163  getrusage 98 165  getsockname 51 204  getsockopt 55 209  gettid 186 178
gettimeofday 96 169  getuid 102 174  io_uring_enter 426 426  io_uring_register 427 427
io_uring_setup 425 425  ioctl 16 29  ioprio_set 251 30  kexec_file_load 320 294  kexec_load 246 104
keyctl 250 219  kill 62 129  lchown 94 -  listen 50 201  lremovexattr 198 15  lseek 8 62  lsetxattr 189 6
madvise 28 233  membarrier 324 283  memfd_create 319 279  mincore 27 232  mkdir 83 -  mkdirat 258 34
mknod 133 -  mknodat 259 33  mmap 9 222  mount 165 40  mount_setattr 442 442  move_mount 429 429
mprotect 10 226  mq_open 240 180  mq_unlink 241 181  mremap 25 216  msgctl 71 187  msgget 68 186
msgrcv 70 188  msgsnd 69 189  msync 26 227  munmap 11 215  nanosleep 35 101  newfstatat 262 79  open 2 -
open_by_handle_at 304 265  open_tree 428 428  open_tree_attr 467 467  openat 257 56  openat2 437 437
perf_event_open 298 241  pidfd_getfd 438 438  pidfd_send_signal 424 424  pipe 22 -  pipe2 293 59
pivot_root 155 41  poll 7 -  ppoll 271 73  prctl 157 167  pread64 17 67  prlimit64 302 261
process_vm_readv 310 270  process_vm_writev 311 271  pselect6 270 72  ptrace 101 117  pwrite64 18 68
read 0 63  readlink 89 -  readlinkat 267 78  readv 19 65  recvfrom 45 207  recvmmsg 299 243  recvmsg 47 212
removexattr 197 14  removexattrat 466 466  rename 82 -  renameat 264 38  renameat2 316 276
request_key 249 218  restart_syscall 219 128  rmdir 84 -  rseq 334 293  rt_sigaction 13 134
rt_sigprocmask 14 135  rt_sigqueueinfo 129 138  rt_sigreturn 15 139  rt_sigtimedwait 128 137
rt_tgsigqueueinfo 297 240  sched_getaffinity 204 123  sched_getattr 315 275  sched_setaffinity 203 122
sched_setattr 314 274  sched_setparam 142 118  sched_setscheduler 144 119  sched_yield 24 124
seccomp 317 277  select 23 -  semctl 66 191  semget 64 190  semop 65 193  semtimedop 220 192
sendmmsg 307 269  sendmsg 46 211  sendto 44 206  set_robust_list 273 99  set_tid_address 218 96
setns 308 268  setpriority 141 140  setsockopt 54 208  setxattr 188 5  setxattrat 463 463  shmat 30 196
shmctl 31 195  shmget 29 194  shutdown 48 210  sigaltstack 131 132  socket 41 198  socketpair 53 199
stat 4 -  statfs 137 43  statx 332 291  sysinfo 99 179  tgkill 234 131  tkill 200 130  truncate 76 45
umask 95 166  umount2 166 39  uname 63 160  unlink 87 -  unlinkat 263 35  unshare 272 97
userfaultfd 323 282  utime 132 -  utimensat 280 88  utimes 235 -  vfork 58 -  write 1 64  writev 20 66
"""
_WORDS = iter(_TABLE.replace("-", "-1").split())
NUMBERS = {name: (int(next(_WORDS)), int(next(_WORDS))) for name in _WORDS}


def names(text: str) -> list[str]:
    """Returns the words of a text, without its lines that begin with #."""
    return [name for line in text.splitlines() if not line.lstrip().startswith("#") for name in line.split()]
