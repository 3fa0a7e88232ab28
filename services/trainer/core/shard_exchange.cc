#include "services/trainer/core/shard_exchange.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/collective/collective.h"

namespace sluice::trainer {
namespace {

// What rank 0 asks of all ranks: elements [first, first + count) of a tensor, or, with tensor -1,
// to forget the snapshot.
struct Request {
  int64_t snapshot = 0;
  int64_t tensor = -1;
  int64_t first = 0, count = 0;
};

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

class ShardSource : public TensorSource {
 public:
  ShardSource(ShardSnapshot snapshot, std::shared_ptr<Collective> group, int64_t id)
      : snapshot_(std::move(snapshot)), group_(std::move(group)), id_(id) {}
  // The other ranks are gone if they do not hear of it.
  ~ShardSource() override { Ask({.snapshot = id_}).IgnoreError(); }

  absl::Span<const TensorSpec> specs() const override { return snapshot_.specs; }

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

    SLUICE_RETURN_IF_ERROR(Ask({id_, static_cast<int64_t>(i), first, count}));
    // All answers are taken, also after one that is a failure.
    absl::Status status;
    for (size_t rank = 1; rank + 1 < begins.size(); ++rank) {
      const Range range = PartOf(begins, rank, first, count);
      if (range.count == 0) continue;
      // The element after the values says whether the rank still had them.
      std::vector<float> answer(static_cast<size_t>(FloatsThatHold(range.count, dtype)) + 1);
      SLUICE_RETURN_IF_ERROR(group_->Transfer(static_cast<int>(rank), 0, absl::MakeSpan(answer)));
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

 private:
  absl::Status Ask(const Request& request) const {
    return group_->Send(std::string(reinterpret_cast<const char*>(&request), sizeof(request)));
  }

  const ShardSnapshot snapshot_;
  const std::shared_ptr<Collective> group_;
  const int64_t id_;
};

}  // namespace

int64_t FloatsThatHold(int64_t elements, DType dtype) {
  const int64_t bytes = elements * static_cast<int64_t>(DTypeBytes(dtype));
  constexpr int64_t kFloat = sizeof(float);
  return (bytes + kFloat - 1) / kFloat;
}

std::shared_ptr<const TensorSource> ShardReader::Open(ShardSnapshot snapshot) {
  return std::make_shared<ShardSource>(std::move(snapshot), group_, next_++);
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

void ShardServer::Run() {
  while (true) {
    const absl::StatusOr<std::string> message = group_->Receive();
    if (!message.ok()) return;  // Rank 0 is gone, and notices that this rank is.
    Request request;
    SLUICE_CHECK(message->size() == sizeof(request));
    std::memcpy(&request, message->data(), sizeof(request));

    std::optional<ShardSnapshot> snapshot;
    {
      // Rank 0 may ask before this rank has come to the snapshot.
      MutexLock lock(&mu_);
      while (next_ <= request.snapshot && !stopped_) changed_.Wait(&mu_);
      if (stopped_) return;
      if (request.tensor < 0) {
        snapshots_.erase(request.snapshot);
        continue;
      }
      snapshot = snapshots_.at(request.snapshot);
    }
    const size_t tensor = static_cast<size_t>(request.tensor);
    const Range range = PartOf(snapshot->begins[tensor], rank_, request.first, request.count);
    if (range.count == 0) continue;
    const DType dtype = snapshot->specs[tensor].dtype;
    std::vector<float> answer(static_cast<size_t>(FloatsThatHold(range.count, dtype)) + 1);
    answer.back() = ReadPart(*snapshot, rank_, tensor, range, answer.data()).ok() ? 1 : 0;
    if (!group_->Transfer(static_cast<int>(rank_), 0, absl::MakeSpan(answer)).ok()) return;
  }
}

}  // namespace sluice::trainer
