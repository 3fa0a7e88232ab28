#include "services/trainer/core/shard_exchange.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/collective/collective.h"

namespace sluice::trainer {
namespace {

constexpr char kFolderPrefix[] = ".step-";  // Of the folders that checkpoints are written into.
constexpr char kNonce[] = ".nonce";

std::string SeenBy(size_t rank) { return absl::StrCat(".seen-by-", rank); }

struct Range {
  int64_t first = 0, count = 0;  // Counted from the tensor's first element.
};

// What the rank has of the requested elements.
Range PartOf(const std::vector<int64_t>& begins, size_t rank, int64_t first, int64_t count) {
  const int64_t begin = std::max(first, begins[rank]);
  return {begin, std::max<int64_t>(0, std::min(first + count, begins[rank + 1]) - begin)};
}

// Reads a range of a rank's own part. Frees a tensor that is read once with its last element.
absl::Status ReadPart(const ShardSnapshot& snapshot, size_t rank, size_t tensor, Range range,
                      void* to) {
  const std::vector<int64_t>& begins = snapshot.begins[tensor];
  SLUICE_RETURN_IF_ERROR(snapshot.part->Read(tensor, range.first - begins[rank], range.count, to));
  if (snapshot.once && range.first + range.count == begins[rank + 1])
    snapshot.part->Release(tensor);
  return absl::OkStatus();
}

}  // namespace

// What rank 0 asks of all ranks, followed by a text.
struct ShardServer::Request {
  enum class Kind : int64_t {
    kRead,    // Send elements [first, first + count) of a tensor.
    kForget,  // Forget the snapshot.
    kProbe,   // AnswerProbe(). The text is the folder's name and the nonce, in two lines.
    kWrite    // Write files of at most `count` bytes of tensors. The text is the folder's name and
              // the stem, and then the number of each tensor, in lines.
  };
  Kind kind = Kind::kForget;
  int64_t snapshot = 0, tensor = 0, first = 0, count = 0;
};

class ShardReader::Source : public PartedSource {
 public:
  Source(ShardSnapshot snapshot, std::shared_ptr<Collective> group, int64_t id)
      : snapshot_(std::move(snapshot)), group_(std::move(group)), id_(id) {}
  // The other ranks are gone if they do not hear of it.
  ~Source() override { Ask({.kind = Kind::kForget, .snapshot = id_}).IgnoreError(); }

  absl::Span<const TensorSpec> specs() const override { return snapshot_.specs; }
  int ranks() const override { return group_->world(); }

  absl::Status Read(size_t i, int64_t first, int64_t count, void* to) const override {
    const std::vector<int64_t>& begins = snapshot_.begins[i];
    const DType dtype = snapshot_.specs[i].dtype;
    const auto place = [&](const Range& range) {
      return static_cast<std::byte*>(to) +
             (range.first - first) * static_cast<int64_t>(DTypeBytes(dtype));
    };
    const Range own = PartOf(begins, 0, first, count);
    if (own.count > 0) SLUICE_RETURN_IF_ERROR(ReadPart(snapshot_, 0, i, own, place(own)));
    if (own.count == count) return absl::OkStatus();

    SLUICE_RETURN_IF_ERROR(Ask({Kind::kRead, id_, static_cast<int64_t>(i), first, count}));
    // All answers are taken, also after one that is a failure.
    absl::Status status;
    for (size_t rank = 1; rank + 1 < begins.size(); ++rank) {
      const Range range = PartOf(begins, rank, first, count);
      if (range.count == 0) continue;
      // The element after the values says whether the rank still had them.
      std::vector<float> answer(static_cast<size_t>(FloatsThatHold(range.count, dtype)) + 1);
      SLUICE_RETURN_IF_ERROR(
          OrAbort(group_->Transfer(static_cast<int>(rank), 0, absl::MakeSpan(answer))));
      if (answer.back() != 1) {
        status = absl::ResourceExhaustedError(
            absl::StrCat("rank ", rank, " had too little memory to keep ", snapshot_.specs[i].name,
                         " until it was written"));
      }
      std::memcpy(place(range), answer.data(),
                  static_cast<size_t>(range.count) * DTypeBytes(dtype));
    }
    return status;
  }

