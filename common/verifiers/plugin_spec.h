#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace sluice {

// Which program or server a reward plug-in is: the `args` of the verifier `plugin`.
//
//   verl, trl   FILE.py:FUNCTION in the convention of verl or TRL
//   native      FILE.py or FILE.py:FUNCTION, with the decorator of tools/sdk/sluice_reward.py
//   exec        a command that speaks the protocol of tools/sdk/sluice_reward.py by itself; one of
//               its words is the path of the program or script, outside of /usr and /bin
//   grpc        the name of a server that the operator of the reward daemons names. It has none of
//               python, processes and in_flight: it runs by itself, and says how many calls it
//               takes
//   python      (python3) the interpreter of verl, trl and native
//   config      ({}) a mapping that the program gets; keyword arguments of verl's and TRL's
//               functions
//   processes   1..64 (2)  processes of the program on each reward daemon
//   in_flight   1..256 (1)  calls at a time in each process, for functions that wait for others
//   low, high   (any finite number) the range of its scores
//   reload      auto (default): when its files change while a job runs, they are loaded anew; so
//               is a server that says that it has another version;
//               manual: only when a person asks for it. Deterministic jobs never do either
struct PluginSpec {
  enum class Kind { kVerl, kTrl, kNative, kExec, kGrpc };
  Kind kind = Kind::kVerl;
  std::string file;  // Absolute path of the function's file, or of the program. Not with kGrpc.
  std::string function;
  std::vector<std::string> command;  // Only with kExec.
  std::string server;                // Only with kGrpc.
  std::string python = "python3";
  nlohmann::json config = nlohmann::json::object();
  int processes = 2;
  int in_flight = 1;
  double low = 0, high = 0;
  bool reload_by_itself = true;
};

// INVALID_ARGUMENT: an argument is unknown or wrong, none or several say what the program is, or
// its path is not absolute. The message names the argument.
absl::StatusOr<PluginSpec> ParsePluginSpec(const nlohmann::json& args);

// Calls `visit` with each value of `args` that is a path, which it may change: of verl, trl and
// native the part before the function; of python, and of the words of exec, those with a slash,
// but no programs of the system. Does not check args.
void VisitPluginPaths(nlohmann::json* args,
                      const std::function<void(const std::string& name, std::string* path)>& visit);

}  // namespace sluice
