#include "common/redis/sentinel.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace sluice::redis {
namespace {

// They answer from memory. There are others to ask.
constexpr absl::Duration kSentinelTimeout = absl::Seconds(1);

absl::Status NoMasterError(absl::string_view message) {
  return ErrorWith(absl::StatusCode::kUnavailable,
                   {.reason = "NO_MASTER",
                    .catalogue = "SLUICE-META-0017",
                    .hint = "if it stays, look after the Sentinels and the Redis that they watch"},
                   message);
}

absl::Status BadSentinelError(const std::string& where, absl::string_view why) {
  return ErrorWith(absl::StatusCode::kFailedPrecondition,
                   {.reason = "BAD_SENTINEL",
                    .catalogue = "SLUICE-META-0018",
                    .hint = "name all Sentinels of that Redis, and the master as their line "
                            "`sentinel monitor NAME ..` does"},
                   absl::StrCat("the Sentinel at ", where, ": ", why));
}

// What the Sentinels of a source name, if no master has a majority.
std::string NamedText(size_t masters) {
  if (masters == 0) return "they name none";
  if (masters == 1) return "too few of them answer";
  return absl::StrCat("they name ", masters, " different ones");
}

// The value of a field in an answer that lists names and values by turns. Empty: it is not there.
std::string FieldOf(const Reply& reply, absl::string_view name) {
  for (size_t i = 0; i + 1 < reply.list.size(); i += 2) {
    if (reply.list[i].text == name) return reply.list[i + 1].text;
  }
  return "";
}

}  // namespace

struct MasterFinder::Sentinel {
  Endpoint endpoint;
  std::unique_ptr<Connection> connection;  // Null without a connection.
  bool answered = false;                   // When it was last asked.
};

MasterFinder::MasterFinder(MasterSource source, absl::Duration timeout)
    : source_(std::move(source)), timeout_(timeout) {
  for (const Endpoint& endpoint : source_.sentinels)
    sentinels_.push_back(std::make_unique<Sentinel>(Sentinel{.endpoint = endpoint}));
}

MasterFinder::~MasterFinder() = default;

absl::StatusOr<Master> MasterFinder::Find() {
  if (sentinels_.empty()) return Master{.endpoint = source_.redis};
  const size_t majority = sentinels_.size() / 2 + 1;
  std::map<std::string, size_t> named;  // Terms, and how many Sentinels say each.
  std::vector<std::string> errors;
  absl::Status refusal;  // The last one.
  size_t refusals = 0;
  size_t known = 0;  // How many Sentinels there are: the most that one of them knows.

  absl::StatusOr<Master> master = absl::UnavailableError("nobody was asked");
  for (const std::unique_ptr<Sentinel>& sentinel : sentinels_) {
    absl::StatusOr<Master> answer = Ask(*sentinel);
    sentinel->answered = answer.ok();
    if (answer.ok()) known = std::max(known, answer->sentinels);
    if (answer.ok() && ++named[answer->term] == majority) {
      master = std::move(answer);
      break;
    }
    if (answer.ok()) continue;
    sentinel->connection = nullptr;
    errors.push_back(std::string(answer.status().message()));
    if (!absl::IsUnavailable(answer.status()) && ++refusals == majority) return answer;
  }
  // One that is gone costs time only when the others do not suffice.
  std::stable_partition(sentinels_.begin(), sentinels_.end(),
                        [](const auto& sentinel) { return sentinel->answered; });

  if (master.ok()) {
    master->sentinels = known;
    SLUICE_RETURN_IF_ERROR(CheckNotInClear(
        master->endpoint, absl::StrCat("the master ", master->endpoint.str(), " of the Sentinels"),
        "rediss+sentinel://.."));
    return master;
  }
  return NoMasterError(absl::StrCat("no ", majority, " of the ", sentinels_.size(),
                                    " Sentinels name the same master as ", source_.name, "; ",
                                    NamedText(named.size()),
                                    errors.empty() ? "" : ", and: ", absl::StrJoin(errors, "; ")));
}