  absl::StatusOr<std::string> FindObstacle(const std::string& dir) const override {
    // A new word each time: a folder of the same name on another disk may have an old one.
    const std::string nonce = ToHex(RandomId16());
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(dir, "/", kNonce), nonce));
    SLUICE_RETURN_IF_ERROR(Ask({.kind = Kind::kProbe}, absl::StrJoin({NameOf(dir), nonce}, "\n")));
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> answers, OrAbort(group_->Gather("")));
    std::string obstacle;
    for (size_t rank = 1; rank < answers.size(); ++rank) {
      const std::string path = absl::StrCat(dir, "/", SeenBy(rank));
      if (obstacle.empty() && !answers[rank].empty())
        obstacle = absl::StrCat("rank ", rank, ": ", answers[rank]);
      if (obstacle.empty() && ReadFile(path).value_or("") != nonce)
        obstacle = absl::StrCat("what rank ", rank, " writes there is not to be seen here");
      SLUICE_RETURN_IF_ERROR(RemoveTree(path));
    }
    SLUICE_RETURN_IF_ERROR(RemoveTree(absl::StrCat(dir, "/", kNonce)));
    return obstacle;
  }

  absl::Status WriteParts(const std::string& dir, absl::string_view stem,
                          absl::Span<const size_t> indices, int64_t max_bytes,
                          WrittenFiles* written) const override {
    std::string text = absl::StrCat(NameOf(dir), "\n", stem);
    for (const size_t i : indices) absl::StrAppend(&text, "\n", i);
    SLUICE_RETURN_IF_ERROR(Ask({.kind = Kind::kWrite, .snapshot = id_, .count = max_bytes}, text));

    const absl::StatusOr<WrittenFiles> own =
        WriteRankFiles(dir, stem, snapshot_, 0, indices, max_bytes,
                       [&](size_t tensor, int64_t first, int64_t count, void* to) {
                         return ReadPart(snapshot_, 0, tensor, {first, count}, to);
                       });
    // Whatever has become of the own files, the others are waited for: until then they write.
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> answers, OrAbort(group_->Gather("")));
    SLUICE_RETURN_IF_ERROR(own.status());
    written->insert(own->begin(), own->end());
    for (size_t rank = 1; rank < answers.size(); ++rank) {
      SLUICE_ASSIGN_OR_RETURN(const WrittenFiles files,
                              DecodeRankFiles(dir, stem, static_cast<int>(rank), answers[rank]));
      written->insert(files.begin(), files.end());
    }
    SLUICE_FAILPOINT_STATUS("trainer.checkpoint.before_index");
    return WritePartsIndex(dir, stem, snapshot_, indices, written);
  }

 private:
  using Request = ShardServer::Request;
  using Kind = Request::Kind;

  static std::string NameOf(const std::string& dir) { return dir.substr(dir.rfind('/') + 1); }

  absl::Status Ask(const Request& request, absl::string_view text = "") const {
    return OrAbort(group_->Send(absl::StrCat(
        absl::string_view(reinterpret_cast<const char*>(&request), sizeof(request)), text)));
  }

  // After an error the ranks are at different calls, so the next one might wait without end.
  template <typename Result>
  Result OrAbort(Result result) const {
    if (!result.ok()) group_->Abort();
    return result;
  }

  const ShardSnapshot snapshot_;
  const std::shared_ptr<Collective> group_;
  const int64_t id_;
};

int64_t FloatsThatHold(int64_t elements, DType dtype) {
  const int64_t bytes = elements * static_cast<int64_t>(DTypeBytes(dtype));
  constexpr int64_t kFloat = sizeof(float);
  return (bytes + kFloat - 1) / kFloat;
}

std::shared_ptr<const PartedSource> ShardReader::Open(ShardSnapshot snapshot) {
  return std::make_shared<Source>(std::move(snapshot), group_, next_++);
}

ShardServer::ShardServer(std::shared_ptr<Collective> group, int rank)
    : group_(std::move(group)), rank_(static_cast<size_t>(rank)), thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), "sluice-shards");
}

ShardServer::~ShardServer() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  group_->Abort();
  thread_.join();
}

void ShardServer::Add(ShardSnapshot snapshot) {
  MutexLock lock(&mu_);
  snapshots_[next_++] = std::move(snapshot);
  changed_.NotifyAll();
}

void ShardServer::SetFolder(std::string dir) {
  MutexLock lock(&mu_);
  folder_ = std::move(dir);
}

bool ShardServer::stopped() {
  MutexLock lock(&mu_);
  return stopped_;
}

std::optional<ShardSnapshot> ShardServer::Find(int64_t id) {
  // Rank 0 may ask before this rank has come to the snapshot.
  MutexLock lock(&mu_);
  while (next_ <= id && !stopped_) changed_.Wait(&mu_);
  if (stopped_) return std::nullopt;
  return snapshots_.at(id);
}

