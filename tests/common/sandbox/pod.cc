#include "tests/common/sandbox/pod.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/base/file.h"
#include "common/base/pipe.h"
#include "common/base/status.h"

namespace sluice::sandbox {
namespace {

constexpr char kResult = 'r', kFailure = 'f';  // The first byte of what the container reports.

// The part of the process that becomes the container. A step that fails ends it.
class Container {
 public:
  // `place` is an empty folder.
  Container(const Pod& pod, const std::string& place, int report)
      : pod_(pod), place_(place), report_(report) {}

  void Enter() {
    MountRoot();
    MaskProc();
    DropPrivileges();
    if (pod_.default_seccomp) FilterCalls();
    setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1);
  }

  void Report(char kind, const std::string& text) const {
    (void)WriteAll(report_, absl::StrCat(std::string(1, kind), text), "report");
  }

 private:
  void Check(bool done, const std::string& step) const {
    if (done) return;
    Report(kFailure, absl::StrCat(step, ": ", std::strerror(errno)));
    _exit(1);
  }
  void Bind(const std::string& from, const std::string& to) const {
    Check(mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0,
          absl::StrCat("bind ", from));
  }
  void MountTmpfs(const std::string& to, const std::string& options) const {
    Check(mkdir(to.c_str(), 0755) == 0 || errno == EEXIST, to);
    Check(mount("tmpfs", to.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options.c_str()) == 0, to);
  }
  void MakeReadOnly(const std::string& path) const {
    Check(mount(nullptr, path.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0,
          absl::StrCat("read-only ", path));
  }

  void MountRoot() const {
    Check(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "private mounts");
    const char* const given = std::getenv("SLUICE_POD_ROOT");
    const std::string image = given == nullptr ? "/" : given;
    const std::string& base = place_;
    Check(mount(image.c_str(), base.c_str(), nullptr, MS_BIND, nullptr) == 0,
          absl::StrCat("bind ", image));
    if (given == nullptr) Bind("/usr", base + "/usr");
    Check(mount("proc", (base + "/proc").c_str(), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC,
                nullptr) == 0,
          "proc");
    MountTmpfs(base + "/dev", "mode=0755");
    for (const char* const device :
         {"/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/random", "/dev/urandom"}) {
      const Fd place(open((base + device).c_str(), O_CREAT | O_WRONLY, 0666));
      Bind(device, base + device);
    }
    MountTmpfs(base + "/tmp", "mode=01777");
    MountTmpfs(base + "/run", "mode=0755");
    // As the kubelet makes an emptyDir.
    MountTmpfs(base + "/run/sluice-sandbox", absl::StrCat("mode=0777,size=", pod_.sandbox_bytes));
    if (pod_.own_cgroup) Bind("/sys", base + "/sys");
    MakeReadOnly(base);

    Check(chdir(base.c_str()) == 0 && syscall(SYS_pivot_root, ".", ".") == 0 &&
              umount2(".", MNT_DETACH) == 0 && chdir("/") == 0,
          "pivot_root");
  }

  void MaskProc() const {
    if (!pod_.masked_proc) return;
    for (const std::string hidden : {"kcore", "keys", "timer_list"}) {
      if (PathExists("/proc/" + hidden)) Bind("/dev/null", "/proc/" + hidden);
    }
    for (const std::string fixed : {"bus", "fs", "irq", "sys", "sysrq-trigger"}) {
      const std::string path = "/proc/" + fixed;
      if (!PathExists(path)) continue;
      Bind(path, path);
      MakeReadOnly(path);
    }
  }

  void DropPrivileges() const {
    Check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    uint64_t kept = 0;
    for (const int capability : pod_.capabilities) kept |= uint64_t{1} << capability;
    for (int capability = 0; capability <= CAP_LAST_CAP; ++capability) {
      if ((kept >> capability & 1) == 0) (void)prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
    }
    Check(syscall(SYS_setgroups, 0, nullptr) == 0, "setgroups");
    if (!pod_.root) {
      Check(syscall(SYS_setresgid, 10001, 10001, 10001) == 0, "setresgid");
      Check(syscall(SYS_setresuid, 10001, 10001, 10001) == 0, "setresuid");
      return;
    }
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    for (int half = 0; half < 2; ++half) {
      const auto bits = static_cast<uint32_t>(kept >> (32 * half));
      data[half] = {.effective = bits, .permitted = bits, .inheritable = 0};
    }
    Check(syscall(SYS_capset, &header, data) == 0, "capset");
  }

  void FilterCalls() const {
    constexpr uint32_t kNamespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                                     CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
    constexpr uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM;
    const auto on = [](std::vector<sock_filter>* out, uint32_t number, uint32_t result) {
      out->push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
      out->push_back(BPF_STMT(BPF_RET | BPF_K, result));
    };
    std::vector<sock_filter> code = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
    for (const uint32_t number :
         {SYS_mount,     SYS_umount2,       SYS_pivot_root,  SYS_unshare,         SYS_setns,
          SYS_fsopen,    SYS_fsconfig,      SYS_fsmount,     SYS_fspick,          SYS_move_mount,
          SYS_open_tree, SYS_mount_setattr, SYS_bpf,         SYS_perf_event_open, SYS_add_key,
          SYS_keyctl,    SYS_request_key,   SYS_userfaultfd, SYS_io_uring_setup,  SYS_chroot})
      on(&code, number, kRefuse);
    on(&code, SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4));
    code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)));
    code.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, kNamespaces));
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, kRefuse));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    const sock_fprog program{static_cast<uint16_t>(code.size()), code.data()};
    Check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0, "seccomp");
  }

  const Pod& pod_;
  const std::string& place_;
  const int report_;
};

// The first process of the container, which takes notice of all that end in it.
[[noreturn]] void RunFirstProcess(pid_t worker) {
  while (true) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    if (ended == worker) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    if (ended < 0 && errno != EINTR) _exit(1);
  }
}

}  // namespace

absl::StatusOr<std::string> RunInPod(const Pod& pod, const std::function<std::string()>& work) {
  SLUICE_ASSIGN_OR_RETURN(Pipe report, MakePipe());
  std::string place = "/tmp/sluice-pod-XXXXXX";
  if (mkdtemp(place.data()) == nullptr) return ErrnoStatus(errno, place);
  const pid_t outer = fork();
  if (outer == 0) {
    Container container(pod, place, report.write.get());
    if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET) != 0) {
      container.Report(kFailure, absl::StrCat("unshare: ", std::strerror(errno)));
      _exit(1);
    }
    const pid_t first = fork();
    if (first > 0) RunFirstProcess(first);  // Of the outer namespace; it only waits.
    container.Enter();
    if (const pid_t worker = fork(); worker != 0) RunFirstProcess(worker);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    container.Report(kResult, work());
    _exit(0);
  }

  report.write = Fd();
  std::string text;
  char piece[4096];
  for (ssize_t got; (got = read(report.read.get(), piece, sizeof piece)) > 0;)
    text.append(piece, static_cast<size_t>(got));
  waitpid(outer, nullptr, 0);
  (void)rmdir(place.c_str());
  if (text.empty()) return absl::InternalError("the container's process has ended");
  if (text[0] == kFailure) return absl::InternalError(text.substr(1));
  return text.substr(1);
}

}  // namespace sluice::sandbox
