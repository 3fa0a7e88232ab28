#include "common/plugins/plugin_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

namespace sluice {
namespace {

constexpr size_t kLastWords = 2000;
constexpr size_t kMaxStderrLine = 4096;
constexpr size_t kRead = 64 << 10;
// How long it may take until the end of a process that has closed its pipes is known.
constexpr absl::Duration kEnding = absl::Milliseconds(500);

absl::Duration Now() { return Clock::Real()->Monotonic(); }

// Waits for `events` of `fd` until `deadline`. False: it has passed.
bool AwaitFd(int fd, short events, absl::Duration deadline) {
  while (true) {
    const absl::Duration left = deadline - Now();
    if (left <= absl::ZeroDuration()) return false;
    pollfd wait{fd, events, 0};
    // Rounded up, so that the loop does not spin in the last millisecond.
    const int64_t ms = std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1 << 30);
    if (poll(&wait, 1, static_cast<int>(ms)) > 0) return true;
  }
}

absl::Status StartError(absl::string_view what) {
  return Error(absl::StatusCode::kUnavailable, "PLUGIN_START", what);
}

}  // namespace

absl::StatusOr<std::shared_ptr<PluginProcess>> PluginProcess::Start(
    const Launch& launch, std::string hello, PluginSource::TakeLine take_line) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<PluginChild> child, launch());
  return absl::WrapUnique(
      new PluginProcess(std::move(child), std::move(hello), std::move(take_line)));
}

PluginProcess::PluginProcess(std::unique_ptr<PluginChild> child, std::string hello,
                             PluginSource::TakeLine take_line)
    : child_(std::move(child)),
      stop_(eventfd(0, EFD_CLOEXEC)),
      hello_(std::move(hello)),
      take_line_(std::move(take_line)),
      calls_([this](absl::Duration deadline) { ReadAnswers(deadline); }) {
  for (const int fd : {child_->in(), child_->out(), child_->err()}) fcntl(fd, F_SETFL, O_NONBLOCK);
  // A request of a few hundred kilobytes then needs no second write.
  fcntl(child_->in(), F_SETPIPE_SZ, 1 << 20);
  stderr_thread_ = std::thread([this] { ReadStderr(); });
}

PluginProcess::~PluginProcess() {
  End(absl::CancelledError("the plug-in is stopped"));
  eventfd_write(stop_.get(), 1);
  stderr_thread_.join();
}