absl::Status MasterFinder::Connect(Sentinel& sentinel) {
  // Most Sentinels have no password, and refuse one. One that has says so.
  Endpoint endpoint = sentinel.endpoint;
  endpoint.password = Secret();
  sentinel.connection = std::make_unique<Connection>(endpoint, timeout_);
  const absl::Status status = sentinel.connection->Connect();
  if (status.ok() || sentinel.endpoint.password.empty() ||
      !absl::StrContains(status.message(), "NOAUTH")) {
    return status;
  }
  sentinel.connection = std::make_unique<Connection>(sentinel.endpoint, timeout_);
  return sentinel.connection->Connect();
}

absl::StatusOr<Master> MasterFinder::Ask(Sentinel& sentinel) {
  if (sentinel.connection == nullptr) SLUICE_RETURN_IF_ERROR(Connect(sentinel));
  // The address is that of the new master as soon as there is one, and the epoch counts failovers.
  const std::vector<Command> ask = {{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", source_.name},
                                    {"SENTINEL", "MASTER", source_.name}};
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Reply> said, sentinel.connection->Run(ask));
  const std::string where = sentinel.endpoint.address();
  if (said[0].kind == Reply::Kind::kNil)
    return BadSentinelError(where, absl::StrCat("it knows no master ", source_.name));
  if (said[0].list.size() != 2 || said[1].list.empty()) {
    return BadSentinelError(
        where, absl::StrCat("it does not say where the master is: ", said[0].text, said[1].text));
  }

  Master master{.endpoint = source_.redis};
  master.endpoint.host = said[0].list[0].text;
  const std::string& port = said[0].list[1].text;
  if (!absl::SimpleAtoi(port, &master.endpoint.port))
    return BadSentinelError(where, absl::StrCat("its master has the port \"", port, "\""));
  master.term =
      absl::StrCat(FieldOf(said[1], "config-epoch"), " ", master.endpoint.host, ":", port);
  if (!absl::SimpleAtoi(FieldOf(said[1], "num-other-sentinels"), &master.sentinels))
    return BadSentinelError(where, "it does not say how many others it knows");
  ++master.sentinels;
  return master;
}

MasterConnection::MasterConnection(const MasterSource& source, absl::Duration timeout)
    : sentinels_(source.sentinels.size()), timeout_(timeout), finder_(source, kSentinelTimeout) {}

absl::Status MasterConnection::Connect() {
  Close();
  SLUICE_ASSIGN_OR_RETURN(Master master, finder_.Find());
  auto connection = std::make_unique<Connection>(master.endpoint, timeout_);
  SLUICE_RETURN_IF_ERROR(connection->Connect());
  if (sentinels_ > 0) {
    const Command ask = {"ROLE"};
    SLUICE_ASSIGN_OR_RETURN(const std::vector<Reply> said, connection->Run({&ask, 1}));
    const std::string role = said[0].list.empty() ? said[0].text : said[0].list[0].text;
    if (role != "master") {
      return NoMasterError(absl::StrCat("the Sentinels name Redis at ", master.endpoint.str(),
                                        " as the master, and its role is: ", role));
    }
  }
  connection_ = std::move(connection);
  master_ = std::move(master);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Reply>> MasterConnection::Run(absl::Span<const Command> commands) {
  if (connection_ == nullptr) return absl::UnavailableError("not connected to Redis");
  absl::StatusOr<std::vector<Reply>> replies = connection_->Run(commands);
  if (!replies.ok()) Close();
  return replies;
}

absl::Status MasterConnection::CheckIsMaster() {
  if (sentinels_ == 0) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const Master now, finder_.Find());
  if (now.term == master_.term) return absl::OkStatus();
  Close();
  return NoMasterError(absl::StrCat("the Sentinels name Redis at ", now.endpoint.str(),
                                    " as the master now, not ", master_.endpoint.str()));
}

absl::Status MasterConnection::CheckAllAreListed() const {
  if (master_.sentinels <= sentinels_) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.reason = "BAD_SENTINEL",
       .catalogue = "SLUICE-META-0018",
       .hint = "name each Sentinel by an address of its own, not by that of a service in front of "
               "them; if one of them is gone for good, send `SENTINEL RESET NAME` to the others, "
               "one after the other"},
      absl::StrCat("there are ", master_.sentinels, " Sentinels, and the URL names ", sentinels_,
                   ", of which a majority is not one of all"));
}

}  // namespace sluice::redis
