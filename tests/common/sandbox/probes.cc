#include "tests/common/sandbox/probes.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/common/sandbox/tiers.h"

namespace sluice::sandbox {
namespace {

constexpr char kPrelude[] = R"(
import ctypes, fcntl, os, resource, socket, stat, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
  return libc.syscall(ctypes.c_long(number), *[
      a if isinstance(a, (bytes, ctypes.Array)) else ctypes.c_long(a) for a in arguments])
def escaped():
  os.write(1, b'ESCAPED\n')
os.write(1, b'ran\n')
)";

}  // namespace

const std::vector<Probe>& Probes() {
  static const std::vector<Probe>* const probes = new std::vector<Probe>{
      // Networks.
      {"IPv4", "socket.socket(socket.AF_INET); escaped()"},
      {"IPv4Connect", "socket.create_connection(('127.0.0.1', 22), 1); escaped()"},
      {"IPv6", "socket.socket(socket.AF_INET6); escaped()"},
      {"UDP", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM); escaped()"},
      {"RawSocket", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); escaped()"},
      {"PacketSocket", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW); escaped()"},
      {"UnixSocket", "socket.socket(socket.AF_UNIX); escaped()"},
      {"UnixDatagramPair", "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); escaped()"},
      {"Netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW); escaped()"},
      {"Vsock", "socket.socket(socket.AF_VSOCK); escaped()"},
      {"KernelCrypto", "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET); escaped()"},
      {"NameLookup", "socket.getaddrinfo('example.com', 80); escaped()"},
      {"IoUringSocket", "call(425, 8, ctypes.create_string_buffer(256)) >= 0 and escaped()"},

      // Files of the host.
      {"PasswordFile", "open('/etc/passwd').read(); escaped()"},
      {"HostFile", "open('HOST_FILE').read(); escaped()"},
      {"HostFileByProcRoot", "open('/proc/self/root' + 'HOST_FILE').read(); escaped()"},
      {"HostFileByFirstProcess", "open('/proc/1/root' + 'HOST_FILE').read(); escaped()"},
      {"HostFileByTest", "open('/proc/HOST_PID/root' + 'HOST_FILE').read(); escaped()"},
      {"HostFileByParents", "open('../' * 20 + 'HOST_FILE').read(); escaped()"},
      {"HostFileByLink", "os.symlink('HOST_FILE', 'l'); open('l').read(); escaped()"},
      {"HostFileByHardLink", "os.link('HOST_FILE', 'l'); open('l').read(); escaped()"},
      {"HostFileByRename", "os.rename('HOST_FILE', 'moved'); escaped()"},
      {"HostFileRemoved", "os.unlink('HOST_FILE'); escaped()"},
      {"HostFileMode", "os.chmod('HOST_FILE', 0o777); escaped()"},
      {"HostFileTruncated", "os.truncate('HOST_FILE', 0); escaped()"},
      {"LinkRace", R"(
def swap():
  while True:
    os.symlink('.', 'n'); os.rename('n', 'd')
    os.symlink('/etc', 'n'); os.rename('n', 'd')
threading.Thread(target=swap, daemon=True).start()
for _ in range(300):
  try: open('d/shadow'); escaped()
  except OSError: pass
)"},
      {"HomeOfRoot", "os.listdir('/root'); escaped()"},
      {"Boot", "os.listdir('/boot'); escaped()"},
      {"RunFolder", "os.listdir('/run'); escaped()"},
      {"OtherBoxes", "os.listdir('/run/sluice-sandbox'); escaped()"},
      {"WriteUsr", "open('/usr/x', 'w'); escaped()"},
      {"WriteRoot", "open('/x', 'w'); escaped()"},
      {"WriteDev", "open('/dev/x', 'w'); escaped()"},
      {"SharedMemory", "open('/dev/shm/x', 'w'); escaped()"},
      {"FolderInRoot", "os.mkdir('/new'); escaped()"},
      {"Sysctl", "open('/proc/sys/kernel/hostname', 'wb', 0).write(b'x'); escaped()"},
      {"CorePattern", "open('/proc/sys/kernel/core_pattern', 'wb', 0).write(b'|/x'); escaped()"},
      {"SysRq", "open('/proc/sysrq-trigger', 'wb', 0).write(b'h'); escaped()"},
      {"Sys", "os.listdir('/sys'); escaped()"},
      {"Cgroup", "open('/sys/fs/cgroup/memory/tasks', 'wb', 0).write(b'0'); escaped()"},
      {"OpenByHandle", "call(304, -100, ctypes.create_string_buffer(64), 0) >= 0 and escaped()"},

      // Other processes.
      {"FirstEnvironment",
       "b'SLUICE_TEST_SECRET' in open('/proc/1/environ', 'rb').read() and escaped()"},
      {"OwnEnvironment", "'SLUICE_TEST_SECRET' in os.environ and escaped()"},
      {"ParentEnvironment",
       "b'SLUICE_TEST_SECRET' in open('/proc/%d/environ' % os.getppid(), 'rb').read() "
       "and escaped()"},
      {"OtherProcesses", "len([p for p in os.listdir('/proc') if p.isdigit()]) > 3 and escaped()"},
      {"HostProcess", "open('/proc/HOST_PID/cmdline').read(); escaped()"},
      {"SignalHostProcess", "os.kill(HOST_PID, 0); escaped()"},
      {"KillHostProcess", "os.kill(HOST_PID, 9); escaped()"},
      {"KillParent", "os.getppid() > 0 and os.kill(os.getppid(), 9) is None and escaped()"},
      {"KillGroupOfParent", "os.killpg(os.getpgid(os.getppid()), 9); escaped()"},
      {"PtraceParent", "call(101, 16, os.getppid(), 0, 0) == 0 and escaped()"},
      {"PtraceMe", "call(101, 0, 0, 0, 0) == 0 and escaped()"},
      {"ProcessVmRead", "call(310, os.getpid(), 0, 0, 0, 0, 0) == 0 and escaped()"},
      {"ProcessVmWrite", "call(311, os.getpid(), 0, 0, 0, 0, 0) == 0 and escaped()"},
      {"PidfdGetfd", "call(438, 0, 0, 0) >= 0 and escaped()"},
      {"InheritedDescriptors", R"(
own = os.open('/usr', os.O_RDONLY)
for fd in range(3, 1024):
  try: fd != own and os.fstat(fd) and escaped()
  except OSError: pass
)"},
      {"Kcmp", "call(312, os.getpid(), os.getpid(), 0, 0, 0) == 0 and escaped()"},

      // Namespaces, mounts and users.
      {"UnshareUser", "call(272, 0x10000000) == 0 and escaped()"},
      {"UnshareMount", "call(272, 0x20000) == 0 and escaped()"},
      {"CloneUser", "call(56, 0x10000000 | 17, 0, 0, 0, 0) >= 0 and escaped()"},
      {"CloneNetwork", "call(56, 0x40000000 | 17, 0, 0, 0, 0) >= 0 and escaped()"},
      {"Clone3", "call(435, ctypes.create_string_buffer(88), 88) >= 0 and escaped()"},
      {"SetNs", "call(308, os.open('/proc/self/ns/net', os.O_RDONLY), 0) == 0 and escaped()"},
      {"Chroot", "os.chroot('.'); escaped()"},
      {"PivotRoot", "call(155, b'.', b'.') == 0 and escaped()"},
      {"Mount", "call(165, b'none', b'/tmp', b'tmpfs', 0, 0) == 0 and escaped()"},
      {"Remount", "call(165, b'none', b'/', b'', 32, 0) == 0 and escaped()"},
      {"Unmount", "call(166, b'/proc', 2) == 0 and escaped()"},
      {"FsOpen", "call(430, b'tmpfs', 0) >= 0 and escaped()"},
      {"OpenTree", "call(428, -100, b'/', 1) >= 0 and escaped()"},
      {"BecomeRoot", "os.setuid(0); escaped()"},
      {"BecomeOther", "os.setresuid(1, 1, 1); escaped()"},
      {"Groups", "os.setgroups([0]); escaped()"},
      {"SetuidProgram",
       "subprocess.run(['/usr/bin/su', '-c', 'id'], stdin=subprocess.DEVNULL, "
       "stdout=subprocess.DEVNULL).returncode == 0 and escaped()"},
      {"OwnSetuidProgram", R"(
import shutil
shutil.copy('/usr/bin/id', 'id'); os.chmod('id', 0o4755)
b'euid' in subprocess.run(['./id'], capture_output=True).stdout and escaped()
)"},
      {"NewPrivileges", "call(157, 38, 0, 0, 0, 0) == 0 and escaped()"},
      {"NoSeccomp", "call(157, 22, 0, 0, 0, 0) == 0 and escaped()"},
      {"Capabilities", "call(126, ctypes.create_string_buffer(8), 0) == 0 and escaped()"},

      // The kernel.
      {"Bpf", "call(321, 0, ctypes.create_string_buffer(128), 128) >= 0 and escaped()"},
      {"KeyCtl", "call(250, 0, -3, 1) >= 0 and escaped()"},
      {"AddKey", "call(248, b'user', b'x', b'y', 1, -3) >= 0 and escaped()"},
      {"Perf", "call(298, ctypes.create_string_buffer(128), 0, -1, -1, 0) >= 0 and escaped()"},
      {"UserFaultFd", "call(323, 1) >= 0 and escaped()"},
      {"MemfdExec", "os.memfd_create('x'); escaped()"},
      {"SysVSharedMemory", "call(29, 0, 4096, 0o1600) >= 0 and escaped()"},
      {"SysVMessages", "call(68, 0, 0o1600) >= 0 and escaped()"},
      {"PosixQueue", "call(240, b'x', 0o102, 0o600, 0) >= 0 and escaped()"},
      {"KernelLog", "call(103, 3, ctypes.create_string_buffer(64), 64) >= 0 and escaped()"},
      {"Reboot", "call(169, 0xfee1dead, 672274793, 0, 0) == 0 and escaped()"},
      {"LoadModule", "call(175, b'', 0, b'') == 0 and escaped()"},
      {"Kexec", "call(246, 0, 0, 0, 0) == 0 and escaped()"},
      {"Ports", "call(172, 3) == 0 and escaped()"},
      {"Personality", "call(135, 0x0040000) >= 0 and escaped()"},
      {"SetTime", "call(164, ctypes.create_string_buffer(16), 0) == 0 and escaped()"},
      {"HostName", "call(170, b'x', 1) == 0 and escaped()"},
      {"RealTime", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); escaped()"},
      {"Fanotify", "call(300, 0, 0) >= 0 and escaped()"},
      {"X32Call", "call(0x40000000 | 39) > 0 and escaped()"},
      {"DeviceNode", "os.mknod('d', 0o600 | stat.S_IFBLK, os.makedev(8, 0)); escaped()"},
      {"Memory", "open('/dev/mem', 'rb'); escaped()"},
      {"Disk", "open('/dev/sda', 'rb'); escaped()"},
      {"VirtualDisk", "open('/dev/vda', 'rb'); escaped()"},
      {"TerminalInput", "fcntl.ioctl(0, 0x5412, b'x') == 0 and escaped()"},
      {"Tty", "os.open('/dev/tty', os.O_RDWR); escaped()"},

      // Limits.
      {"MoreFiles", "resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000)); escaped()"},
      {"MoreMemory", "resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); escaped()"},
      {"LargerFiles", "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1)); escaped()"},
      {"CoreFiles", "resource.setrlimit(resource.RLIMIT_CORE, (1000, 1000)); escaped()"},
      {"OomScore", "open('/proc/self/oom_score_adj', 'wb', 0).write(b'-1000'); escaped()"},
      {"LargeFile", R"(
file = open('large', 'wb')
for _ in range(65): file.write(bytes(1 << 20))
file.flush(); escaped()
)"},
  };
  return *probes;
}

std::string CodeOf(const Probe& probe, const std::string& host_file, pid_t host_pid) {
  return absl::StrCat(
      kPrelude, absl::StrReplaceAll(
                    probe.code, {{"HOST_FILE", host_file}, {"HOST_PID", absl::StrCat(host_pid)}}));
}

std::vector<std::string> FindEscapes(Launcher* launcher, const std::string& host_file,
                                     pid_t host_pid) {
  std::vector<std::string> sentences;
  for (const Probe& probe : Probes()) {
    const Ran ran = RunPython(launcher, CodeOf(probe, host_file, host_pid));
    const char* const what = !absl::StartsWith(ran.out, "ran\n")     ? " did not begin"
                             : absl::StrContains(ran.out, "ESCAPED") ? " escaped"
                             : ran.status == -1                      ? " did not end"
                                                                     : nullptr;
    if (what != nullptr) sentences.push_back(absl::StrCat(probe.name, what, ": ", ran.err));
  }
  return sentences;
}

}  // namespace sluice::sandbox
