#include "services/queue/core/archive.h"

#include <cstring>
#include <limits>

#include "absl/strings/cord.h"
#include "common/base/status.h"

namespace sluice::queue {
namespace {
// The unit in which absl::Duration counts.
const absl::Duration kTick = absl::Nanoseconds(1) / 4;
}  // namespace

void Writer::Put(absl::Duration duration) {
  absl::Duration rest;
  // For infinite durations this is the largest or the lowest int64.
  Put(absl::IDivDuration(duration, kTick, &rest));
}

void Writer::Put(const absl::Status& status) {
  Put(static_cast<uint32_t>(status.code()));
  if (status.ok()) return;
  Put(std::string(status.message()));
  std::map<std::string, std::string> payloads;
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& bytes) { payloads.emplace(type, bytes); });
  Put(payloads);
}

// The first number is twice the size, plus 1 if the bytes are kept. The CRC follows, and then the
// bytes themselves if they are small.
void Writer::Put(const Bytes& bytes) {
  const bool inlined = bytes.size <= kInHead;
  const bool kept = inlined || (payload_ == Payload::kKept && bytes.data != nullptr);
  WriteVarint(bytes.size << 1 | uint64_t{kept});
  WriteRaw(&bytes.crc32c, sizeof(bytes.crc32c));
  if (inlined) {
    WriteRaw(bytes.data.get(), bytes.size);
  } else if (kept) {
    out_.parts.push_back(bytes);
  }
}

absl::Status Reader::Finish() const {
  const bool all =
      head_.empty() && (run_ == payload_.size() ||
                        (run_ + 1 == payload_.size() && place_ == payload_[run_].bytes.size()));
  if (!failed_ && all) return absl::OkStatus();
  return Error(
      absl::StatusCode::kDataLoss, "BAD_RECORD",
      failed_ ? "the record is not what this build writes" : "the record has bytes left over");
}

uint64_t Reader::ReadVarint() {
  uint64_t value = 0;
  for (size_t i = 0; i < head_.size() && i < 10; ++i) {
    const uint64_t byte = static_cast<uint8_t>(head_[i]);
    if (i == 9 && byte > 1) break;
    value |= (byte & 0x7F) << (7 * i);
    if (byte < 0x80) {
      head_.remove_prefix(i + 1);
      return value;
    }
  }
  Fail();
  return 0;
}

uint64_t Reader::ReadCount() {
  const uint64_t count = ReadVarint();
  if (count <= head_.size()) return count;
  Fail();
  return 0;
}

absl::string_view Reader::ReadRaw(size_t size) {
  if (size > head_.size()) {
    Fail();
    return {};
  }
  const absl::string_view raw = head_.substr(0, size);
  head_.remove_prefix(size);
  return raw;
}

void Reader::Get(double& value) {
  const absl::string_view raw = ReadRaw(sizeof(value));
  if (!failed_) std::memcpy(&value, raw.data(), sizeof(value));
}

void Reader::Get(Id16& id) {
  const absl::string_view raw = ReadRaw(id.bytes.size());
  if (!failed_) std::memcpy(id.bytes.data(), raw.data(), id.bytes.size());
}

void Reader::Get(absl::Duration& duration) {
  int64_t ticks = 0;
  Get(ticks);
  duration = ticks == std::numeric_limits<int64_t>::max()   ? absl::InfiniteDuration()
             : ticks == std::numeric_limits<int64_t>::min() ? -absl::InfiniteDuration()
                                                            : ticks * kTick;
}

void Reader::Get(absl::Status& status) {
  uint32_t code = 0;
  Get(code);
  if (code == 0) {
    status = absl::OkStatus();
    return;
  }
  std::string message;
  std::map<std::string, std::string> payloads;
  Get(message);
  Get(payloads);
  status = absl::Status(static_cast<absl::StatusCode>(code), message);
  for (const auto& [type, bytes] : payloads) status.SetPayload(type, absl::Cord(bytes));
}

void Reader::Get(Bytes& bytes) {
  const uint64_t header = ReadVarint();
  const absl::string_view crc = ReadRaw(sizeof(bytes.crc32c));
  if (failed_) return;
  bytes = {.size = header >> 1};
  std::memcpy(&bytes.crc32c, crc.data(), sizeof(bytes.crc32c));

  if ((header & 1) == 0) return;
  if (bytes.size <= kInHead) {
    const absl::string_view raw = ReadRaw(bytes.size);
    if (failed_) return;
    std::shared_ptr<char> copy(new char[raw.size()], std::default_delete<char[]>());
    std::memcpy(copy.get(), raw.data(), raw.size());
    bytes.data = std::move(copy);
    return;
  }

  while (run_ < payload_.size() && place_ == payload_[run_].bytes.size()) ++run_, place_ = 0;
  if (run_ == payload_.size() || payload_[run_].bytes.size() - place_ < bytes.size) {
    bytes = {};
    return Fail();
  }
  bytes.data =
      std::shared_ptr<const char>(payload_[run_].owner, payload_[run_].bytes.data() + place_);
  place_ += bytes.size;
}

}  // namespace sluice::queue
