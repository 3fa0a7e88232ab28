// Commands that show and check the weight versions of a job. The controller passes the requests on
// to the job's trainer and rollouts.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/base/id.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/job_command.h"
#include "tools/sluice/json_output.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/weights_text.h"

namespace sluice::cli {
namespace {

constexpr char kLatest[] = "latest";
constexpr int kAttempts = 5;

struct WeightsOptions {
  std::string server, output, job, version, replica;
  int64_t number = 0;
};

// Asks for what is kept, and for one manifest if `manifest` is not empty.
absl::StatusOr<weights::v1::ListResponse> ListWeights(const rpc::Channel& channel,
                                                      const std::string& job,
                                                      const std::string& manifest = "") {
  job::v1::InspectRequest request;
  request.set_job(job);
  request.mutable_weights_list()->set_manifest(manifest);
  job::v1::InspectResponse response;
  SLUICE_RETURN_IF_ERROR(rpc::Call(channel, request, &response));
  return response.weights_list();
}

ExitCode ListVersions(const WeightsOptions& o, const rpc::Channel& channel) {
  const auto list = ListWeights(channel, o.job);
  if (!list.ok()) return Complain(list.status());
  if (IsData(o.output))
    PrintRows(ToJson(*list), {"nodes", "leases", "replicas", "withdrawn"}, o.output);
  else std::fputs(WeightsText(*list).c_str(), stdout);
  return kDone;
}

ExitCode ShowManifest(const WeightsOptions& o, const rpc::Channel& channel) {
  // The latest version may be freed before it is asked for, where steps take milliseconds.
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto list = ListWeights(channel, o.job);
    if (!list.ok()) return Complain(list.status());
    const auto node = FindVersion(*list, o.version);
    if (!node.ok()) return Complain(node.status());
    const auto found = ListWeights(channel, o.job, node->manifest());
    if (!found.ok()) return Complain(found.status());
    if (!found->has_manifest()) continue;
    if (IsData(o.output)) PrintData(ToJson(found->manifest()), o.output);
    else std::fputs(ManifestText(found->manifest(), node->manifest()).c_str(), stdout);
    return kDone;
  }
  return Complain(absl::NotFoundError(
      "the version is freed each time before its manifest is asked for; pin it first"));
}

ExitCode ShowPath(const WeightsOptions& o, const rpc::Channel& channel) {
  const auto list = ListWeights(channel, o.job);
  if (!list.ok()) return Complain(list.status());
  std::optional<weights::v1::Replica> from;
  if (!o.replica.empty()) {
    auto replica = FindReplica(*list, o.replica);
    if (!replica.ok()) return Complain(replica.status());
    from = *std::move(replica);
  }
  const auto path = PathJson(*list, from);
  if (!path.ok()) return Complain(path.status());
  if (IsData(o.output)) PrintData(*path, o.output);
  else std::fputs(PathText(*path).c_str(), stdout);
  return kDone;
}

ExitCode VerifyRollouts(const WeightsOptions& o, const rpc::Channel& channel) {
  job::v1::InspectRequest request;
  request.set_job(o.job);
  request.mutable_weights_verify();
  job::v1::InspectResponse response;
  if (const absl::Status asked = rpc::Call(channel, request, &response); !asked.ok())
    return Complain(asked);
  if (IsData(o.output)) {
    PrintRows({{"verified", ToJson(response)["verified"]}}, {"verified"}, o.output);
  } else {
    std::fputs(VerifyText(response).c_str(), stdout);
  }
  return AllVerified(response) ? kDone : kFailed;
}

// Pins or unpins a version. `manifest` is empty for the latest one, which may be another by the
// time that the trainer reads this.
ExitCode SetPin(const WeightsOptions& o, const rpc::Channel& channel, const std::string& manifest,
                bool on) {
  job::v1::PinWeightsRequest request;
  request.set_job(o.job);
  request.set_manifest(manifest);
  request.set_on(on);
  job::v1::PinWeightsResponse response;
  if (const absl::Status pinned = rpc::Call(channel, request, &response); !pinned.ok())
    return Complain(pinned);
  if (IsData(o.output)) {
    PrintData({{"version", o.version}, {"pinned", on}}, o.output);
  } else {
    std::printf("version %s %s\n", o.version.c_str(),
                on ? "is pinned until `sluice weights unpin`, or until the trainer restarts"
                   : "is not pinned any more");
  }
  return kDone;
}

ExitCode FindAndSetPin(const WeightsOptions& o, const rpc::Channel& channel, bool on) {
  const auto list = ListWeights(channel, o.job);
  if (!list.ok()) return Complain(list.status());
  const auto node = FindVersion(*list, o.version);
  if (!node.ok()) return Complain(node.status());
  return SetPin(o, channel, node->manifest(), on);
}

ExitCode PinVersion(const WeightsOptions& o, const rpc::Channel& channel) {
  if (o.version == kLatest) return SetPin(o, channel, "", true);
  return FindAndSetPin(o, channel, true);
}
ExitCode UnpinVersion(const WeightsOptions& o, const rpc::Channel& channel) {
  return FindAndSetPin(o, channel, false);
}

ExitCode RollBack(const WeightsOptions& o, const rpc::Channel& channel) {
  // The incarnation tells a second try of this call from another rollback.
  job::v1::GetRequest get;
  get.set_job(o.job);
  job::v1::JobStatus job;
  if (const absl::Status got = rpc::Call(channel, get, &job); !got.ok()) return Complain(got);
  job::v1::ControlRequest request;
  request.set_job(job.job());
  request.set_verb(job::v1::VERB_ROLLBACK);
  request.set_incarnation(job.incarnation());
  request.set_step(o.number);
  job::v1::ControlResponse response;
  if (const absl::Status done = rpc::Call(channel, request, &response); !done.ok())
    return Complain(done);
  if (IsData(o.output)) {
    PrintData({{"job", job.job()}, {"version", o.number}}, o.output);
  } else {
    std::printf("%s goes back to version %lld; what was sampled under later versions is dropped\n",
                o.job.c_str(), static_cast<long long>(o.number));
  }
  return kDone;
}

using WeightsHandler = ExitCode (*)(const WeightsOptions&, const rpc::Channel&);

Command WeightsCommand(const char* name, const char* summary, const char* example,
                       WeightsHandler handler,
                       std::function<void(CLI::App*, WeightsOptions*)> extra = {}) {
  return MakeJobCommand<WeightsOptions>(
      {"weights", name, summary, example, handler, std::move(extra), {}});
}

void AddVersion(CLI::App* app, WeightsOptions* o) {
  app->add_option("VERSION", o->version,
                  "2:17 (incarnation and number), 17 (of the newest incarnation) or latest")
      ->required();
}

}  // namespace

