// Commands for model directories and checkpoints on disk. They contact no daemon.

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "common/checkpoint/model_dir.h"
#include "common/weights/fingerprint.h"
#include "services/trainer/core/checkpoint.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

ExitCode InitCheckpoint(const std::string& config, uint64_t seed, const std::string& out) {
  const absl::StatusOr<ModelDir> dir = ReadModelDir(config);
  if (!dir.ok()) return Complain(dir.status());
  const absl::StatusOr<TensorSet> weights = InitWeights(dir->config, seed);
  if (!weights.ok()) return Complain(weights.status());
  if (const absl::Status status = WriteModelDir(out, *dir, *weights); !status.ok())
    return Complain(status);
  std::printf("%s\n", out.c_str());
  std::fprintf(stderr, "%s, %lld parameters, seed %llu\n", dir->config.architecture.c_str(),
               static_cast<long long>(dir->config.NumParameters()),
               static_cast<unsigned long long>(seed));
  return kDone;
}

// The result of checking one directory.
struct Verified {
  std::string path;
  absl::Status status;
  std::string kind;       // "checkpoint" or "model".
  std::string job;        // 32 hex digits; empty for a model directory.
  PolicyVersion version;  // Set for a checkpoint.
  // Fingerprint of the weights in their stored types, as trainer and engines compute it.
  std::string fingerprint;
  std::string ledger_hash;
};

// Computes the fingerprint of a model directory, with one tensor in memory at a time.
absl::StatusOr<std::string> FingerprintOfModel(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const ModelDir dir, ReadModelDir(path));
  Fingerprint sum;
  SLUICE_RETURN_IF_ERROR(ReadEachWeight(dir, [&](const TensorSpec& spec, const std::byte* data) {
    sum += FingerprintOfElements(spec, spec.dtype, data, 0, *NumElements(spec.shape));
  }));
  return sum.hex();
}

Verified VerifyModel(const std::string& path) {
  const absl::StatusOr<std::string> fingerprint = FingerprintOfModel(path);
  Verified out{.path = path, .status = fingerprint.status(), .kind = "model"};
  if (fingerprint.ok()) out.fingerprint = *fingerprint;
  return out;
}

Verified VerifyStep(const std::string& path) {
  const absl::StatusOr<trainer::TrainState> state = trainer::VerifyCheckpoint(path);
  Verified out{.path = path, .status = state.status(), .kind = "checkpoint"};
  if (!state.ok()) return out;
  out.job = state->job;
  out.version = state->version;
  out.ledger_hash = ToHex(state->ledger_hash);

  const absl::StatusOr<std::string> fingerprint = FingerprintOfModel(path);
  out.status = fingerprint.status();
  if (fingerprint.ok()) out.fingerprint = *fingerprint;
  return out;
}

// Returns the folders `step-N` in `path`. If there are none, `path` may hold the folders of several
// jobs: returns the `step-N` of all of them.
std::vector<std::string> FindCheckpoints(const std::string& path) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& dir) {
    for (const auto& entry : trainer::CheckpointStore({.dir = dir}).List())
      found.push_back(entry.path);
  };
  add(path);
  const absl::StatusOr<std::vector<std::string>> names = ListDir(path);
  if (!found.empty() || !names.ok()) return found;
  for (const std::string& name : *names) add(absl::StrCat(path, "/", name));
  return found;
}

std::vector<Verified> VerifyDirectory(const std::string& path) {
  if (trainer::IsCheckpoint(path)) return {VerifyStep(path)};
  const std::vector<std::string> checkpoints = FindCheckpoints(path);
  if (checkpoints.empty()) return {VerifyModel(path)};
  std::vector<Verified> all;
  for (const std::string& checkpoint : checkpoints) all.push_back(VerifyStep(checkpoint));
  return all;
}

ExitCode VerifyCheckpoints(const std::vector<std::string>& paths, const std::string& output) {
  // Check everything before printing, so that one damaged directory does not hide another.
  std::vector<Verified> all;
  for (const std::string& path : paths) {
    if (!PathExists(path))
      return Complain(absl::NotFoundError(absl::StrCat("no directory ", path)));
    for (Verified& one : VerifyDirectory(path)) all.push_back(std::move(one));
  }

  bool damaged = false;
  std::vector<std::vector<std::string>> rows = {
      {"PATH", "KIND", "VERSION", "FINGERPRINT", "STATE"}};
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Verified& one : all) {
    damaged |= !one.status.ok();
    const std::string state = one.status.ok() ? "ok" : std::string(one.status.message());
    rows.push_back({one.path, one.kind,
                    one.kind == "checkpoint" && one.status.ok() ? one.version.str() : "-",
                    one.fingerprint.empty() ? "-" : one.fingerprint, state});
    json.push_back({{"path", one.path},
                    {"kind", one.kind},
                    {"ok", one.status.ok()},
                    {"error", one.status.ok() ? "" : state},
                    {"job", one.job},
                    {"incarnation", one.version.incarnation},
                    {"version", one.version.number},
                    {"fingerprint", one.fingerprint},
                    {"ledger_hash", one.ledger_hash}});
  }

  if (IsData(output)) PrintData(json, output);
  else std::fputs(Table(rows).c_str(), stdout);
  return damaged ? kFailed : kDone;
}

struct InitOptions {
  std::string config, out;
  uint64_t seed = 0;
};
struct VerifyOptions {
  std::vector<std::string> paths;
  std::string output;
};

}  // namespace

std::vector<Command> CkptCommands() {
  return {
      {"ckpt", "init", "Make a model directory with random weights, from a config.json and a seed.",
       "  sluice ckpt init configs/examples/digits --seed 1 -o /tmp/model",
       [](CLI::App* app) {
         auto o = std::make_shared<InitOptions>();
         app->add_option("CONFIG_DIR", o->config, "directory with config.json and the tokenizer")
             ->required();
         app->add_option("--seed", o->seed, "seed of the random weights")
             ->required()
             ->check([](const std::string& text) {
               return text.substr(0, 1) == "-" ? text + " is negative" : std::string();
             });
         app->add_option("-o,--out", o->out, "directory to make")->required();
         return [o] { return InitCheckpoint(o->config, o->seed, o->out); };
       }},
      {"ckpt", "verify",
       "Check all files of model directories and checkpoints, and print the weights' fingerprint.",
       "  sluice ckpt verify /models/qwen3-tiny\n  sluice ckpt verify checkpoints/digits-6dbce5f1 "
       "-o json    # each step-N in it",
       [](CLI::App* app) {
         auto o = std::make_shared<VerifyOptions>();
         app->add_option("DIR", o->paths, "model directory, checkpoint, or folder of checkpoints")
             ->required();
         AddFormats(app, &o->output);
         return [o] { return VerifyCheckpoints(o->paths, o->output); };
       }},
  };
}

}  // namespace sluice::cli
