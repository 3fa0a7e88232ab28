#include "common/plugins/launch.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/child.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sluice {
namespace plugin_sdk {
extern const absl::string_view sluice_reward_py;
}  // namespace plugin_sdk

namespace {

constexpr const char* kEnvironment[] = {"PATH",   "HOME",       "LANG",        "LC_ALL",
                                        "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "TZ"};

absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& folders) {
  if (absl::StrContains(name, '/')) return name;
  for (const absl::string_view folder : absl::StrSplit(folders, ':')) {
    const std::string file = absl::StrCat(folder, "/", name);
    if (!folder.empty() && access(file.c_str(), X_OK) == 0) return file;
  }
  return absl::NotFoundError(absl::StrCat("no folder of ", folders, " has the program ", name));
}

// A child of this process, which leads a process group.
class PlainChild : public PluginChild {
 public:
  explicit PlainChild(const Child& child)
      : pid_(child.pid),
        pidfd_(static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0))),
        in_(child.stdin_fd),
        out_(child.stdout_fd),
        err_(child.stderr_fd) {}
  ~PlainChild() override { Kill(); }

  int in() const override { return in_.get(); }
  int out() const override { return out_.get(); }
  int err() const override { return err_.get(); }
  absl::StatusOr<int> Wait(absl::Duration timeout) override {
    return AwaitChild(pidfd_.get(), timeout);
  }
  void Kill() override {
    MutexLock lock(&mu_);
    if (reaped_) return;
    kill(-pid_, SIGKILL);
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    reaped_ = true;
  }

 private:
  const pid_t pid_;
  const Fd pidfd_, in_, out_, err_;
  Mutex mu_;
  bool reaped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

std::string ProgramFolders() {
  const char* const path = std::getenv("PATH");
  return path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
}

absl::StatusOr<PluginCommand> PluginCommandOf(const PluginSpec& spec, const std::string& folders) {
  PluginCommand command{.argv = spec.command, .folder = spec.file.substr(0, spec.file.rfind('/'))};
  if (spec.kind != PluginSpec::Kind::kExec) {
    const char* const convention = spec.kind == PluginSpec::Kind::kVerl  ? "--verl"
                                   : spec.kind == PluginSpec::Kind::kTrl ? "--trl"
                                                                         : "--native";
    command.argv = {
        spec.python, "-c", std::string(plugin_sdk::sluice_reward_py), convention,
        spec.function.empty() ? spec.file : absl::StrCat(spec.file, ":", spec.function)};
    if (spec.in_flight > 1)
      command.argv.insert(command.argv.end(), {"--max-in-flight", absl::StrCat(spec.in_flight)});
  }
  SLUICE_ASSIGN_OR_RETURN(command.argv[0], FindProgram(command.argv[0], folders));
  return command;
}

absl::StatusOr<std::unique_ptr<PluginChild>> LaunchUnconfined(const PluginCommand& command) {
  ChildOptions options{.argv = command.argv,
                       .stderr_path = "",
                       .pipes = true,
                       .env = {{"PYTHONUNBUFFERED", "1"}, {"PYTHONDONTWRITEBYTECODE", "1"}},
                       .only_env = true,
                       .folder = command.folder};
  for (const char* const name : kEnvironment) {
    if (const char* const value = std::getenv(name); value != nullptr) options.env[name] = value;
  }
  SLUICE_ASSIGN_OR_RETURN(const Child child, StartChild(options));
  return std::make_unique<PlainChild>(child);
}

}  // namespace sluice
