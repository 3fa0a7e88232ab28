#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/config/scalar.h"

namespace sluice::cli {

// Options that several commands have.
inline void AddOutput(CLI::App* app, std::string* output, bool lines = false) {
  *output = "table";
  app->add_option("-o,--output", *output, "form of the result")
      ->check(CLI::IsMember(lines ? std::set<std::string>{"table", "json", "jsonl"} : std::set<std::string>{"table", "json"}))
      ->capture_default_str();
}

inline void AddServer(CLI::App* app, std::string* server) {
  app->add_option("--server", *server, "HOST:PORT of the controller; else $SLUICE_SERVER, else the fleet of `dev up`");
}

inline void AddSets(CLI::App* app, std::vector<std::string>* sets) {
  app->add_option("--set", *sets, "KEY=VALUE over the file, as in trainer.optimizer.lr=1e-3; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->take_all();
}

inline void AddDuration(CLI::App* app, const std::string& name, absl::Duration* value, const std::string& help) {
  app->add_option_function<std::string>(name,
                                        [value, name](const std::string& text) {
                                          const absl::StatusOr<absl::Duration> parsed = config::ParseDurationText(text);
                                          if (!parsed.ok()) throw CLI::ValidationError(name, std::string(parsed.status().message()));
                                          *value = *parsed;
                                        },
                                        help)
      ->type_name("DURATION");
}

}  // namespace sluice::cli
