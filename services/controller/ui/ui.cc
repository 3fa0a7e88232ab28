#include "services/controller/ui/ui.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/id.h"
#include "common/base/loopback.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/rpc/address.h"
#include "services/controller/core/codec.h"
#include "services/controller/diagnose.h"
#include "services/controller/ui/assets.h"
#include "services/controller/ui/ended_jobs.h"
#include "services/controller/ui/query.h"
#include "services/controller/ui/steps.h"
#include "services/controller/ui/view.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::controller {
namespace {

using Json = nlohmann::ordered_json;
using daemon::HttpRequest;
using daemon::HttpResponse;

constexpr char kPath[] = "/ui";
constexpr char kApi[] = "/ui/api/";
constexpr int64_t kMaxJobs = 200;     // Of one page of the list.
constexpr uint64_t kMaxEvents = 200;  // The newest ones are shown.
constexpr int kMaxSteps = 1000;       // Of one answer; the page asks again for more.
// A question is normally answered within milliseconds. It takes longer only while the job store is
// away, or while a daemon is silent that Explain has asked (for 2 s).
constexpr absl::Duration kPatience = absl::Seconds(3);

// What the browser may do with an answer: run and load nothing but what comes from here, show it in
// no frame of another page, and keep nothing.
void AddHeaders(HttpResponse* response) {
  response->headers = {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
       "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Cache-Control", "no-store"}};
}

// Text from daemons may hold bytes that are not UTF-8; they are replaced.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpResponse ErrorResponse(const absl::Status& status) {
  const int code = absl::IsInvalidArgument(status) ? 400 : absl::IsNotFound(status) ? 404 : 503;
  return {.status = code,
          .type = "application/json",
          .body = Dump({{"error", std::string(status.message())}})};
}

// What several threads fill in and wait for.
template <typename T>
class Promise {
 public:
  void Set(T value) {
    MutexLock lock(&mu_);
    if (!value_) value_ = std::move(value);
    changed_.NotifyAll();
  }
  // Nothing if it was not set in time.
  std::optional<T> Await(absl::Duration patience) {
    const absl::Time deadline = absl::Now() + patience;
    MutexLock lock(&mu_);
    while (!value_ && absl::Now() < deadline) changed_.WaitFor(&mu_, deadline - absl::Now());
    return value_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::optional<T> value_ ABSL_GUARDED_BY(mu_);
};

bool ContainsName(const Job& job, const std::string& part) {
  return absl::StrContains(job.record.name, part) || absl::StrContains(job.record.id, part) ||
         absl::StrContains(job.record.owner, part);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseUiHosts(absl::string_view flag) {
  std::vector<std::string> hosts;
  for (const absl::string_view host : absl::StrSplit(flag, ',', absl::SkipEmpty())) {
    if (!rpc::CheckAddress(absl::StrCat(host, ":0"), /*tls=*/true).ok()) {
      return ErrorWith(absl::StatusCode::kInvalidArgument,
                       {.reason = "BAD_CONFIG",
                        .hint = "name the hosts by which browsers reach the page, as in --ui "
                                "sluice.example.com,localhost"},
                       absl::StrCat("--ui: '", host, "' is not the name or address of a host"));
    }
    hosts.push_back(HostOfHeader(host));
  }
  return hosts;
}

Ui::Ui(Loop* loop, Peers* peers, meta::Store* store, std::vector<std::string> hosts)
    : loop_(loop),
      peers_(peers),
      store_(store),
      hosts_(std::move(hosts)),
      run_(ToHex(RandomId16())),
      ended_(std::make_unique<EndedJobs>(store)) {}

Ui::~Ui() = default;

daemon::HttpRoute Ui::MakeRoute() {
  return {kPath, [this](const HttpRequest& request) { return Answer(request); }};
}

HttpResponse Ui::Answer(const HttpRequest& request) {
  const std::string host = HostOfHeader(request.host);
  const bool ours = host.empty() || IsLoopback(host) ||
                    std::find(hosts_.begin(), hosts_.end(), host) != hosts_.end();
  HttpResponse response;
  if (!ours) {
    response = {.status = 403,
                .body = absl::StrCat("the header Host names \"", Excerpt(request.host),
                                     "\", and this page is not served under that name; open it "
                                     "through localhost, or name the host with --ui\n")};
  } else if (absl::StartsWith(request.path, kApi)) {
    const absl::StatusOr<Json> answer =
        AnswerApi(absl::StripPrefix(request.path, kApi), Query::Parse(request.query));
    response = answer.ok() ? HttpResponse{.type = "application/json", .body = Dump(*answer)}
                           : ErrorResponse(answer.status());
  } else if (const Asset* asset = FindAsset(request.path); asset != nullptr) {
    response = {.type = asset->type, .body = std::string(asset->text)};
  } else {
    response = {.status = 404, .body = "there is no such page; see /ui\n"};
  }
  AddHeaders(&response);
  return response;
}

absl::StatusOr<Json> Ui::AnswerApi(absl::string_view path, const Query& query) {
  if (path == "jobs") return ListJobs(query);
  if (path == "daemons") {
    return Ask([](Controller& core, Instant now) -> absl::StatusOr<Json> {
      return Json{{"daemons", DaemonsOf(core, now)}};
    });
  }
  if (absl::ConsumePrefix(&path, "jobs/")) {
    if (absl::ConsumeSuffix(&path, "/why")) return ExplainJob(std::string(path));
    return DescribeJob(std::string(path), query);
  }
  return absl::NotFoundError("there is no such call");
}

absl::StatusOr<Json> Ui::ListJobs(const Query& query) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t limit, query.FindNumber("limit", 50, 1, kMaxJobs));
  SLUICE_ASSIGN_OR_RETURN(const int64_t skip, query.FindNumber("skip", 0, 0, int64_t{1} << 40));
  const std::string part = query.Find("find"), show = query.Find("show");

