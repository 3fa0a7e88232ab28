#include "common/plugins/sandboxed.h"

#include <fcntl.h>
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
#include "common/base/file.h"
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
    binds.push_back({std::string(path), std::string(path), nullptr});
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

absl::Status LinkError(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr),
                                                         &std::free);
  return absl::FailedPreconditionError(
      absl::StrCat("the sandbox of the plug-in cannot show ", path, ", which is ",
                   real == nullptr ? "a link to nothing" : real.get(),
                   ": name the plug-in, and the folder of its Python, by the paths without links"));
}

absl::Status UnreadableError(const std::string& path, const std::string& part, bool folder) {
  return ErrorWith(absl::StatusCode::kFailedPrecondition,
                   {.hint = absl::StrCat("chmod o+", folder ? "rx " : "r ", part)},
                   absl::StrCat("the sandbox of the plug-in cannot show ", path, ": other users ",
                                "than the owner cannot read ", part));
}

// Opens the file or folder of the path, part by part, so that what was checked is what is shown,
// even if its owner renames meanwhile. By a link a plug-in could be shown what its owner may not
// name, so none lies on the way. With `for_all`, all users can read it: the sandboxes of root have
// users of their own.
absl::StatusOr<std::shared_ptr<const Fd>> OpenShown(const std::string& path, bool for_all) {
  Fd place(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (size_t begin = 1, end = 0; end != std::string::npos; begin = end + 1) {
    end = path.find('/', begin);
    const std::string name = path.substr(begin, end - begin), part = path.substr(0, end);
    if (name.empty() || name == "." || name == "..") return LinkError(path);
    Fd next(openat(place.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat info = {};
    if (!next.valid() || fstat(next.get(), &info) != 0) return ErrnoStatus(errno, part);
    if (S_ISLNK(info.st_mode)) return LinkError(path);
    // To pass a folder needs less than to list it.
    mode_t wanted = S_ISDIR(info.st_mode) ? S_IXOTH : 0;
    if (end == std::string::npos) wanted |= S_IROTH;
    if (for_all && (info.st_mode & wanted) != wanted)
      return UnreadableError(path, part, S_ISDIR(info.st_mode));
    place = std::move(next);
  }
  return std::make_shared<const Fd>(std::move(place));
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
    for (sandbox::Bind& bind : command.binds) {
      SLUICE_ASSIGN_OR_RETURN(bind.opened, OpenShown(bind.from, /*for_all=*/geteuid() == 0));
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
