#include "services/trainer/core/event_file.h"

#include <algorithm>
#include <bit>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "services/trainer/core/append_file.h"

namespace sluice::trainer {
namespace {

// Field numbers of Event, Summary, Summary.Value and SessionLog.
constexpr int kEventWallTime = 1;
constexpr int kEventStep = 2;
constexpr int kEventFileVersion = 3;
constexpr int kEventSummary = 5;
constexpr int kEventSessionLog = 7;
constexpr int kSummaryValue = 1;
constexpr int kValueTag = 1;
constexpr int kValueSimpleValue = 2;
constexpr int kSessionLogStatus = 1;
constexpr int kSessionStart = 1;

// Wire types of protocol buffers.
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void AddVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) *out += static_cast<char>(value | 0x80);
  *out += static_cast<char>(value);
}

void AddLittleEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) *out += static_cast<char>(value >> (8 * i));
}

void AddTag(int field, WireType type, std::string* out) {
  AddVarint(static_cast<uint64_t>(field) << 3 | type, out);
}

void AddNumber(int field, uint64_t value, std::string* out) {
  AddTag(field, kVarint, out);
  AddVarint(value, out);
}

void AddDouble(int field, double value, std::string* out) {
  AddTag(field, kFixed64, out);
  AddLittleEndian(std::bit_cast<uint64_t>(value), 8, out);
}

void AddFloat(int field, float value, std::string* out) {
  AddTag(field, kFixed32, out);
  AddLittleEndian(std::bit_cast<uint32_t>(value), 4, out);
}

void AddBytes(int field, absl::string_view bytes, std::string* out) {
  AddTag(field, kBytes, out);
  AddVarint(bytes.size(), out);
  out->append(bytes.data(), bytes.size());
}

// The format masks its CRCs, because a CRC of bytes that contain CRCs themselves is weak.
uint32_t MaskedCrc(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

void AddRecord(absl::string_view event, std::string* out) {
  std::string length;
  AddLittleEndian(event.size(), 8, &length);
  out->append(length);
  AddLittleEndian(MaskedCrc(length), 4, out);
  out->append(event.data(), event.size());
  AddLittleEndian(MaskedCrc(event), 4, out);
}

std::string BeginEvent(const StepRecord& record) {
  std::string event;
  AddDouble(kEventWallTime, UnixSeconds(record.at), &event);
  AddNumber(kEventStep, static_cast<uint64_t>(record.step), &event);
  return event;
}

// The first two records of a file: the version of the format, and the step from which this file
// replaces earlier ones.
std::string Header(const StepRecord& first) {
  std::string version;
  AddDouble(kEventWallTime, UnixSeconds(first.at), &version);
  AddBytes(kEventFileVersion, "brain.Event:2", &version);

  std::string session;
  AddNumber(kSessionLogStatus, kSessionStart, &session);
  std::string start = BeginEvent(first);
  AddBytes(kEventSessionLog, session, &start);

  std::string out;
  AddRecord(version, &out);
  AddRecord(start, &out);
  return out;
}

}  // namespace

std::string TensorBoardTag(absl::string_view name) {
  if (absl::StrContains(name, '/')) return std::string(name);
  if (absl::ConsumePrefix(&name, "seconds_")) return absl::StrCat("seconds/", name);
  if (absl::ConsumePrefix(&name, "staleness_")) return absl::StrCat("staleness/", name);
  return absl::StrCat("train/", name);
}

EventFile::EventFile(std::string dir, int64_t incarnation)
    : dir_(std::move(dir)),
      path_(absl::StrFormat("%s/events.out.tfevents.%010d.sluice", dir_, incarnation)) {}

absl::Status EventFile::Append(const StepRecord& record) {
  std::string summary;
  for (const auto& [name, value] : record.values) {
    std::string entry;
    AddBytes(kValueTag, TensorBoardTag(name), &entry);
    AddFloat(kValueSimpleValue, static_cast<float>(value), &entry);
    AddBytes(kSummaryValue, entry, &summary);
  }
  std::string event = BeginEvent(record);
  AddBytes(kEventSummary, summary, &event);

  // The file does not exist at the first step, and after somebody has deleted it.
  std::string bytes;
  if (!PathExists(path_)) {
    SLUICE_RETURN_IF_ERROR(MakeDirs(dir_));
    size_ = 0;
  }
  if (size_ == 0) bytes = Header(record);
  AddRecord(event, &bytes);

  absl::StatusOr<int64_t> size = AppendToFile(path_, bytes, [this](int, int64_t found) {
    return absl::StatusOr<int64_t>(std::min(found, size_));
  });
  SLUICE_RETURN_IF_ERROR(size.status());
  size_ = *size;
  return absl::OkStatus();
}

}  // namespace sluice::trainer
