#include "common/plugins/sandboxed.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace sluice {
namespace {

class SandboxedChild : public PluginChild {
 public:
  explicit SandboxedChild(std::unique_ptr<sandbox::Process> process)
      : process_(std::move(process)) {}

  int in() const override { return process_->in(); }
  int out() const override { return process_->out(); }
  int err() const override { return process_->err(); }
  absl::StatusOr<int> Wait(absl::Duration timeout) override { return process_->Wait(timeout); }
  // The launcher logs it if something is left.
  void Kill() override { process_->Kill().IgnoreError(); }

 private:
  const std::unique_ptr<sandbox::Process> process_;
};

bool IsBelow(absl::string_view path, absl::string_view folder) {
  return absl::StartsWith(path, absl::StrCat(folder, "/"));
}

bool IsRegularFile(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

absl::string_view ParentOf(absl::string_view path) { return path.substr(0, path.rfind('/')); }

// What the process must see besides /usr.
std::vector<sandbox::Bind> BindsOf(const PluginCommand& command) {
  std::vector<sandbox::Bind> binds;
  const auto show = [&](absl::string_view path) {
    if (path.empty() || IsBelow(path, "/usr")) return;
    for (const sandbox::Bind& bind : binds) {
      if (path == bind.from || IsBelow(path, bind.from)) return;
    }
    binds.push_back({std::string(path), std::string(path)});
  };
  show(command.folder);
  const absl::string_view bin = ParentOf(command.argv[0]);
  const std::string above(ParentOf(bin));
  if (absl::EndsWith(bin, "/bin") && IsRegularFile(above + "/pyvenv.cfg")) show(above);
  for (const std::string& word : command.argv) {
    if (absl::StartsWith(word, "/") && !IsBelow(word, "/bin") && IsRegularFile(word)) show(word);
  }
  return binds;
}

// Whether the path is that of the file or folder itself. By a link a plug-in could be shown what
// its owner may not name.
absl::Status CheckNoLinks(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr),
                                                         &std::free);
  if (real == nullptr) return ErrnoStatus(errno, path);
  if (path == real.get() && path != "/") return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the sandbox of the plug-in cannot show ", path, ", which is ", real.get(),
                   ": name the plug-in, and the folder of its Python, by the paths without links"));
}

// Whether all users can read the path. A root's sandboxes have users of their own.
absl::Status CheckReadable(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    struct stat info = {};
    if (stat(part.c_str(), &info) != 0) return ErrnoStatus(errno, part);
    // To pass a folder needs less than to list it.
    mode_t wanted = S_ISDIR(info.st_mode) ? S_IXOTH : 0;
    if (end == std::string::npos) wanted |= S_IROTH;
    if ((info.st_mode & wanted) != wanted) {
      return ErrorWith(
          absl::StatusCode::kFailedPrecondition,
          {.hint = absl::StrCat("chmod o+", S_ISDIR(info.st_mode) ? "rx " : "r ", part)},
          absl::StrCat("the sandbox of the plug-in cannot show ", path, ": other users than the ",
                       "owner cannot read ", part));
    }
    if (end == std::string::npos) return absl::OkStatus();
  }
}

}  // namespace

LaunchPlugin LaunchInSandbox(sandbox::Launcher* launcher, const sandbox::Limits& limits) {
  return [launcher,
          limits](const PluginCommand& plugin) -> absl::StatusOr<std::unique_ptr<PluginChild>> {
    if (plugin.folder.empty()) {
      return absl::FailedPreconditionError(
          "a plug-in that runs in a sandbox sees the folder that it lies in, so it must not lie in "
          "/; move it to a folder of its own");
    }
    sandbox::Command command{
        .argv = plugin.argv,
        .environment = {{"PYTHONUNBUFFERED", "1"}, {"PYTHONDONTWRITEBYTECODE", "1"}},
        .binds = BindsOf(plugin),
        .limits = limits};
    for (const sandbox::Bind& bind : command.binds) {
      SLUICE_RETURN_IF_ERROR(CheckNoLinks(bind.from));
      if (geteuid() == 0) SLUICE_RETURN_IF_ERROR(CheckReadable(bind.from));
    }
    for (const char* const name : {"LANG", "LC_ALL", "TZ"}) {
      if (const char* const value = std::getenv(name); value != nullptr)
        command.environment[name] = value;
    }
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<sandbox::Process> process, launcher->Start(command));
    return std::make_unique<SandboxedChild>(std::move(process));
  };
}

}  // namespace sluice
