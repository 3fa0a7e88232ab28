#include "services/queue/arena.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/shm/allocator.h"

namespace sluice::queue {
namespace {
constexpr uint64_t kMaxSegment = 256ull << 20;
constexpr uint64_t kHead = sizeof(shm::BlockHead);

struct Part {
  Part(shm::Segment made, uint32_t number)
      : segment(std::move(made)), id(number), holes(segment.bytes()) {}
  shm::Segment segment;
  const uint32_t id;
  shm::OffsetAllocator holes;
  bool used = true;  // Something was allocated since the last Trim().
};
}  // namespace

struct Arena::State {
  explicit State(const Options& options) : options(options) {}

  const Options options;
  mutable Mutex mu;
  CondVar changed;
  std::map<uint32_t, std::shared_ptr<Part>> parts ABSL_GUARDED_BY(mu);
  uint64_t total ABSL_GUARDED_BY(mu) = 0;  // Size of all parts.
  uint64_t used ABSL_GUARDED_BY(mu) = 0, allocations ABSL_GUARDED_BY(mu) = 0;
  uint32_t last_id ABSL_GUARDED_BY(mu) = 0;
  uint64_t generation ABSL_GUARDED_BY(mu) = 0;
  bool wanted ABSL_GUARDED_BY(mu) = false, stopped ABSL_GUARDED_BY(mu) = false;
  std::thread thread;

  // Size of the next segment, which must have room for an allocation of `least` bytes.
  uint64_t NextBytes(uint64_t least) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const uint64_t step = options.segment_bytes;
    const uint64_t grown = std::clamp(total / 4 / step * step, step, std::max(step, kMaxSegment));
    return std::max(grown, (least + kHead + 4095) / 4096 * 4096);
  }
  // Makes a segment, without the lock, because it takes a while. Returns false if the system has no
  // memory.
  bool AddPart(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu);
  std::shared_ptr<char> TryAllocate(const std::shared_ptr<State>& self, uint64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu);
  void Free(const Block& block) ABSL_LOCKS_EXCLUDED(mu);
  void MakeSegmentsAhead() ABSL_LOCKS_EXCLUDED(mu);
};

// The deleter of an allocation's shared_ptr, which holds all that is known about the allocation.
struct Arena::Block {
  std::shared_ptr<State> state;
  std::shared_ptr<Part> part;
  uint64_t offset = 0, bytes = 0, generation = 0;
  void operator()(char*) const { state->Free(*this); }
};

bool Arena::State::AddPart(uint64_t bytes) {
  absl::StatusOr<shm::Segment> made =
      shm::Segment::Create("sluice-queue", bytes, shm::Access::kOwner, /*touch=*/true);
  if (!made.ok()) {
    log::Warning("no_segment", {{"message", made.status().message()}});
    return false;
  }
  MutexLock lock(&mu);
  const uint32_t id = ++last_id;
  parts.emplace(id, std::make_shared<Part>(*std::move(made), id));
  total += bytes;
  return true;
}

std::shared_ptr<char> Arena::State::TryAllocate(const std::shared_ptr<State>& self,
                                                uint64_t bytes) {
  Block block{.state = self, .bytes = bytes + kHead};
  shm::BlockHead* head = nullptr;
  {
    MutexLock lock(&mu);
    // Use the oldest segments first, so that the newest ones become empty and can be returned.
    for (const auto& [id, part] : parts) {
      if (part->holes.largest_hole() < block.bytes) continue;
      const std::optional<uint64_t> offset = part->holes.Allocate(block.bytes);
      if (!offset) continue;
      block.part = part;
      block.offset = *offset;
      break;
    }

    // Ask for another segment when the last one is more than half full.
    const bool last = block.part == nullptr || block.part == parts.rbegin()->second;
    if (options.ahead && last &&
        (block.part == nullptr ||
         block.part->holes.free_bytes() < block.part->segment.bytes() / 2) &&
        !wanted) {
      wanted = true;
      changed.NotifyAll();
    }

    if (block.part == nullptr) return nullptr;
    block.part->used = true;
    block.generation = ++generation;
    used += block.bytes;
    ++allocations;
  }
  head = reinterpret_cast<shm::BlockHead*>(block.part->segment.data() + block.offset);
  head->bytes = bytes;
  head->generation.store(block.generation, std::memory_order_release);
  return {reinterpret_cast<char*>(head) + kHead, std::move(block)};
}