absl::StatusOr<std::string> ShardServer::PathOf(absl::string_view folder) {
  MutexLock lock(&mu_);
  if (folder_.empty()) return absl::FailedPreconditionError("this rank knows no folder");
  // The name comes over a network that has no authentication.
  if (!absl::StartsWith(folder, kFolderPrefix) || absl::StrContains(folder, '/'))
    return absl::InvalidArgumentError(absl::StrCat("\"", folder, "\" is no checkpoint's folder"));
  return absl::StrCat(folder_, "/", folder);
}

std::string ShardServer::AnswerProbe(absl::string_view folder, absl::string_view nonce) {
  const absl::StatusOr<std::string> path = PathOf(folder);
  if (!path.ok()) return std::string(path.status().message());
  const absl::StatusOr<std::string> seen = ReadFile(absl::StrCat(*path, "/", kNonce), 64);
  if (!seen.ok()) return std::string(seen.status().message());
  if (*seen != nonce) return absl::StrCat(*path, " is another folder here");
  const absl::Status written = WriteFileAtomic(absl::StrCat(*path, "/", SeenBy(rank_)), nonce);
  return std::string(written.message());
}

absl::StatusOr<WrittenFiles> ShardServer::WriteFiles(const Request& request,
                                                     absl::string_view text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.size() < 2) return absl::InvalidArgumentError("no folder and no name were given");
  SLUICE_ASSIGN_OR_RETURN(const std::string path, PathOf(lines[0]));
  const std::optional<ShardSnapshot> snapshot = Find(request.snapshot);
  if (!snapshot.has_value()) return absl::CancelledError("the rank ends");
  // As in PathOf(), nothing of this is believed.
  const auto is_letter = [](char c) { return absl::ascii_islower(c) || c == '_'; };
  if (lines[1].empty() || !absl::c_all_of(lines[1], is_letter))
    return absl::InvalidArgumentError(absl::StrCat("\"", lines[1], "\" names no tensors"));
  std::vector<size_t> indices(lines.size() - 2);
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!absl::SimpleAtoi(lines[i + 2], &indices[i]) || indices[i] >= snapshot->specs.size())
      return absl::InvalidArgumentError(absl::StrCat("there is no tensor ", lines[i + 2]));
  }
  return WriteRankFiles(path, lines[1], *snapshot, rank_, indices, request.count,
                        [&](size_t tensor, int64_t first, int64_t count, void* to) {
                          if (stopped()) return absl::CancelledError("the rank ends");
                          return ReadPart(*snapshot, rank_, tensor, {first, count}, to);
                        });
}

absl::Status ShardServer::SendElements(const Request& request) {
  const std::optional<ShardSnapshot> snapshot = Find(request.snapshot);
  if (!snapshot.has_value()) return absl::CancelledError("the rank ends");
  const size_t tensor = static_cast<size_t>(request.tensor);
  const Range range = PartOf(snapshot->begins[tensor], rank_, request.first, request.count);
  if (range.count == 0) return absl::OkStatus();
  const DType dtype = snapshot->specs[tensor].dtype;
  std::vector<float> answer(static_cast<size_t>(FloatsThatHold(range.count, dtype)) + 1);
  answer.back() = ReadPart(*snapshot, rank_, tensor, range, answer.data()).ok() ? 1 : 0;
  return group_->Transfer(static_cast<int>(rank_), 0, absl::MakeSpan(answer));
}

void ShardServer::Run() {
  while (true) {
    const absl::StatusOr<std::string> message = group_->Receive();
    if (!message.ok()) return;  // Rank 0 is gone, and notices that this rank is.
    Request request;
    SLUICE_CHECK(message->size() >= sizeof(request));
    std::memcpy(&request, message->data(), sizeof(request));
    const absl::string_view text = absl::string_view(*message).substr(sizeof(request));

    absl::Status status;
    switch (request.kind) {
      case Request::Kind::kRead: status = SendElements(request); break;
      case Request::Kind::kForget: {
        if (!Find(request.snapshot).has_value()) return;
        MutexLock lock(&mu_);
        snapshots_.erase(request.snapshot);
        break;
      }
      case Request::Kind::kProbe: {
        const std::pair<absl::string_view, absl::string_view> lines =
            absl::StrSplit(text, absl::MaxSplits('\n', 1));
        status = group_->Gather(AnswerProbe(lines.first, lines.second)).status();
        break;
      }
      case Request::Kind::kWrite:
        status = group_->Gather(EncodeRankFiles(WriteFiles(request, text))).status();
        break;
    }
    if (!status.ok()) return;
  }
}

}  // namespace sluice::trainer
