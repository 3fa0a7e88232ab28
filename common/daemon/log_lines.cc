#include "common/daemon/log_lines.h"

#include <algorithm>
#include <utility>

#include "common/log/job_lines.h"
#include "common/rpc/convert.h"
#include "sluice/admin/v1/admin.pb.h"

namespace sluice::daemon {
namespace {

constexpr size_t kMessageBytes = 256 << 10;

common::v1::LogLevel ToProto(log::Level level) {
  switch (level) {
    case log::Level::kDebug: return common::v1::LOG_LEVEL_DEBUG;
    case log::Level::kInfo: return common::v1::LOG_LEVEL_INFO;
    case log::Level::kWarning: return common::v1::LOG_LEVEL_WARNING;
    case log::Level::kError: return common::v1::LOG_LEVEL_ERROR;
  }
  return common::v1::LOG_LEVEL_UNSPECIFIED;
}

// A filter: a level that is not known means all.
log::Level LowestOf(common::v1::LogLevel level) {
  switch (level) {
    case common::v1::LOG_LEVEL_INFO: return log::Level::kInfo;
    case common::v1::LOG_LEVEL_WARNING: return log::Level::kWarning;
    case common::v1::LOG_LEVEL_ERROR: return log::Level::kError;
    default: return log::Level::kDebug;
  }
}

}  // namespace

std::vector<admin::v1::LogsResponse> ReadLogLines(const admin::v1::LogsRequest& request) {
  log::JobLines::Query query{.after = request.after(),
                             .run = request.run(),
                             .lowest = LowestOf(request.lowest()),
                             .tail = request.tail()};
  if (request.has_since()) query.since = rpc::FromProto(request.since());
  log::JobLines::Answer answer = log::ProcessJobLines().Read(request.call().job().job(), query);

  std::vector<admin::v1::LogsResponse> responses(1);
  responses.back().set_lost(answer.lost);
  size_t bytes = 0;
  for (log::JobLines::Line& line : answer.lines) {
    if (bytes > 0 && bytes + line.json.size() > kMessageBytes) {
      responses.emplace_back();
      bytes = 0;
    }
    bytes += line.json.size();
    common::v1::LogLine& out = *responses.back().add_lines();
    out.set_number(line.number);
    *out.mutable_at() = rpc::ToProto(line.at);
    out.set_level(ToProto(line.level));
    out.set_json(std::move(line.json));
  }
  for (admin::v1::LogsResponse& response : responses) response.set_run(answer.run);
  responses.back().set_newest(answer.newest);
  return responses;
}

}  // namespace sluice::daemon
