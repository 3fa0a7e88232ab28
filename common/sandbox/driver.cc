#include "common/sandbox/driver.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "nlohmann/json.hpp"

namespace sluice::sandbox {

extern const absl::string_view driver_py, solution_py;  // driver.py, solution.py

namespace {

constexpr size_t kLongestLine = 4096;

// What driver.py must know of its sandbox.
const char* KindOf(Tier tier) {
  if (HasNamespaces(tier)) return "namespaces";
  return tier == Tier::kLandlock ? "user" : "none";
}

absl::Status Broken(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("the driver of the sandbox ", what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> Driver::Start(Launcher* launcher, const Limits& limits) {
  // Without -I, which would ignore PYTHONHASHSEED; the environment has nothing else.
  Command command{.argv = {"/usr/bin/python3", "-s", "-P", "-X", "utf8", "-c",
                           absl::StrCat(solution_py, driver_py), KindOf(launcher->tier()),
                           absl::StrCat(limits.box_bytes)},
                  .environment = {{"PYTHONHASHSEED", "0"}, {"PYTHONDONTWRITEBYTECODE", "1"}},
                  .limits = limits};
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Process> process, launcher->Start(command));
  return absl::WrapUnique(new Driver(std::move(process)));
}

absl::Status Driver::AwaitReady(absl::Duration timeout) {
  const auto hello = ReadLine(Clock::Real()->Monotonic() + timeout);
  if (hello.ok() && hello->contains("ready")) return absl::OkStatus();
  // The sandbox ends, so that its standard error does.
  Kill();
  char text[1024];
  const ssize_t got = read(process_->err(), text, sizeof text);
  return Broken(absl::StrCat("does not start: ", got > 0
                                                     ? Utf8Lossy({text, static_cast<size_t>(got)})
                                                     : std::string(hello.status().message())));
}

absl::Status Driver::Send(nlohmann::json request, absl::string_view bytes) {
  request["bytes"] = bytes.size();
  const std::string line =
      absl::StrCat(request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "\n");
  absl::Status sent = WriteAll(process_->in(), line, "the sandbox");
  if (sent.ok()) sent = WriteAll(process_->in(), bytes, "the sandbox");
  return sent.ok() ? sent : Broken(sent.message());
}

absl::StatusOr<Driver::TestReply> Driver::AwaitReply(absl::Duration timeout, uint64_t most) {
  const absl::Duration end = Clock::Real()->Monotonic() + timeout;
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json line, ReadLine(end));
  TestReply reply;
  std::vector<uint64_t> parts;
  try {
    reply.why = line.at("why").get<std::string>();
    reply.code = line.at("code").get<int>();
    reply.cpu_seconds = line.at("cpu").get<double>();
    parts = line.at("parts").get<std::vector<uint64_t>>();
  } catch (const nlohmann::json::exception&) {
    return Broken("answers by other rules");
  }
  if (parts.size() != 3 ||
      std::any_of(parts.begin(), parts.end(), [&](uint64_t part) { return part > most; }))
    return Broken("answers with too much");
  SLUICE_RETURN_IF_ERROR(Fill(parts[0] + parts[1] + parts[2], end));
  reply.out = buffer_.substr(0, parts[0]);
  reply.err = buffer_.substr(parts[0], parts[1]);
  reply.report = buffer_.substr(parts[0] + parts[1], parts[2]);
  buffer_.erase(0, parts[0] + parts[1] + parts[2]);
  return reply;
}

absl::StatusOr<nlohmann::json> Driver::ReadLine(absl::Duration end) {
  size_t length;
  while ((length = buffer_.find('\n')) == std::string::npos) {
    if (buffer_.size() > kLongestLine) return Broken("answers with a line that does not end");
    SLUICE_RETURN_IF_ERROR(Fill(buffer_.size() + 1, end));
  }
  nlohmann::json line = nlohmann::json::parse(buffer_.substr(0, length), nullptr, false);
  buffer_.erase(0, length + 1);
  if (!line.is_object()) return Broken("answers by other rules");
  return line;
}

absl::Status Driver::Fill(size_t bytes, absl::Duration end) {
  pollfd ready{process_->out(), POLLIN, 0};
  while (buffer_.size() < bytes) {
    const int64_t left = absl::ToInt64Milliseconds(end - Clock::Real()->Monotonic());
    if (left <= 0) return Broken("does not answer in time");
    if (poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30))) <= 0) continue;
    char piece[1 << 16];
    const ssize_t got = read(ready.fd, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Broken("has ended");
    buffer_.append(piece, static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

}  // namespace sluice::sandbox