void Arena::State::Free(const Block& block) {
  auto* head = reinterpret_cast<shm::BlockHead*>(block.part->segment.data() + block.offset);
  // Generation 0 means that the block is free. Readers must see it before the bytes change.
  head->generation.store(0, std::memory_order_seq_cst);
  MutexLock lock(&mu);
  block.part->holes.Free(block.offset, block.bytes);
  used -= block.bytes;
  --allocations;
}

void Arena::State::MakeSegmentsAhead() {
  while (true) {
    uint64_t bytes = 0;
    {
      MutexLock lock(&mu);
      while (!wanted && !stopped) changed.Wait(&mu);
      if (stopped) return;
      bytes = NextBytes(0);
    }
    const bool made = AddPart(bytes);
    MutexLock lock(&mu);
    wanted = false;
    if (!made && !stopped) changed.WaitFor(&mu, absl::Seconds(1));
  }
}

Arena::Arena() : Arena(Options()) {}

Arena::Arena(const Options& options) : state_(std::make_shared<State>(options)) {
  if (!options.ahead) return;
  MutexLock lock(&state_->mu);
  state_->wanted = true;
  state_->thread = std::thread([state = state_.get()] { state->MakeSegmentsAhead(); });
}

Arena::~Arena() {
  {
    MutexLock lock(&state_->mu);
    state_->stopped = true;
    state_->changed.NotifyAll();
  }
  if (state_->thread.joinable()) state_->thread.join();
}

std::shared_ptr<char> Arena::Allocate(size_t bytes) {
  while (true) {
    if (std::shared_ptr<char> memory = state_->TryAllocate(state_, bytes)) return memory;
    uint64_t next = 0;
    {
      MutexLock lock(&state_->mu);
      next = state_->NextBytes(bytes);
    }
    if (!state_->AddPart(next)) break;
  }
  return {new char[bytes], std::default_delete<char[]>()};
}

std::optional<shm::Slice> Arena::SliceOf(const std::shared_ptr<const char>& data, uint64_t length) {
  const Block* block = std::get_deleter<Block>(data);
  if (block == nullptr) return std::nullopt;
  return shm::Slice{.segment = block->part->id,
                    .block = block->offset,
                    .offset = static_cast<uint64_t>(data.get() - block->part->segment.data()),
                    .length = length,
                    .generation = block->generation};
}

absl::StatusOr<Arena::Shared> Arena::ShareSegment(uint32_t segment) const {
  MutexLock lock(&state_->mu);
  const auto it = state_->parts.find(segment);
  if (it == state_->parts.end())
    return absl::NotFoundError(absl::StrCat("segment ", segment, " is not in use"));
  Fd fd(fcntl(it->second->segment.fd(), F_DUPFD_CLOEXEC, 0));
  if (!fd.valid())
    return absl::ResourceExhaustedError(
        absl::StrCat("no descriptor for segment ", segment, ": ", std::strerror(errno)));
  return Shared{std::move(fd), it->second->segment.bytes()};
}

void Arena::Trim() {
  std::vector<std::shared_ptr<Part>> gone;  // They are unmapped after the lock is released.
  MutexLock lock(&state_->mu);

  // While anything is stored, one empty segment stays for the next allocations.
  bool spare = state_->used == 0;
  for (auto it = state_->parts.begin(); it != state_->parts.end();) {
    Part& part = *it->second;
    const bool idle = part.holes.idle() && !part.used;
    part.used = !part.holes.idle();
    if (!idle || !std::exchange(spare, true)) {
      ++it;
      continue;
    }
    state_->total -= part.segment.bytes();
    gone.push_back(std::move(it->second));
    it = state_->parts.erase(it);
  }
}

Arena::Use Arena::use() const {
  MutexLock lock(&state_->mu);
  return {.segments = state_->parts.size(),
          .bytes = state_->total,
          .used_bytes = state_->used,
          .allocations = state_->allocations};
}

}  // namespace sluice::queue
