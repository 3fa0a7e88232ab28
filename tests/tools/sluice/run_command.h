#pragma once

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/sluice/commands.h"

namespace sluice::cli {

// What a command has printed, and how it has ended.
struct CommandRun {
  ExitCode code = kFailed;
  std::string out, err;

  nlohmann::json json() const { return nlohmann::json::parse(out, nullptr, false); }
};

// Runs a command in this process.
inline CommandRun RunCommand(const Command& command, std::vector<std::string> args) {
  CLI::App app;
  const auto run = command.bind(&app);
  std::reverse(args.begin(), args.end());  // CLI11 wants them in reverse.
  try {
    app.parse(args);
  } catch (const CLI::ParseError& error) {
    return {kMisuse, "", error.what()};
  }

  CommandRun ran;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  ran.code = run();
  ran.out = testing::internal::GetCapturedStdout();
  ran.err = testing::internal::GetCapturedStderr();
  return ran;
}

}  // namespace sluice::cli
