#include "common/sandbox/seccomp.h"

#include <asm/ioctls.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>

namespace sluice::sandbox {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "the seccomp filter knows the calls of x86-64 and ARM64 only"
#endif

// clang-format off: one call a line would be three pages.
constexpr uint32_t kAllowed[] = {
    // Files.
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev,
    SYS_preadv2, SYS_pwritev2, SYS_openat, SYS_close, SYS_close_range, SYS_fstat, SYS_newfstatat,
    SYS_statx, SYS_statfs, SYS_fstatfs, SYS_lseek, SYS_faccessat, SYS_faccessat2, SYS_dup, SYS_dup3,
    SYS_fcntl, SYS_flock, SYS_fsync, SYS_fdatasync, SYS_ftruncate, SYS_truncate, SYS_fallocate,
    SYS_fadvise64, SYS_readahead, SYS_getdents64, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_renameat,
    SYS_renameat2, SYS_mkdirat, SYS_linkat, SYS_unlinkat, SYS_symlinkat, SYS_readlinkat, SYS_fchmod,
    SYS_fchmodat, SYS_umask, SYS_utimensat, SYS_copy_file_range, SYS_sendfile, SYS_pipe2,
    // Waiting.
    SYS_pselect6, SYS_ppoll, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_eventfd2,
    SYS_signalfd4, SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime, SYS_nanosleep,
    SYS_clock_nanosleep, SYS_restart_syscall,
    // Memory.
    SYS_mmap, SYS_mprotect, SYS_munmap, SYS_mremap, SYS_madvise, SYS_msync, SYS_mincore, SYS_brk,
    // Time.
    SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_times, SYS_getitimer, SYS_setitimer,
    SYS_timer_create, SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete,
    // Processes, threads and signals.
    SYS_execve, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_kill, SYS_tkill, SYS_tgkill,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending, SYS_rt_sigtimedwait,
    SYS_rt_sigsuspend, SYS_sigaltstack, SYS_futex, SYS_set_robust_list, SYS_get_robust_list,
    SYS_set_tid_address, SYS_rseq, SYS_membarrier, SYS_sched_yield, SYS_sched_getaffinity,
    SYS_sched_setaffinity, SYS_sched_getparam, SYS_sched_getscheduler, SYS_sched_get_priority_max,
    SYS_sched_get_priority_min, SYS_getpriority, SYS_getcpu, SYS_prctl,
    // What a process may know of itself and of the machine.
    SYS_getpid, SYS_gettid, SYS_getppid, SYS_getpgid, SYS_getsid, SYS_setpgid, SYS_setsid,
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid, SYS_getresgid, SYS_getgroups,
    SYS_capget, SYS_prlimit64, SYS_getrlimit, SYS_setrlimit, SYS_getrusage, SYS_uname, SYS_sysinfo,
    SYS_getrandom,
    // Socket pairs, which the rules below limit.
    SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_shutdown, SYS_getsockopt,
    SYS_setsockopt, SYS_getsockname, SYS_getpeername,
#if defined(__x86_64__)
    // The older forms of calls above.
    SYS_open, SYS_creat, SYS_stat, SYS_lstat, SYS_access, SYS_pipe, SYS_select, SYS_poll,
    SYS_epoll_create, SYS_epoll_wait, SYS_eventfd, SYS_dup2, SYS_getdents, SYS_rename, SYS_mkdir,
    SYS_rmdir, SYS_link, SYS_unlink, SYS_symlink, SYS_readlink, SYS_chmod, SYS_utime, SYS_utimes,
    SYS_futimesat, SYS_time, SYS_alarm, SYS_pause, SYS_fork, SYS_vfork, SYS_getpgrp, SYS_arch_prctl,
#endif
};

constexpr uint32_t kKilled[] = {
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_pidfd_getfd, SYS_bpf,
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_keyctl, SYS_add_key,
    SYS_request_key, SYS_userfaultfd, SYS_perf_event_open, SYS_mount, SYS_umount2, SYS_pivot_root,
    SYS_chroot, SYS_unshare, SYS_setns, SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig,
    SYS_fsmount, SYS_fspick, SYS_mount_setattr, SYS_open_by_handle_at, SYS_init_module,
    SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_reboot, SYS_swapon, SYS_swapoff,
#if defined(__x86_64__)
    SYS_iopl, SYS_ioperm, SYS_modify_ldt,
#endif
};

constexpr uint32_t kNetwork[] = {
    SYS_socket, SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_sendmmsg,
    SYS_recvmmsg,
};

// clang-format on

constexpr uint32_t kNamespaceFlags = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                     CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
constexpr uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM;

// Offsets in the data that a filter reads. Arguments are 64 bits wide; their low half comes first.
constexpr uint32_t kNumber = offsetof(seccomp_data, nr);
constexpr uint32_t Argument(size_t i) { return offsetof(seccomp_data, args) + 8 * i; }

class Program {
 public:
  void Load(uint32_t offset) { Add(BPF_LD | BPF_W | BPF_ABS, offset); }
  void And(uint32_t bits) { Add(BPF_ALU | BPF_AND | BPF_K, bits); }
  void Return(uint32_t result) { Add(BPF_RET | BPF_K, result); }
  // Skips the next `skip` instructions unless the loaded number equals `value`.
  void UnlessEqual(uint32_t value, uint8_t skip) { Jump(BPF_JEQ, value, 0, skip); }
  // The rule of one call: returns `result` for it.
  void On(uint32_t number, uint32_t result) {
    UnlessEqual(number, 1);
    Return(result);
  }
  void Jump(uint16_t test, uint32_t value, uint8_t if_true, uint8_t if_false) {
    code_.push_back({static_cast<uint16_t>(BPF_JMP | test | BPF_K), if_true, if_false, value});
  }
  std::vector<sock_filter> Take() { return std::move(code_); }

