#include "common/models/team.h"

#include <pthread.h>

#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/base/status.h"

namespace sluice {
namespace {

constexpr int kSpins = 2000;  // These take tens of microseconds.

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Waits until `value` is no longer `old`: spins first, then sleeps.
template <typename T>
void AwaitChange(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    Pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

Team::Team(int size, const char* name) : name_(name) { Resize(size); }

Team::~Team() { Resize(1); }

void Team::Resize(int size) {
  SLUICE_CHECK(size >= 1);
  // Helpers read next_size_ at the end of a round, so an empty round ends those that are to leave.
  next_size_ = size;
  if (size < size_) Run([](int) {});
  while (static_cast<int>(helpers_.size()) > size - 1) {
    helpers_.back().join();
    helpers_.pop_back();
  }

  for (int i = size_; i < size; ++i) {
    helpers_.emplace_back([this, i, seen = round_.load()] { RunHelper(i, seen); });
    pthread_setname_np(helpers_.back().native_handle(), name_);
  }
  size_ = size;
  SLUICE_CHECK(static_cast<int>(helpers_.size()) == size_ - 1);
}

void Team::Run(const std::function<void(int)>& work) noexcept {
  if (size_ == 1) {
    next_.store(0, std::memory_order_relaxed);
    return work(0);
  }

  // The last Run() waited for all helpers, and `work` must not call Run() itself.
  SLUICE_CHECK(busy_.load(std::memory_order_relaxed) == 0);

  // The release of round_ publishes work_ and busy_ to the helpers.
  work_ = &work;
  busy_.store(size_ - 1, std::memory_order_relaxed);
  round_.store((round_.load(std::memory_order_relaxed) & ~1u) + 2, std::memory_order_release);
  round_.notify_all();

  work(0);
  for (int busy; (busy = busy_.load(std::memory_order_acquire)) > 0;) AwaitChange(busy_, busy);
}

void Team::Offer(const std::function<void(int)>& work) {
  if (size_ == 1) return work(0);

  const uint32_t round = ((round_.load(std::memory_order_relaxed) & ~1u) + 2) | 1;
  work_ = &work;
  finished_.store(0, std::memory_order_relaxed);
  gate_.store(uint64_t{round} << 32, std::memory_order_release);
  round_.store(round, std::memory_order_release);
  round_.notify_all();
  RunOfferedPart(work, 0);

  // From here on no helper enters. Wait for those that have.
  const int entered =
      static_cast<int>(gate_.exchange(kClosed, std::memory_order_acq_rel) & 0xffffffff);
  SLUICE_CHECK(entered < size_);  // Each helper enters an offer at most once.
  for (int finished; (finished = finished_.load(std::memory_order_acquire)) < entered;)
    AwaitChange(finished_, finished);

  if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

void Team::RunOfferedPart(const std::function<void(int)>& work, int index) {
  try {
    work(index);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(error_mu_);
    if (error_ == nullptr) error_ = std::current_exception();
  }
}

bool Team::EnterOffer(uint32_t round) {
  uint64_t gate = gate_.load(std::memory_order_relaxed);
  while (gate != kClosed && gate >> 32 == round) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel,
                                    std::memory_order_relaxed))
      return true;
  }
  return false;
}

void Team::RunHelper(int index, uint32_t seen) {
  for (bool stays = true; stays;) {
    AwaitChange(round_, seen);
    seen = round_.load(std::memory_order_acquire);

    if ((seen & 1) != 0) {
      if (!EnterOffer(seen)) continue;
      RunOfferedPart(*work_, index);
      finished_.fetch_add(1, std::memory_order_acq_rel);
      finished_.notify_all();
      continue;
    }

    (*work_)(index);
    stays = index < next_size_;
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_all();
  }
}

void Team::AwaitAll() {
  // Read the count before arriving: no thread passes the barrier while this thread has not arrived.
  const uint32_t passed = barriers_passed_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_)
    return AwaitChange(barriers_passed_, passed);

  // The last thread to arrive resets what the barrier used, then lets the others go on.
  arrived_.store(0, std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  barriers_passed_.fetch_add(1, std::memory_order_release);
  if (size_ > 1) barriers_passed_.notify_all();
}

}  // namespace sluice
