#include "tools/sluice/why_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/convert.h"
#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/client.h"
#include "tools/sluice/progress.h"

namespace sluice::cli {
namespace {

using common::v1::WaitEdge;

// Whether the link can be left out because the next one says more: a wait for a batch is explained
// by what the batch lacks.
bool IsExplainedByNext(const WaitEdge& edge, bool last) {
  return edge.cause().empty() || (!last && edge.on().kind() == common::v1::NODE_KIND_BATCH);
}

// Describes what will happen by itself, starting at the end of the chain (the root cause): first
// what the root does, then what follows from it.
std::string DescribeNext(const job::v1::WhyResponse& why) {
  std::vector<std::string> nexts;
  for (auto edge = why.chain().rbegin(); edge != why.chain().rend() && nexts.size() < 2; ++edge) {
    if (edge->next().empty()) continue;
    const std::string in =
        edge->has_next_in()
            ? absl::StrCat(
                  "in ", ShortDuration(absl::ToDoubleSeconds(rpc::FromProto(edge->next_in()))), " ")
            : "";
    nexts.push_back(absl::StrCat(nexts.empty() ? in : "", edge->next()));
  }
  return absl::StrJoin(nexts, "; ");
}

// Whether the chain ends at something that waits for itself, which means that it does nothing.
bool EndsInFault(const job::v1::WhyResponse& why) {
  if (why.chain_size() == 0) return false;
  const WaitEdge& last = why.chain(why.chain_size() - 1);
  return last.waiter().kind() == last.on().kind() && last.waiter().id() == last.on().id() &&
         last.waiter().daemon() == last.on().daemon();
}

std::string FindHint(const job::v1::WhyResponse& why) {
  for (auto edge = why.chain().rbegin(); edge != why.chain().rend(); ++edge) {
    if (!edge->hint().empty()) return edge->hint();
  }
  return "";
}

// Returns the waiting step as its trainer reports it; the job's own step may be one heartbeat old.
std::string FindStep(const job::v1::JobStatus& job, const job::v1::WhyResponse& why) {
  for (const WaitEdge& edge : why.chain()) {
    if (edge.waiter().kind() == common::v1::NODE_KIND_STEP) return edge.waiter().id();
  }
  return absl::StrCat(job.step());
}

std::string OpeningText(const job::v1::JobStatus& job, const job::v1::WhyResponse& why) {
  const std::string since =
      ShortDuration(absl::ToDoubleSeconds(rpc::FromProto(why.chain(0).since())));
  if (why.moving())
    return absl::StrCat(job.name(), " is moving, in step ", FindStep(job, why), " for ", since,
                        ". At this moment: ");
  if (job.state() != job::v1::JOB_STATE_RUNNING)
    return absl::StrCat(job.name(), " has been ", StateName(job.state()), " for ", since, ": ");
  return absl::StrCat(job.name(), " has waited ", since, " in step ", FindStep(job, why), ": ");
}

}  // namespace

std::string WhyText(const job::v1::JobStatus& job, const job::v1::WhyResponse& why,
                    size_t columns) {
  if (IsFinal(job.state()))
    return absl::StrCat(job.name(), " is ", StateName(job.state()), " and waits for nothing\n");
  std::string out;
  std::vector<std::string> links;
  for (int i = 0; i < why.chain_size(); ++i) {
    if (!IsExplainedByNext(why.chain(i), i + 1 == why.chain_size()))
      links.push_back(why.chain(i).cause());
  }
  if (links.empty()) {
    out = absl::StrCat(job.name(), " is ", StateName(job.state()), why.moving() ? ", moving," : "",
                       " and waits for nothing that its daemons report\n");
  } else {
    const std::string begin = OpeningText(job, why),
                      line = absl::StrCat(begin, absl::StrJoin(links, " <- "));
    out = absl::StrCat(
        line.size() <= columns ? line : absl::StrCat(begin, absl::StrJoin(links, "\n  <- ")), "\n");
  }

  if (const std::string next = DescribeNext(why);
      !next.empty() && (!why.moving() || EndsInFault(why)))
    absl::StrAppend(&out, "by itself: ", next, "\n");
  if (const std::string hint = FindHint(why); !hint.empty())
    absl::StrAppend(&out, "you could: ", hint, "\n");

  // Daemons that did not answer, unless a link of the chain names them already.
  std::vector<std::string> silent;
  for (const std::string& daemon : why.silent()) {
    const bool named = std::any_of(links.begin(), links.end(), [&](const std::string& link) {
      return absl::StartsWith(link, daemon);
    });
    if (!named) silent.push_back(daemon);
  }
  if (!silent.empty()) absl::StrAppend(&out, "silent: ", absl::StrJoin(silent, ", "), "\n");
  return out;
}

}  // namespace sluice::cli
