#include "common/collective/c10d_collective.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceType.h>

#include <pthread.h>

#include <algorithm>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/collective/backend.h"

namespace sluice {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

// A wait that only Abort() or the loss of a rank ends.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
// After a rank was lost, what it had sent before may be taken for so long.
constexpr absl::Duration kGrace = absl::Seconds(1);
// The tag of messages, and that of the ones which are never sent (Watch).
constexpr int kTag = 0, kNeverTag = 1;
// Largest piece of one call to the backend, in elements, which bounds its buffers.
constexpr size_t kPiece = size_t{1} << 24;

template <typename T>
at::Tensor TensorOf(absl::Span<T> values) {
  return at::from_blob(values.data(), {static_cast<int64_t>(values.size())},
                       c10::CppTypeToScalarType<T>::value);
}

class C10dCollective : public Collective {
 public:
  C10dCollective(const Options& options, c10::intrusive_ptr<c10d::Backend> group)
      : options_(options), group_(std::move(group)) {
    for (int peer = 0; peer < world(); ++peer)
      if (peer != rank()) StartWatch(peer);
  }
  ~C10dCollective() override {
    {
      MutexLock lock(&mu_);
      ending_ = true;
    }
    ended_.NotifyAll();
    for (const std::unique_ptr<Watch>& watch : watches_) {
      watch->never_comes->abort();
      watch->thread.join();
    }
  }

  int rank() const override { return options_.rank; }
  int world() const override { return options_.world; }

  absl::Status Sum(absl::Span<float> values) override { return SumAll(values); }
  absl::Status Sum(absl::Span<double> values) override { return SumAll(values); }

  absl::Status SumTo(int root, absl::Span<float> values) override {
    c10d::ReduceOptions options;
    options.rootRank = root;
    return RunPieces(
        values, [&](std::vector<at::Tensor>& piece) { return group_->reduce(piece, options); });
  }

  absl::Status Broadcast(int root, absl::Span<float> values) override {
    return BroadcastAll(root, values);
  }

