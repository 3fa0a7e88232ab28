#include "common/plugins/plugin_program.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/plugins/plugin_files.h"
#include "common/plugins/plugin_process.h"

namespace sluice {
namespace {

class PluginProgram : public PluginSource {
 public:
  PluginProgram(PluginSpec spec, std::string job, LaunchPlugin launch, PluginCommand command,
                std::vector<std::string> files)
      : spec_(std::move(spec)),
        job_(std::move(job)),
        launch_(std::move(launch)),
        command_(std::move(command)),
        files_(std::move(files)) {}

  std::string name() const override { return spec_.file; }

  absl::StatusOr<std::string> Version(absl::Duration, absl::Duration) override {
    SLUICE_ASSIGN_OR_RETURN(std::vector<std::string> files, PluginFiles(spec_));
    {
      MutexLock lock(&mu_);
      files_ = std::move(files);
    }
    return PluginVersion(spec_);
  }

  std::string Stamp() override {
    MutexLock lock(&mu_);
    return FileStamps(files_);
  }

  // Its files say what it is, whatever it says of itself.
  absl::Status CheckVersion(const PluginDescription&, const std::string& version) override {
    return CheckFiles(version);
  }

  absl::StatusOr<std::shared_ptr<PluginInstance>> Start(const std::string& version,
                                                        TakeLine take_line) override {
    SLUICE_RETURN_IF_ERROR(CheckFiles(version));
    return PluginProcess::Start([this] { return launch_(command_); },
                                PluginHello(job_, spec_.config), std::move(take_line));
  }

  void Stop() override {}
  int instances() const override { return spec_.processes; }
  absl::Duration most_back_off() const override { return absl::Seconds(30); }

 private:
  absl::Status CheckFiles(const std::string& version) const {
    SLUICE_ASSIGN_OR_RETURN(const std::string files, PluginVersion(spec_));
    if (files == version) return absl::OkStatus();
    return ErrorWith(
        absl::StatusCode::kUnavailable,
        {.reason = "PLUGIN_CHANGED",
         .hint = "mend the files, or bring them back; `sluice reward reload` loads new ones"},
        absl::StrCat("the files of plug-in ", spec_.file,
                     " have changed since the job began, from version ", version.substr(0, 8),
                     " to ", files.substr(0, 8),
                     ": answers of one group would be scored by two programs"));
  }

  const PluginSpec spec_;
  const std::string job_;
  const LaunchPlugin launch_;
  const PluginCommand command_;
  Mutex mu_;
  std::vector<std::string> files_ ABSL_GUARDED_BY(mu_);  // Those of the newest Version().
};

}  // namespace

absl::StatusOr<std::unique_ptr<PluginSource>> MakePluginProgram(PluginSpec spec, std::string job,
                                                                LaunchPlugin launch,
                                                                const std::string& folders) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<std::string> files, PluginFiles(spec));
  SLUICE_ASSIGN_OR_RETURN(PluginCommand command, PluginCommandOf(spec, folders));
  return std::make_unique<PluginProgram>(std::move(spec), std::move(job), std::move(launch),
                                         std::move(command), std::move(files));
}

}  // namespace sluice