std::vector<Command> WeightsCommands() {
  return {
      WeightsCommand(
          "list",
          "List the weight versions that the trainer keeps, who keeps them from being "
          "freed, and what each rollout has: its version, its phase, from whom and by which "
          "transport it fetches. Also the version that is on trial, and those that were withdrawn.",
          "  sluice weights list digits\n  sluice weights list digits -o json", ListVersions),
      WeightsCommand("show", "Show the manifest of one version: its states, layout and chunks.",
                     "  sluice weights show digits latest\n  sluice weights show digits latest -o "
                     "json    # with all chunks",
                     ShowManifest, AddVersion),
      WeightsCommand(
          "path",
          "Show which manifests lead to the latest version from what a rollout holds, their bytes, "
          "and by which transport the rollout fetches (grpc, shm, file or c10d), with the reason.",
          "  sluice weights path digits\n  sluice weights path digits rollout-0\n"
          "  sluice weights path digits -o json",
          ShowPath,
          [](CLI::App* app, WeightsOptions* o) {
            app->add_option("REPLICA", o->replica,
                            "a rollout, as `sluice weights list` shows it; default: one that holds "
                            "nothing");
          }),
      WeightsCommand(
          "verify",
          "Make each rollout read all its weights again and compare their fingerprint with the "
          "published one. Exit code 1: one differs, or did not answer.",
          "  sluice weights verify digits\n  sluice weights verify digits -o json", VerifyRollouts),
      WeightsCommand("pin",
                     "Keep a version from being freed until it is unpinned, or until the trainer "
                     "restarts.",
                     "  sluice weights pin digits latest", PinVersion, AddVersion),
      WeightsCommand("unpin", "End the pin of a version.", "  sluice weights unpin digits latest",
                     UnpinVersion, AddVersion),
      WeightsCommand(
          "rollback",
          "Make a running job go back to a version of which there is a checkpoint, and on from "
          "there. All rollouts get these weights; what was sampled under later versions is "
          "dropped, which the ledger counts (off_branch).",
          "  sluice weights rollback digits 40", RollBack,
          [](CLI::App* app, WeightsOptions* o) {
            app->add_option(
                   "VERSION", o->number,
                   "number of a checkpoint's version (a folder step-N), or 0, the initial model")
                ->required();
          }),
  };
}

}  // namespace sluice::cli