 private:
  void Add(uint32_t code, uint32_t value) {
    code_.push_back({static_cast<uint16_t>(code), 0, 0, value});
  }
  std::vector<sock_filter> code_;
};

}  // namespace

std::vector<sock_filter> MakeSeccompFilter(bool network) {
  Program program;
  // A 32-bit call has other numbers, so it must not pass by those of 64 bits. The x32 calls of
  // x86-64 have bit 30 set.
  program.Load(offsetof(seccomp_data, arch));
  program.Jump(BPF_JEQ, kArchitecture, 1, 0);
  program.Return(SECCOMP_RET_KILL_PROCESS);
  program.Load(kNumber);
  program.Jump(BPF_JGE, 0x40000000, 0, 1);
  program.Return(SECCOMP_RET_KILL_PROCESS);

  for (const uint32_t number : kAllowed) program.On(number, SECCOMP_RET_ALLOW);
  for (const uint32_t number : kKilled) program.On(number, SECCOMP_RET_KILL_PROCESS);
  if (network) {
    for (const uint32_t number : kNetwork) program.On(number, SECCOMP_RET_ALLOW);
  }

  // clone3 hides its flags behind a pointer, so libc is told to use clone.
  program.On(SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);
  program.UnlessEqual(SYS_clone, 5);
  program.Load(Argument(0));
  program.And(kNamespaceFlags);
  program.Jump(BPF_JEQ, 0, 0, 1);
  program.Return(SECCOMP_RET_ALLOW);
  program.Return(kRefuse);

  // These put characters into the input of a terminal.
  program.UnlessEqual(SYS_ioctl, 5);
  program.Load(Argument(1));
  program.Jump(BPF_JEQ, TIOCSTI, 2, 0);
  program.Jump(BPF_JEQ, TIOCLINUX, 1, 0);
  program.Return(SECCOMP_RET_ALLOW);
  program.Return(kRefuse);

  // Pairs of stream sockets reach nobody else. A datagram socket could be sent to any address.
  program.UnlessEqual(SYS_socketpair, 7);
  program.Load(Argument(0));
  program.Jump(BPF_JEQ, AF_UNIX, 0, 4);
  program.Load(Argument(1));
  program.And(0xf);
  program.Jump(BPF_JEQ, SOCK_STREAM, 0, 1);
  program.Return(SECCOMP_RET_ALLOW);
  program.Return(kRefuse);

  program.Return(kRefuse);
  return program.Take();
}

}  // namespace sluice::sandbox