  SLUICE_ASSIGN_OR_RETURN(
      Json list, Ask([=](Controller& core, Instant now) -> absl::StatusOr<Json> {
        std::vector<const Job*> jobs;
        std::map<std::string, int64_t> states;
        for (const auto& [id, job] : core.jobs()) {
          const JobState state = job.record.state;
          ++states[std::string(StateName(state))];
          const bool shown = show == "live"    ? !IsFinal(state)
                             : show == "ended" ? IsFinal(state)
                                               : true;
          if (shown && (part.empty() || ContainsName(job, part))) jobs.push_back(&job);
        }

        // The newest come first. Only those up to the end of the page need an order.
        const size_t end = std::min(jobs.size(), static_cast<size_t>(skip + limit));
        const size_t begin = std::min(end, static_cast<size_t>(skip));
        std::partial_sort(
            jobs.begin(), jobs.begin() + static_cast<std::ptrdiff_t>(end), jobs.end(),
            [](const Job* a, const Job* b) { return a->record.order > b->record.order; });
        Json rows = Json::array();
        for (size_t i = begin; i < end; ++i) rows.push_back(RowOf(core, now, *jobs[i]));
        return Json{{"jobs", std::move(rows)},
                    {"total", jobs.size()},
                    {"states", states},
                    {"fleet", FleetSummary(core)}};
      }));
  for (Json& row : list["jobs"]) {
    if (row["ended"].get<bool>()) ended_->Fill(row);
  }
  return list;
}

