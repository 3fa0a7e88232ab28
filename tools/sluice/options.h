#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/config/scalar.h"
#include "tools/sluice/context.h"

namespace sluice::cli {

// Whether -v was given.
inline bool& VerboseFlag() {
  static bool verbose = false;
  return verbose;
}

// The fleet that a command calls. It may stand before the command too, as in
// `sluice --context prod job list`; if both are given, the one behind it holds.
inline void AddContext(CLI::App* app) {
  app->add_option("--context", ContextFlag(),
                  "name of a fleet, as `sluice context list` shows it; default: $SLUICE_CONTEXT, "
                  "else the current one");
}

// Options that several commands have.
inline void AddServer(CLI::App* app, std::string* server) {
  app->add_option(
      "--server", *server,
      "HOST:PORT of the controller, or of all its replicas with commas between; default: "
      "$SLUICE_SERVER, else that of the context, else the fleet of `dev up`");
  AddContext(app);
  app->add_flag("-v,--verbose", VerboseFlag(),
                "print on stderr the trace id of the command, which the daemons' log lines have");
}

inline void AddSets(CLI::App* app, std::vector<std::string>* sets) {
  app->add_option(
         "--set", *sets,
         "KEY=VALUE that replaces the file's, as in trainer.optimizer.lr=1e-3; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

inline void AddDuration(CLI::App* app, const std::string& name, absl::Duration* value,
                        const std::string& help) {
  app->add_option_function<std::string>(
         name,
         [value, name](const std::string& text) {
           const absl::StatusOr<absl::Duration> parsed = config::ParseDurationText(text);
           if (!parsed.ok())
             throw CLI::ValidationError(name, std::string(parsed.status().message()));
           *value = *parsed;
         },
         help)
      ->type_name("DURATION");
}

// Returns a check that the option is a finite number in [low, high]. CLI11's own check accepts -1
// as the largest value of an unsigned type, and prints limits with all their digits. A limit that
// equals the type's own is not printed.
template <typename T>
CLI::Validator NumberIn(T low = std::numeric_limits<T>::lowest(),
                        T high = std::numeric_limits<T>::max()) {
  using Limits = std::numeric_limits<T>;
  const bool has_low = std::is_unsigned_v<T> || low != Limits::lowest();
  const std::string limits = high != Limits::max() ? absl::StrCat(low, " to ", high)
                             : has_low             ? absl::StrCat("at least ", low)
                                                   : "";
  const auto check = [=](const std::string& text) -> std::string {
    T value{};
    const auto parsed = [&] {
      if constexpr (std::is_same_v<T, float>)
        return absl::SimpleAtof(text, &value) && std::isfinite(value);
      else if constexpr (std::is_same_v<T, double>)
        return absl::SimpleAtod(text, &value) && std::isfinite(value);
      else return absl::SimpleAtoi(text, &value);
    };
    if (parsed() && value >= low && value <= high) return "";
    return absl::StrCat("is ", text, "; wanted: a ", std::is_integral_v<T> ? "whole" : "finite",
                        " number", limits.empty() ? "" : ", ", limits);
  };
  return CLI::Validator(check, low == 0 && high == Limits::max() ? "" : limits);
}

}  // namespace sluice::cli
