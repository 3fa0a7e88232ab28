#include "tools/sluice/eval_job.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/access.h"
#include "common/rpc/client.h"
#include "common/weights/fetcher.h"
#include "sluice/admin/v1/admin.pb.h"
#include "tools/sluice/client.h"

namespace sluice::cli {
namespace {

constexpr int kTries = 20;  // The trainer may free a version between List() and Lease().
constexpr absl::Duration kLease = absl::Minutes(2);

// Formats rising numbers: "12, 40 to 57".
std::string RangesText(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ", ", numbers[i]);
    if (last > i) absl::StrAppend(&text, " to ", numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

absl::StatusOr<PublishedVersion> ChooseVersion(const job::v1::JobStatus& job,
                                               const std::vector<PublishedVersion>& kept,
                                               std::optional<int64_t> version) {
  if (kept.empty())
    return ErrorWith(absl::StatusCode::kUnavailable,
                     {.reason = "NO_VERSION", .hint = "try again in a moment"},
                     "the trainer has published no version yet");
  if (!version) return kept.back();
  std::vector<int64_t> numbers;
  for (const PublishedVersion& one : kept) {
    if (one.version.number == *version) return one;
    numbers.push_back(one.version.number);
  }
  std::sort(numbers.begin(), numbers.end());
  if (*version > numbers.back()) {
    return absl::NotFoundError(absl::StrCat("the trainer has not made version ", *version,
                                            " yet; it has ", RangesText(numbers), ". `sluice eval ",
                                            job.name(), "` takes the newest; or try again later"));
  }
  return absl::NotFoundError(
      absl::StrCat("the trainer no longer keeps version ", *version, "; it has ",
                   RangesText(numbers), ". Some older ones are checkpoints: `sluice ckpt verify ",
                   job.spec().checkpoint().dir(), "/", job.name(), "-", job.job().substr(0, 8),
                   "` lists them, and `sluice eval` takes their directory"));
}

absl::StatusOr<EvalJob> FindEvalJob(const std::string& server, const std::string& name) {
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> channel, ConnectToController(server));
  EvalJob found;
  SLUICE_ASSIGN_OR_RETURN(found.status, GetJob(*channel, name));
  admin::v1::DaemonsResponse fleet;
  SLUICE_RETURN_IF_ERROR(rpc::Call(*channel, admin::v1::DaemonsRequest(), &fleet));
  // The trainer that works for the job tells its address to the controller.
  for (const admin::v1::Daemon& daemon : fleet.daemons()) {
    const bool works = std::find(daemon.jobs().begin(), daemon.jobs().end(), found.status.job()) !=
                       daemon.jobs().end();
    const auto address = daemon.addresses().find("grpc");
    if (works && !daemon.lost() && daemon.role() == sluice::rpc::v1::ROLE_TRAINER &&
        address != daemon.addresses().end())
      found.trainer = address->second;
  }

  if (found.trainer.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", name, " is ", StateName(found.status.state()),
                     " and has no trainer now; give the directory of a checkpoint instead",
                     found.status.result().checkpoint().empty()
                         ? ""
                         : absl::StrCat(", as ", found.status.result().checkpoint())));
  }
  return found;
}

absl::Status CopyModelSettings(const job::v1::JobSpec& spec, EvalOptions* options) {
  // The weights of the directory are replaced by those of the trainer.
  options->engine.random_init = spec.model().has_init();
  options->engine.model_path =
      options->engine.random_init ? spec.model().init().config() : spec.model().path();
  options->engine.init_seed = spec.model().init().seed();
  if (spec.model().has_dtype()) {
    SLUICE_ASSIGN_OR_RETURN(options->engine.dtype, DTypeFromTorchName(spec.model().dtype()));
  }
  options->engine.max_context = spec.model().max_context();
  options->chat_template = spec.model().has_chat_template() ? spec.model().chat_template() : "none";
  return absl::OkStatus();
}

absl::StatusOr<StagedWeights> FetchJobWeights(const EvalJob& job, std::optional<int64_t> version,
                                              absl::Span<const TensorSpec> layout) {
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> trainer,
                          rpc::Connect(job.trainer, {rpc::Role::kTrainer}));
  const WeightFetcher fetcher(
      {.job = job.status.job(), .worker = rpc::ToolId(absl::StrCat("eval-", getpid()))}, layout);
  absl::StatusOr<StagedWeights> staged = absl::UnknownError("not tried");
  for (int i = 0; i < kTries; ++i) {
    // The lease makes the version stay while it is fetched. If it was freed before, choose again.
    SLUICE_ASSIGN_OR_RETURN(const std::vector<PublishedVersion> kept, fetcher.List(*trainer));
    SLUICE_ASSIGN_OR_RETURN(const PublishedVersion chosen,
                            ChooseVersion(job.status, kept, version));
    SLUICE_RETURN_IF_ERROR(fetcher.Lease(*trainer, chosen, kLease));
    staged = fetcher.Fetch(*trainer, chosen, std::nullopt, nullptr);
    // End the lease. If this fails, the lease ends after its ttl.
    if (staged.ok()) (void)fetcher.Lease(*trainer, chosen, absl::ZeroDuration());
    if (!absl::IsNotFound(staged.status())) break;
  }
  return staged;
}

}  // namespace sluice::cli