absl::StatusOr<Json> Ui::DescribeJob(const std::string& id, const Query& query) {
  StepCursor cursor = StepCursor::Parse(query.Find("cursor"));
  SLUICE_ASSIGN_OR_RETURN(const int64_t after_event,
                          query.FindNumber("after_event", 0, 0, int64_t{1} << 60));

  const auto rewritten = std::make_shared<std::vector<int64_t>>();
  SLUICE_ASSIGN_OR_RETURN(Json details,
                          Ask([=](Controller& core, Instant now) -> absl::StatusOr<Json> {
                            SLUICE_ASSIGN_OR_RETURN(const Job* job, core.Find(id));
                            *rewritten = job->rewritten_from;
                            return DetailsOf(core, now, *job);
                          }));
  if (details["ended"].get<bool>()) ended_->Fill(details);
  const std::string job = details["id"].get<std::string>();

  const uint64_t last_event = details["last_event"].get<uint64_t>();
  const uint64_t first = std::max(static_cast<uint64_t>(after_event),
                                  last_event > kMaxEvents ? last_event - kMaxEvents : 0);
  SLUICE_ASSIGN_OR_RETURN(
      const std::vector<meta::Entry> events,
      store_->List(JobKey(job, "events/"), EventKey(job, first), static_cast<int>(kMaxEvents)));
  details["events"] = Json::array();
  for (const meta::Entry& entry : events) {
    if (const auto event = Decode<Event>(entry.key, entry.value); event.ok())
      details["events"].push_back(ToJson(*event));
  }

  cursor = Follow(std::move(cursor), run_, *rewritten);
  SLUICE_ASSIGN_OR_RETURN(
      const std::vector<meta::Entry> entries,
      store_->List(JobKey(job, "steps/"), cursor.after < 0 ? "" : StepKey(job, cursor.after),
                   kMaxSteps));
  std::vector<StepReport> steps;
  for (const meta::Entry& entry : entries) {
    absl::StatusOr<StepReport> step = Decode<StepReport>(entry.key, entry.value);
    if (step.ok()) steps.push_back(*std::move(step));
  }
  details["steps"] = ColumnsOf(steps);
  details["steps"]["from"] = cursor.after + 1;  // The viewer drops these and later ones.
  details["steps"]["more"] = entries.size() == static_cast<size_t>(kMaxSteps);
  if (!steps.empty()) cursor.after = steps.back().k;
  details["steps"]["cursor"] = cursor.ToText();
  return details;
}

absl::StatusOr<Json> Ui::ExplainJob(const std::string& id) {
  {
    MutexLock lock(&mu_);
    if (explaining_) return Json{{"busy", true}};
    explaining_ = true;
  }

  // The answers come on other threads, and may come after this call has given up.
  const auto chain = std::make_shared<Promise<Json>>();
  const auto stats = std::make_shared<Promise<Json>>();
  const absl::StatusOr<Json> asked =
      Ask([this, id, chain, stats](Controller& core, Instant now) -> absl::StatusOr<Json> {
        SLUICE_ASSIGN_OR_RETURN(const Job* job, core.Find(id));
        if (IsFinal(job->record.state)) {
          chain->Set(Json::array());
        } else {
          Diagnose(*peers_, core, now, *job,
                   [chain](const std::vector<Edge>& edges, const std::vector<std::string>&) {
                     Json json = Json::array();
                     for (const Edge& edge : edges) json.push_back(ToJson(edge));
                     chain->Set(std::move(json));
                   });
        }

        if (!job->assign.opened || job->record.stage >= Stage::kClosing) {
          stats->Set(nullptr);
          return Json();
        }
        auto request = std::make_shared<queue::v1::StatsRequest>();
        auto response = std::make_shared<queue::v1::StatsResponse>();
        peers_->FillCall(job->record.id, request->mutable_call());
        peers_->CallDaemon(core.AddressOf(job->assign.queue), request, response,
                           [stats, response](const absl::Status& status) {
                             stats->Set(status.ok() ? ToJson(*response) : Json(nullptr));
                           });
        return Json();
      });
  Json answer;
  if (asked.ok()) {
    answer["chain"] = chain->Await(kPatience).value_or(nullptr);
    answer["queue"] = stats->Await(absl::Milliseconds(500)).value_or(nullptr);
  }

  MutexLock lock(&mu_);
  explaining_ = false;
  if (!asked.ok()) return asked.status();
  return answer;
}

absl::StatusOr<Json> Ui::Ask(Question question) {
  const auto answer = std::make_shared<Promise<absl::StatusOr<Json>>>();
  loop_->Post([question = std::move(question), answer](Controller& core, Instant now) {
    answer->Set(question(core, now));
  });
  return answer->Await(kPatience).value_or(absl::UnavailableError(
      "the controller does not answer; it waits for its job store, or is ending"));
}

}  // namespace sluice::controller
