#include "tests/fault/toy.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/testing/queue_spec.h"

namespace sluice::fault {
namespace {
uint64_t Draw(absl::string_view group, int member, uint64_t place) {
  const uint64_t ordinal = std::stoull(ToHex(group.substr(8)), nullptr, 16);
  return Mix64(Mix64(ordinal * kGolden + static_cast<uint64_t>(member + 1)) + place * kGolden);
}
// All members share the tokens of the prompt, so these are drawn for member -1.
int32_t Token(absl::string_view group, int member, uint64_t place) {
  return static_cast<int32_t>(Draw(group, place < kPromptTokens ? -1 : member, place) % 50000);
}
}  // namespace

queue::v1::QueueSpec ToySpec(const std::string& data, uint32_t max_staleness,
                             std::string durability) {
  queue::v1::QueueSpec spec = SmallQueueSpec(data);
  spec.set_job_name("matrix");
  spec.mutable_queue()->set_max_staleness(max_staleness);
  spec.mutable_queue()->mutable_admission()->set_staleness(std::min(max_staleness, 3u));
  // Except at durability `full`, each kill of the queue may use up a reissue of a prompt.
  spec.mutable_queue()->mutable_straggler()->set_reissues(1000);
  spec.mutable_queue()->mutable_keep()->set_durability(durability);
  spec.mutable_queue()->mutable_keep()->mutable_lease()->set_seconds(10);
  (*spec.mutable_sources(0)->mutable_fields())["prompt"] = "q";
  (*spec.mutable_sources(0)->mutable_fields())["answer"] = "a";
  // Workers are killed more often than any real one would be.
  spec.mutable_tasks(0)->set_tries(1000);
  return spec;
}

std::string Tokens(absl::string_view group, int member, uint64_t at, uint64_t count) {
  std::string bytes;
  for (uint64_t i = at; i < at + count; ++i) {
    const int32_t token = Token(group, member, i);
    bytes.append(reinterpret_cast<const char*>(&token), sizeof(token));
  }
  return bytes;
}

std::string Logprobs(absl::string_view group, int member, uint64_t at, uint64_t count) {
  std::string bytes;
  for (uint64_t i = at; i < at + count; ++i) {
    const float logprob = -0.125f * static_cast<float>(1 + Token(group, member, i) % 31);
    bytes.append(reinterpret_cast<const char*>(&logprob), sizeof(logprob));
  }
  return bytes;
}

std::vector<uint64_t> PieceEnds(absl::string_view group, int member) {
  std::vector<uint64_t> ends;
  uint64_t end = kPromptTokens;
  // The draws from place 1000 on are not used for tokens.
  for (int i = 0; i < kPieces; ++i) ends.push_back(end += 2 + Draw(group, member, 1000 + i) % 3);
  return ends;
}

absl::StatusOr<Checkpoint> LoadCheckpoint(const std::string& dir) {
  const std::string path = dir + "/checkpoint";
  if (!PathExists(path)) return Checkpoint{};
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const std::vector<std::string> lines = absl::StrSplit(text, absl::MaxSplits('\n', 2));
  if (lines.size() != 3) return absl::DataLossError(path + " is no checkpoint");
  SLUICE_ASSIGN_OR_RETURN(const std::string weights, FromHex(lines[1]));
  return Checkpoint{.version = std::stoll(lines[0]), .weights = weights, .cursor = lines[2]};
}

absl::Status SaveCheckpoint(const std::string& dir, const Checkpoint& checkpoint) {
  return WriteFileAtomic(
      dir + "/checkpoint",
      absl::StrCat(checkpoint.version, "\n", ToHex(checkpoint.weights), "\n", checkpoint.cursor));
}

std::string NextWeights(const std::string& weights, int64_t k, const std::string& digest) {
  return Sha256(absl::StrCat(weights, ToHex(digest), ":", k));
}

History::History(const std::string& dir, const std::string& worker, int64_t incarnation)
    : fd_(open(absl::StrCat(dir, "/history/", worker, ".", incarnation).c_str(),
               O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  SLUICE_CHECK(fd_ >= 0);
}

History::~History() { close(fd_); }

void History::Log(const std::string& line) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::string whole =
      absl::StrCat(now.tv_sec * 1'000'000'000LL + now.tv_nsec, " ", line, "\n");
  SLUICE_CHECK(write(fd_, whole.data(), whole.size()) == static_cast<ssize_t>(whole.size()));
}

void History::Ready() {
  if (ready_) return;
  ready_ = true;
  std::printf("ready\n");
  std::fflush(stdout);
}

std::unique_ptr<QueueClient> Connect(const RoleOptions& options) {
  auto channel = rpc::Connect(options.queue, {rpc::Role::kQueue});
  SLUICE_CHECK(channel.ok());
  return std::make_unique<QueueClient>(
      *std::move(channel), QueueClient::Options{.job = kJob,
                                                .worker = options.worker,
                                                .incarnation = options.incarnation,
                                                .backoff = {.first = absl::Milliseconds(5),
                                                            .longest = absl::Milliseconds(50)}});
}

}  // namespace sluice::fault
