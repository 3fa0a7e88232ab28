#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>

#include "tools/sluice/exit_code.h"

namespace sluice::cli {

// The command-line parser of `sluice`, built from the command tables.
class SluiceApp {
 public:
  SluiceApp();

  CLI::App& parser() { return app_; }
  // Call after parse(). Runs the chosen command. If only a group or nothing was named, prints the
  // help and returns kMisuse.
  ExitCode Run();

 private:
  CLI::App app_;
  std::map<const CLI::App*, std::function<ExitCode()>> runners_;
};

}  // namespace sluice::cli