  absl::Status Transfer(int from, int to, absl::Span<float> values) override {
    if (from == to || (rank() != from && rank() != to)) return absl::OkStatus();
    for (size_t first = 0; first < values.size(); first += kPiece) {
      const absl::Span<float> piece = values.subspan(first, kPiece);
      SLUICE_RETURN_IF_ERROR(rank() == from ? SendTo(to, piece) : ReceiveFrom(from, piece));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view mine) override {
    std::vector<int64_t> sizes(static_cast<size_t>(world()), 0);
    sizes[rank()] = static_cast<int64_t>(mine.size());
    SLUICE_RETURN_IF_ERROR(SumAll(absl::MakeSpan(sizes)));
    std::vector<std::string> all;
    for (int root = 0; root < world(); ++root) {
      std::string bytes = root == rank() ? std::string(mine) : std::string(sizes[root], '\0');
      SLUICE_RETURN_IF_ERROR(BroadcastBytes(root, bytes));
      all.push_back(std::move(bytes));
    }
    return all;
  }

  absl::Status Send(std::string message) override {
    int64_t size = static_cast<int64_t>(message.size());
    for (int to = 1; to < world(); ++to) SLUICE_RETURN_IF_ERROR(SendTo(to, One(&size)));
    return BroadcastBytes(0, message);
  }

  absl::StatusOr<std::string> Receive() override {
    int64_t size = 0;
    SLUICE_RETURN_IF_ERROR(ReceiveFrom(0, One(&size)));
    std::string message(static_cast<size_t>(size), '\0');
    SLUICE_RETURN_IF_ERROR(BroadcastBytes(0, message));
    return message;
  }

  absl::Status StartStream(uint64_t bytes, uint64_t bucket_bytes) override {
    SLUICE_CHECK(bucket_bytes > 0);
    stream_ = Stream{.bytes = bytes,
                     .bucket_bytes = std::min(bytes, bucket_bytes),
                     .passes_on = rank() + 1 < world()};
    stream_.buckets = bytes == 0 ? 0 : (bytes - 1) / stream_.bucket_bytes + 1;
    for (at::Tensor& buffer : stream_.buffers)
      buffer = at::empty({static_cast<int64_t>(stream_.bucket_bytes)}, at::kByte);
    return rank() > 0 && stream_.buckets > 0 ? StartReceivingBucket(0) : absl::OkStatus();
  }

  absl::StatusOr<absl::Span<char>> NextBucket() override {
    const uint64_t next = stream_.next;
    if (rank() == 0 && next > 0) SLUICE_RETURN_IF_ERROR(StartSendingBucket(next - 1));
    if (next == stream_.buckets) {
      for (Work& sending : stream_.sending) {
        const absl::Status sent = AwaitTransfer(&sending);
        if (rank() == 0) SLUICE_RETURN_IF_ERROR(sent);
      }
      return absl::Span<char>();
    }

    if (rank() == 0) SLUICE_RETURN_IF_ERROR(AwaitTransfer(&stream_.sending[next % 2]));
    else SLUICE_RETURN_IF_ERROR(ReceiveBucket(next));
    ++stream_.next;
    at::Tensor bucket = BucketTensor(next);
    return absl::MakeSpan(static_cast<char*>(bucket.data_ptr()),
                          static_cast<size_t>(bucket.numel()));
  }

  void Abort() override {
    MutexLock lock(&mu_);
    aborted_ = true;
    if (waits_for_) waits_for_->abort();
  }

 private:
  // Calls `start`, which starts some work of the group, and waits until it is done.
  template <typename Start>
  absl::Status Run(Start start) {
    try {
      start()->wait();
      return absl::OkStatus();
    } catch (const std::exception& e) {
      return Lost(FirstLine(e));
    }
  }

  // Runs `start` for one piece of the values after the other.
  template <typename T, typename Start>
  absl::Status RunPieces(absl::Span<T> values, Start start) {
    SLUICE_RETURN_IF_ERROR(Align());
    for (size_t first = 0; first < values.size(); first += kPiece) {
      std::vector<at::Tensor> piece = {TensorOf(values.subspan(first, kPiece))};
      SLUICE_RETURN_IF_ERROR(Run([&] { return start(piece); }));
    }
    return absl::OkStatus();
  }

  absl::Status Lost(absl::string_view what) {
    return Error(absl::StatusCode::kUnavailable, "RANK_LOST",
                 absl::StrCat("rank ", rank(), " of ", world(), " lost another rank: ", what));
  }

  template <typename T>
  absl::Status SumAll(absl::Span<T> values) {
    return RunPieces(values,
                     [&](std::vector<at::Tensor>& piece) { return group_->allreduce(piece); });
  }
  template <typename T>
  absl::Status BroadcastAll(int root, absl::Span<T> values) {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return RunPieces(
        values, [&](std::vector<at::Tensor>& piece) { return group_->broadcast(piece, options); });
  }
  absl::Status BroadcastBytes(int root, std::string& bytes) {
    return BroadcastAll(root,
                        absl::MakeSpan(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()));
  }

  // Waits until all ranks have come here. Rank 0 hears of each, and then tells each.
  absl::Status Align() {
    int64_t mark = 0;
    if (rank() != 0) {
      SLUICE_RETURN_IF_ERROR(SendTo(0, One(&mark)));
      return ReceiveFrom(0, One(&mark));
    }
    for (int from = 1; from < world(); ++from)
      SLUICE_RETURN_IF_ERROR(ReceiveFrom(from, One(&mark)));
    for (int to = 1; to < world(); ++to) SLUICE_RETURN_IF_ERROR(SendTo(to, One(&mark)));
    return absl::OkStatus();
  }

  static absl::Span<int64_t> One(int64_t* value) { return absl::MakeSpan(value, 1); }

  template <typename T>
  absl::Status SendTo(int to, absl::Span<T> values) {
    SLUICE_ASSIGN_OR_RETURN(Work sending, StartSending(to, TensorOf(values)));
    return Await(std::move(sending), kForever, to);
  }
  template <typename T>
  absl::Status ReceiveFrom(int from, absl::Span<T> values) {
    SLUICE_ASSIGN_OR_RETURN(Work receiving, StartReceiving(from, TensorOf(values)));
    return Await(std::move(receiving), kForever, from);
  }

  absl::StatusOr<Work> StartSending(int to, at::Tensor values) {
    return Begin([&] {
      std::vector<at::Tensor> tensors = {std::move(values)};
      return group_->send(tensors, to, kTag);
    });
  }
  absl::StatusOr<Work> StartReceiving(int from, at::Tensor values) {
    return Begin([&] {
      std::vector<at::Tensor> tensors = {std::move(values)};
      return group_->recv(tensors, from, kTag);
    });
  }
  template <typename Starter>
  absl::StatusOr<Work> Begin(Starter start) {
    try {
      return start();
    } catch (const std::exception& e) {
      return Lost(FirstLine(e));
    }
  }

  // Notices the loss of another rank by a message from it that never comes. If a connection breaks
  // while a message is under way on it, Gloo tells those who wait for other messages, but not who
  // waits for this one.
  struct Watch {
    int64_t nothing = 0;
    Work never_comes;
    std::thread thread;
  };
  void StartWatch(int peer) {
    auto watch = std::make_unique<Watch>();
    std::vector<at::Tensor> tensors = {TensorOf(One(&watch->nothing))};
    absl::StatusOr<Work> receiving = Begin([&] { return group_->recv(tensors, peer, kNeverTag); });
    if (!receiving.ok()) return;  // It is lost already, and all messages will fail.
    watch->never_comes = *std::move(receiving);
    watch->thread =
        std::thread([this, peer, work = watch->never_comes] { AwaitLoss(peer, *work); });
    watches_.push_back(std::move(watch));
  }
  // Ends the wait for a message of the peer, or to it, once that is lost.
  void AwaitLoss(int peer, c10d::Work& never_comes) {
    pthread_setname_np(pthread_self(), "rank_watch");
    try {
      never_comes.wait(kForever);
      return;  // The destructor has ended it.
    } catch (const std::exception& e) {
      MutexLock lock(&mu_);
      const absl::Duration end = Clock::Real()->Monotonic() + kGrace;
      for (absl::Duration left = kGrace; !ending_ && left > absl::ZeroDuration();
           left = end - Clock::Real()->Monotonic())
        ended_.WaitFor(&mu_, left);
      lost_[peer] = FirstLine(e);
      if (waits_for_ && waits_on_ == peer) waits_for_->abort();
    }
  }

  // Waits for a send or a receive. With `peer`, the loss of that rank ends it for sure; else it may
  // take until the timeout.
  absl::Status Await(Work work, std::chrono::milliseconds timeout,
                     std::optional<int> peer = std::nullopt) {
    {
      MutexLock lock(&mu_);
      if (aborted_) return Aborted();
      if (const auto it = peer ? lost_.find(*peer) : lost_.end(); it != lost_.end())
        return Lost(it->second);
      waits_for_ = std::move(work);
      waits_on_ = peer;
    }
    bool done = false;
    std::string lost;
    try {
      done = waits_for_->wait(timeout);
    } catch (const std::exception& e) {
      lost = FirstLine(e);
    }
    MutexLock lock(&mu_);
    waits_for_.reset();
    if (!lost.empty()) return Lost(lost);
    if (done) return absl::OkStatus();
    const auto it = peer ? lost_.find(*peer) : lost_.end();
    return it == lost_.end() ? Aborted() : Lost(it->second);
  }

  // A stream of buckets; see Collective::StartStream(). Bucket i uses buffer i % 2, so one can be
  // under way while the caller works with the other.
  struct Stream {
    uint64_t bytes = 0, bucket_bytes = 0, buckets = 0;
    uint64_t next = 0;  // Buckets before it were given to the caller.
    at::Tensor buffers[2];
    Work sending[2];         // By buffer. Null: nothing is sent from it.
    Work receiving;          // Of bucket `next`.
    absl::Status received;   // Why nothing is received any more.
    bool passes_on = false;  // To the next rank, as long as that is there.
  };

  at::Tensor BucketTensor(uint64_t index) {
    const uint64_t left = stream_.bytes - index * stream_.bucket_bytes;
    return stream_.buffers[index % 2].narrow(
        0, 0, static_cast<int64_t>(std::min(stream_.bucket_bytes, left)));
  }
  absl::Status StartSendingBucket(uint64_t index) {
    if (world() == 1) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(stream_.sending[index % 2],
                            StartSending(rank() + 1, BucketTensor(index)));
    return absl::OkStatus();
  }
  absl::Status StartReceivingBucket(uint64_t index) {
    SLUICE_ASSIGN_OR_RETURN(stream_.receiving, StartReceiving(rank() - 1, BucketTensor(index)));
    return absl::OkStatus();
  }
  // Waits for bucket `next`. While the caller works with it, it is passed on, and the one after it
  // comes. The loss of the next rank is no error here, and that of the one before is none for what
  // has come from it.
  absl::Status ReceiveBucket(uint64_t next) {
    Stream& stream = stream_;
    SLUICE_RETURN_IF_ERROR(stream.received);
    SLUICE_RETURN_IF_ERROR(AwaitTransfer(&stream.receiving));
    if (stream.passes_on) stream.passes_on = StartSendingBucket(next).ok();
    if (next + 1 == stream.buckets) return absl::OkStatus();
    if (!AwaitTransfer(&stream.sending[(next + 1) % 2]).ok()) stream.passes_on = false;
    stream.received = StartReceivingBucket(next + 1);
    return absl::OkStatus();
  }
  absl::Status AwaitTransfer(Work* work) {
    if (!*work) return absl::OkStatus();
    return Await(std::exchange(*work, Work()),
                 std::chrono::milliseconds(absl::ToInt64Milliseconds(options_.timeout)));
  }

  absl::Status Aborted() const {
    return absl::CancelledError(absl::StrCat("rank ", rank(), " leaves the group"));
  }

  const Options options_;
  const c10::intrusive_ptr<c10d::Backend> group_;

  Stream stream_;

  Mutex mu_;
  CondVar ended_;
  bool aborted_ ABSL_GUARDED_BY(mu_) = false, ending_ ABSL_GUARDED_BY(mu_) = false;
  Work waits_for_;  // Written with mu_ held, by the thread that uses the group.
  std::optional<int> waits_on_ ABSL_GUARDED_BY(mu_);      // Of which rank; see Await().
  std::map<int, std::string> lost_ ABSL_GUARDED_BY(mu_);  // Ranks, and why.
  std::vector<std::unique_ptr<Watch>> watches_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> JoinC10d(const Collective::Options& options,
                                                     Rendezvous* rendezvous) {
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not in a group of ", options.world));
  }
  SLUICE_ASSIGN_OR_RETURN(auto group, MakeBackend(options, rendezvous));
  return std::make_unique<C10dCollective>(options, std::move(group));
}

}  // namespace sluice
