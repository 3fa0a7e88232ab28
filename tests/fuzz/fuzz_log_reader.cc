// Fuzzes the log's reader with any bytes in the log's files.
//
// Input: a byte of flags, then files: u8 kind (0 segment, 1 snapshot, 2 spare), u8 number, u16 size
// little-endian, bytes. With flag 1 all checksums are corrected first, so that the code
// after the checksum tests is reached.
#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/testing/fault_file_system.h"
#include "common/wal/format.h"
#include "common/wal/log.h"
#include "tests/fuzz/target.h"

namespace sluice::fuzz {
namespace {
using wal::FaultFileSystem;
using wal::FileHeader;
using wal::FrameHeader;

constexpr char kDir[] = "log";

// Corrects all checksums of a file. A frame whose sizes go beyond the end becomes an empty one, so
// that the frames after it are reached.
void CorrectChecksums(std::string* file) {
  FileHeader header;
  if (file->size() < sizeof(header)) return;
  std::memcpy(&header, file->data(), sizeof(header));
  header.crc = 0;
  header.crc = Crc32c({reinterpret_cast<const char*>(&header), sizeof(header)});
  std::memcpy(file->data(), &header, sizeof(header));
  FrameHeader frame;

  for (size_t at = sizeof(header); at + sizeof(frame) <= file->size(); at += frame.frame_bytes()) {
    std::memcpy(&frame, &(*file)[at], sizeof(frame));
    const absl::string_view body = absl::string_view(*file).substr(at + sizeof(frame));
    if (frame.head_bytes > body.size() || frame.payload_bytes > body.size() - frame.head_bytes)
      frame.head_bytes = frame.payload_bytes = 0;
    frame.head_crc = Crc32c(body.substr(0, frame.head_bytes));
    frame.payload_crc = Crc32c(body.substr(frame.head_bytes, frame.payload_bytes));
    wal::SealFrame(header.salt, &frame);
    std::memcpy(&(*file)[at], &frame, sizeof(frame));
  }
}

void PutFiles(absl::string_view input, FaultFileSystem* system) {
  if (input.empty()) return;
  const bool correct = (input[0] & 1) != 0;
  input.remove_prefix(1);
  while (input.size() >= 4) {
    const uint8_t kind = input[0] % 3, number = input[1];
    const size_t size = std::min<size_t>(
        static_cast<uint8_t>(input[2]) | static_cast<uint8_t>(input[3]) << 8, input.size() - 4);
    std::string bytes(input.substr(4, size));
    input.remove_prefix(4 + size);
    if (correct) CorrectChecksums(&bytes);
    system->Put(absl::StrCat(kDir, "/",
                             kind == 0   ? wal::SegmentName(number)
                             : kind == 1 ? wal::SnapshotName(number)
                                         : wal::SpareName(number)),
                bytes);
  }
}

// Returns the input that PutFiles() turns into these files.
std::string EncodeFiles(const FaultFileSystem& system, char flags) {
  std::string input(1, flags);
  for (const auto& [path, bytes] : system.Snapshot()) {
    const wal::FileName name = wal::ParseName(absl::string_view(path).substr(sizeof(kDir)));
    input.push_back(static_cast<char>(name.kind));
    input.push_back(static_cast<char>(name.number));
    input.push_back(static_cast<char>(bytes.size()));
    input.push_back(static_cast<char>(bytes.size() >> 8));
    input += bytes;
  }

  return input;
}

// Checks that records come back in order and match their checksums.
class Check : public wal::Replay {
 public:
  absl::Status OnSnapshot(wal::Position position) override {
    SLUICE_CHECK(last == 0 && !in_snapshot_);
    in_snapshot_ = true;
    last = position;
    return absl::OkStatus();
  }
  absl::Status OnSnapshotEnd() override {
    in_snapshot_ = false;
    return absl::OkStatus();
  }
  absl::Status OnRecord(wal::Entry entry) override {
    SLUICE_CHECK(entry.position == (in_snapshot_ ? 0 : last + 1));
    SLUICE_CHECK(Crc32c(entry.payload) == entry.payload_crc32c);
    if (!in_snapshot_) ++last;
    digest = Crc32c(entry.payload, Crc32c(entry.head, digest));
    return absl::OkStatus();
  }
  wal::Position last = 0;
  uint32_t digest = 0;

 private:
  bool in_snapshot_ = false;
};

wal::Log::Options SmallOptions(FaultFileSystem* system) {
  wal::Log::Options options;
  options.segment_bytes = 1024;
  options.batch_bytes = 256;
  options.low_bytes = options.reserve_bytes = 0;
  options.file_system = system;
  return options;
}
}  // namespace

void Run(absl::string_view input) {
  FaultFileSystem system;
  PutFiles(input, &system);
  const auto before = system.Snapshot();
  Check scanned;
  wal::Found found;
  const absl::Status status = wal::Scan(&system, kDir, &scanned, &found);
  SLUICE_CHECK(status.ok() || status.code() == absl::StatusCode::kDataLoss ||
               status.code() == absl::StatusCode::kFailedPrecondition);

  SLUICE_CHECK(system.Snapshot() == before);
  SLUICE_CHECK(!status.ok() || found.last == scanned.last);

  Check opened;
  {
    const auto log = wal::Log::Open(SmallOptions(&system), kDir, &opened);
    SLUICE_CHECK_MSG(log.status().code() == status.code(),
                     absl::StrCat(log.status().ToString(), " after ", status.ToString()));
    SLUICE_CHECK(opened.digest == scanned.digest);
    if (!status.ok()) SLUICE_CHECK(system.Snapshot() == before);
  }

  if (!status.ok()) return;
  Check again;
  SLUICE_CHECK_MSG(wal::Scan(&system, kDir, &again, nullptr).ok(),
                   "a log that was opened is whole");
  SLUICE_CHECK(again.last == scanned.last && again.digest == scanned.digest);
}

std::vector<std::string> Seeds() {
  FaultFileSystem system;
  std::vector<std::string> seeds;
  for (int life = 0; life < 3; ++life) {
    Check check;
    auto log = wal::Log::Open(SmallOptions(&system), kDir, &check);
    SLUICE_CHECK(log.ok());
    (*log)->Start({});

    for (int i = 0; i < 12; ++i) {
      auto payload = std::make_shared<std::string>(i * 7, 'p');
      (*log)->Append({.type = static_cast<uint8_t>(i),
                      .head = absl::StrCat("head ", i),
                      .payload = {{payload, *payload, Crc32c(*payload)}}});
      if (life == 1 && i == 6)
        (*log)->Snapshot({{.type = 1, .head = "state"}, {.type = 2, .head = "more"}}, nullptr);
    }

    // The snapshot is written by the log's thread; the seeds need it in the files.
    while ((*log)->stats().snapshot == 0 && life == 1) {
    }
    (*log)->Close();
    for (const char flags : {0, 1}) seeds.push_back(EncodeFiles(system, flags));
  }

  return seeds;
}

}  // namespace sluice::fuzz
