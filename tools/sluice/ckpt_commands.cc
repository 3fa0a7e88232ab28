// Model directories and checkpoints on disk; no daemon is asked.

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
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

ExitCode InitCheckpoint(const std::string& config, uint64_t seed, const std::string& out) {
  const absl::StatusOr<ModelDir> dir = ReadModelDir(config);
  if (!dir.ok()) return Complain(dir.status());
  const absl::StatusOr<TensorSet> weights = InitWeights(dir->config, seed);
  if (!weights.ok()) return Complain(weights.status());
  if (const absl::Status status = WriteModelDir(out, *dir, *weights); !status.ok()) return Complain(status);
  std::printf("%s\n", out.c_str());
  std::fprintf(stderr, "%s, %lld parameters, seed %llu\n", dir->config.architecture.c_str(), static_cast<long long>(dir->config.NumParameters()),
               static_cast<unsigned long long>(seed));
  return kDone;
}

// What is known of one directory.
struct Verified {
  std::string path;
  absl::Status status;
  std::string kind;         // "checkpoint" or "model".
  PolicyVersion version;    // Of a checkpoint.
  std::string fingerprint;  // Of the weights, as trainer and engines compute it.
  std::string ledger_hash;
};

Verified VerifyOne(const std::string& path) {
  Verified out{.path = path, .kind = PathExists(path + "/state.json") ? "checkpoint" : "model"};
  if (out.kind == "checkpoint") {
    const absl::StatusOr<trainer::Checkpoint> checkpoint = trainer::ReadCheckpoint(path);
    out.status = checkpoint.status();
    if (!out.status.ok()) return out;
    out.version = checkpoint->state.version;
    out.ledger_hash = ToHex(checkpoint->state.ledger_hash);
    out.fingerprint = FingerprintOf(checkpoint->model).hex();
    return out;
  }
  const auto weights = [&]() -> absl::StatusOr<TensorSet> {
    SLUICE_ASSIGN_OR_RETURN(const ModelDir dir, ReadModelDir(path));
    return ReadWeights(dir, DType::kF32);
  }();
  out.status = weights.status();
  if (out.status.ok()) out.fingerprint = FingerprintOf(*weights).hex();
  return out;
}

// `path` itself, or, of a folder of checkpoints, each of them.
std::vector<std::string> Directories(const std::string& path) {
  const std::vector<std::string> checkpoints = trainer::CheckpointStore({.dir = path}).List();
  return checkpoints.empty() ? std::vector<std::string>{path} : checkpoints;
}

ExitCode VerifyCheckpoints(const std::vector<std::string>& paths, const std::string& output) {
  std::vector<Verified> all;
  for (const std::string& path : paths) {
    if (!PathExists(path)) return Complain(absl::NotFoundError(absl::StrCat("no directory ", path)));
    for (const std::string& dir : Directories(path)) all.push_back(VerifyOne(dir));
  }
  bool damaged = false;
  std::vector<std::vector<std::string>> rows = {{"PATH", "KIND", "VERSION", "FINGERPRINT", "STATE"}};
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Verified& one : all) {
    damaged |= !one.status.ok();
    const std::string state = one.status.ok() ? "ok" : std::string(one.status.message());
    rows.push_back({one.path, one.kind, one.kind == "checkpoint" && one.status.ok() ? one.version.str() : "-", one.fingerprint.empty() ? "-" : one.fingerprint, state});
    json.push_back({{"path", one.path},
                    {"kind", one.kind},
                    {"ok", one.status.ok()},
                    {"error", one.status.ok() ? "" : state},
                    {"incarnation", one.version.incarnation},
                    {"version", one.version.number},
                    {"fingerprint", one.fingerprint},
                    {"ledger_hash", one.ledger_hash}});
  }
  std::fputs((output == "json" ? json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n" : Table(rows)).c_str(), stdout);
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
         app->add_option("CONFIG_DIR", o->config, "directory with config.json and the tokenizer")->required();
         app->add_option("--seed", o->seed, "of the random weights")->required()->check([](const std::string& text) { return text.substr(0, 1) == "-" ? text + " is negative" : std::string(); });
         app->add_option("-o,--out", o->out, "directory to make")->required();
         return [o] { return InitCheckpoint(o->config, o->seed, o->out); };
       }},
      {"ckpt", "verify", "Read model directories and checkpoints whole, and print the fingerprint of their weights.",
       "  sluice ckpt verify /models/qwen3-tiny\n  sluice ckpt verify checkpoints/digits-6dbce5f1 -o json    # each step-N in it",
       [](CLI::App* app) {
         auto o = std::make_shared<VerifyOptions>();
         app->add_option("DIR", o->paths, "model directory, checkpoint, or folder of checkpoints")->required();
         AddOutput(app, &o->output);
         return [o] { return VerifyCheckpoints(o->paths, o->output); };
       }},
  };
}

}  // namespace sluice::cli