absl::Status PluginProcess::Describe(absl::Duration timeout) {
  const absl::Duration deadline = Now() + timeout;
  absl::StatusOr<std::vector<std::string>> lines = std::vector<std::string>();
  absl::Status written = Write(hello_, deadline);
  while (written.ok() && lines.ok() && lines->empty()) lines = ReadLines(deadline);
  if (!written.ok() || absl::IsOutOfRange(lines.status())) {
    EndByItself("it ended before it described itself", /*ended=*/true);
    return StartError(status().message());
  }
  if (!lines.ok()) {
    EndByItself(absl::IsDeadlineExceeded(lines.status())
                    ? "it gave no description of itself in time"
                    : lines.status().message(),
                /*ended=*/false);
    return StartError(status().message());
  }
  absl::StatusOr<PluginDescription> description = ParsePluginDescription(lines->front());
  if (!description.ok() || lines->size() > 1) {
    EndByItself(description.ok() ? "it wrote two lines where its description is wanted"
                                 : description.status().message(),
                /*ended=*/false);
    return StartError(status().message());
  }
  description_ = *std::move(description);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PluginResult>> PluginProcess::Call(
    const std::vector<nlohmann::json>& items, absl::Duration timeout) {
  const absl::Duration deadline = Now() + timeout;
  SLUICE_ASSIGN_OR_RETURN(const uint64_t id, calls_.Begin(items.size()));
  const std::string line = PluginRequest(id, timeout, items);
  if (line.size() > kMaxPluginLine) {
    calls_.Forget(id);
    return TooLargeForPlugin(line.size());
  }

  const absl::Status written = Write(line, deadline);
  // It may have ended while nobody called, so the call had no part in it.
  if (absl::IsUnavailable(written)) EndByItself("it ended", /*ended=*/true, "PLUGIN_GONE");

  auto results = calls_.Await(id, deadline);
  if (!absl::IsDeadlineExceeded(results.status())) return results;
  End(Error(absl::StatusCode::kUnavailable, "PLUGIN_GONE",
            "another call of the plug-in had no answer in time, so it was killed"));
  return Error(absl::StatusCode::kDeadlineExceeded, "PLUGIN_DEADLINE",
               absl::StrCat("the plug-in ", description_.name, " gave no answer in ",
                            absl::FormatDuration(timeout), " and was killed"));
}

absl::Status PluginProcess::Write(absl::string_view line, absl::Duration deadline) {
  MutexLock lock(&writing_);
  while (!line.empty()) {
    const ssize_t n = write(child_->in(), line.data(), line.size());
    if (n >= 0) {
      line.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      if (!AwaitFd(child_->in(), POLLOUT, deadline))
        return absl::DeadlineExceededError("it did not read its input");
    } else if (errno != EINTR) {
      return absl::UnavailableError("it has closed its input");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> PluginProcess::ReadLines(absl::Duration deadline) {
  if (!AwaitFd(child_->out(), POLLIN, deadline)) return absl::DeadlineExceededError("no output");
  char bytes[kRead];
  const ssize_t n = read(child_->out(), bytes, sizeof bytes);
  buffer_.append(bytes, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  if (n == 0) return absl::OutOfRangeError("its output has ended");
  if (n < 0 && errno != EAGAIN && errno != EINTR) return ErrnoStatus(errno, "its output");

  std::vector<std::string> lines;
  size_t begin = 0;
  while (true) {
    const size_t end = buffer_.find('\n', std::max(begin, scanned_));
    if (end == std::string::npos) break;
    lines.push_back(buffer_.substr(begin, end - begin));
    begin = scanned_ = end + 1;
  }
  buffer_.erase(0, begin);
  scanned_ = buffer_.size();
  if (buffer_.size() <= kMaxPluginLine) return lines;
  return absl::InvalidArgumentError(
      absl::StrCat("it wrote a line of more than ", kMaxPluginLine, " bytes"));
}

void PluginProcess::ReadAnswers(absl::Duration deadline) {
  const absl::StatusOr<std::vector<std::string>> lines = ReadLines(deadline);
  if (absl::IsDeadlineExceeded(lines.status())) return;
  if (absl::IsOutOfRange(lines.status())) return EndByItself("it ended", /*ended=*/true);
  if (!lines.ok()) return EndByItself(lines.status().message(), /*ended=*/false);
  for (const std::string& line : *lines) TakeAnswer(line);
}

void PluginProcess::TakeAnswer(const std::string& line) {
  absl::StatusOr<PluginAnswer> answer = ParsePluginAnswer(line);
  const absl::Status taken = answer.ok() ? calls_.Take(*std::move(answer)) : answer.status();
  if (!taken.ok()) EndByItself(taken.message(), /*ended=*/false);
}

void PluginProcess::EndByItself(absl::string_view what, bool ended, absl::string_view reason) {
  std::string text(what);
  const absl::Duration deadline = Now() + kEnding;
  if (ended) {
    // How it ended says why it has closed its pipes.
    const absl::StatusOr<int> how = child_->Wait(kEnding);
    if (how.ok()) absl::StrAppend(&text, ", with ", WaitStatusText(*how));
  }
  {
    MutexLock lock(&mu_);
    while (ended && !stderr_ended_ && Now() < deadline) changed_.WaitFor(&mu_, deadline - Now());
    const absl::string_view words = absl::StripAsciiWhitespace(last_words_);
    if (!words.empty()) absl::StrAppend(&text, "; it last wrote to stderr: ", words);
  }
  const auto code =
      reason == "PLUGIN_GONE" ? absl::StatusCode::kUnavailable : absl::StatusCode::kAborted;
  End(Error(code, reason, Utf8Lossy(text)));
}

void PluginProcess::End(absl::Status why) {
  calls_.End(std::move(why));
  child_->Kill();  // It may take long, if what runs in a sandbox does not end.
}

void PluginProcess::ReadStderr() {
  std::string rest;
  char bytes[4096];
  while (true) {
    pollfd wait[] = {{child_->err(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (poll(wait, 2, -1) < 0) continue;
    const ssize_t n = read(child_->err(), bytes, sizeof bytes);
    if (n == 0 || (n < 0 && wait[1].revents != 0)) break;
    if (n < 0) continue;
    rest.append(bytes, static_cast<size_t>(n));
    {
      MutexLock lock(&mu_);
      last_words_.append(bytes, static_cast<size_t>(n));
      if (last_words_.size() > kLastWords) last_words_.erase(0, last_words_.size() - kLastWords);
    }
    size_t begin = 0;
    for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1)
      take_line_(Utf8Lossy(absl::string_view(rest).substr(begin, end - begin)));
    rest.erase(0, begin);
    if (rest.size() < kMaxStderrLine) continue;
    take_line_(Utf8Lossy(rest));
    rest.clear();
  }
  if (!rest.empty()) take_line_(Utf8Lossy(rest));
  {
    MutexLock lock(&mu_);
    stderr_ended_ = true;
  }
  changed_.NotifyAll();
}

}  // namespace sluice
