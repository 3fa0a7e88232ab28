#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>

#include "tools/sluice/exit_code.h"

namespace sluice::cli {

// The parser of `sluice`, made from the command tables.
class SluiceApp {
 public:
  SluiceApp();

  CLI::App& parser() { return app_; }
  // After parse(): runs the command that was chosen. A group, or nothing, is a misuse, and prints
  // the help.
  ExitCode Run();

 private:
  CLI::App app_;
  std::map<const CLI::App*, std::function<ExitCode()>> runners_;
};

}  // namespace sluice::cli
