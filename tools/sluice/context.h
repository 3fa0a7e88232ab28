#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Named fleets of a person, in the file ~/.config/sluice/contexts.yaml:
//   current: prod
//   contexts:
//     prod: {server: "controller.sluice:7400", tls: /home/anna/sluice-ca/operator}
namespace sluice::cli {

struct Context {
  std::string server;  // HOST:PORT, or several with commas between.
  std::string tls;     // A TLS folder, absolute. Empty: none.

  bool operator==(const Context&) const = default;
};

struct Contexts {
  std::string current;  // The name of the one that is used. Empty: none.
  std::map<std::string, Context> all;

  bool operator==(const Contexts&) const = default;
};

// $XDG_CONFIG_HOME/sluice/contexts.yaml, else ~/.config/sluice/contexts.yaml.
std::string ContextsPath();

// Reads the file; without one there are no contexts.
// INVALID_ARGUMENT: it is not of this form; the message names the place.
absl::StatusOr<Contexts> ReadContexts(const std::string& path);
absl::Status WriteContexts(const std::string& path, const Contexts& contexts);

// A context and where its name comes from.
struct ChosenContext {
  std::string name;
  Context context;
  bool by_flag = false;  // By --context, which is above the environment.
};

// The context that a command uses: that of --context, else of $SLUICE_CONTEXT, else the current
// one. Nothing if there is none of these.
// NOT_FOUND: there is no context of that name; the hint lists them.
// INVALID_ARGUMENT: as ReadContexts().
absl::StatusOr<std::optional<ChosenContext>> ChooseContext(const std::string& flag);

// The value of --context, which every command has that calls a controller, and which may also stand
// before the command. The parser sets it before a command runs.
std::string& ContextFlag();

}  // namespace sluice::cli
