#include <cstring>

#include "absl/strings/match.h"
#include "common/base/status.h"
#include "common/wal/format.h"
#include "tests/common/wal/world.h"

// Changes bytes of logs that are not open. Either all whole records come back or DATA_LOSS names
// the place; wrong data never comes back.
namespace sluice::wal {
namespace {
using Files = std::map<std::string, std::string>;

std::string PathOf(const std::string& name) { return absl::StrCat(kDir, "/", name); }

// Writes a log of `count` items and returns them. If `closed`, the log ends with a mark (format.h).
// Otherwise it is as if the process had crashed right after the last sync.
Items Write(FaultFileSystem* system, int count, bool closed, bool snapshot = false,
            uint64_t segment_bytes = 2048) {
  Log::Options options = Life::SmallOptions(system);
  options.segment_bytes = segment_bytes;
  Life life(options, kDir);
  EXPECT_TRUE(life.status.ok()) << life.status;

  for (int i = 0; i < count; ++i) {
    life.Append();
    EXPECT_TRUE(i % 2 == 0 || life.Flush());
    EXPECT_TRUE(!snapshot || i != count / 2 || life.TakeSnapshot().ok());
  }

  EXPECT_TRUE(life.Flush());
  if (!closed) {
    // A mark may fail to reach the disk, so here the last ones are cut off.
    life.log.reset();
    Files files = system->Snapshot();
    for (auto& [path, bytes] : files) {
      if (ParseName(path.substr(sizeof(kDir))).kind != FileName::kSegment) continue;
      FileHeader file;
      std::memcpy(&file, bytes.data(), sizeof(file));
      for (size_t at = sizeof(file); at + sizeof(FrameHeader) <= bytes.size(); at += 8) {
        FrameHeader frame;
        if (DecodeFrame(file.salt, &bytes[at], &frame) && frame.kind == FrameKind::kMark &&
            frame.position == life.items.size())
          bytes.resize(at);
      }
      system->Put(path, bytes);
    }
  }
  return life.items;
}

struct Reading {
  absl::Status status;
  Items items;
  Found found;
};
Reading Read(FaultFileSystem* system) {
  Rebuild rebuild;
  Reading reading;
  reading.status = Scan(system, kDir, &rebuild, &reading.found);
  reading.items = std::move(rebuild.items);
  return reading;
}

// Returns the path of the newest segment.
std::string Last(const Files& files) {
  std::string last;
  for (const auto& [path, bytes] : files) {
    if (absl::StrContains(path, "/log-")) last = path;
  }
  return last;
}

// Returns the offset of each frame in the bytes of a segment, and the offset at which its body
// ends.
std::vector<std::pair<size_t, size_t>> Frames(const std::string& bytes,
                                              FrameKind kind = FrameKind::kRecord) {
  FileHeader file;
  std::memcpy(&file, bytes.data(), sizeof(file));
  std::vector<std::pair<size_t, size_t>> frames;
  FrameHeader frame;
  for (size_t at = sizeof(file);
       at + sizeof(frame) <= bytes.size() && DecodeFrame(file.salt, &bytes[at], &frame);
       at += frame.frame_bytes()) {
    if (frame.kind == kind)
      frames.emplace_back(at, at + sizeof(frame) + frame.head_bytes + frame.payload_bytes);
  }

  return frames;
}

TEST(WalDamageTest, CutAtEveryByteOfItsLastSegmentTheWholeRecordsComeBack) {
  // -1 ends the file at the cut; any other value fills the bytes behind the cut.
  for (const int filler : {-1, 0, 0xff, 0x5a}) {
    FaultFileSystem system;
    const Items items = Write(&system, 24, true);
    const Files files = system.Snapshot();
    const std::string path = Last(files);
    const std::string& bytes = files.at(path);
    const auto frames = Frames(bytes);
    ASSERT_GT(frames.size(), 0u);
    const size_t before = items.size() - frames.size();
    ASSERT_GT(before, 0u) << "several segments are wanted";

    for (size_t cut = sizeof(FileHeader); cut < frames.back().second + 64; ++cut) {
      SCOPED_TRACE(absl::StrCat("cut at ", cut, ", filler ", filler));
      std::string left = bytes.substr(0, cut);
      if (filler >= 0) left.resize(bytes.size(), static_cast<char>(filler));
      system.Put(path, left);
      size_t whole = before;
      for (const auto& [at, end] : frames)
        whole += end <= left.size() && left.compare(at, end - at, bytes, at, end - at) == 0 ? 1 : 0;
      const Reading reading = Read(&system);
      ASSERT_TRUE(reading.status.ok()) << reading.status;

      ASSERT_EQ(reading.items.size(), whole);
      ASSERT_NO_FATAL_FAILURE(ExpectPrefix(reading.items, items, whole));

      const std::unique_ptr<FaultFileSystem> copy = system.Clone();
      ASSERT_EQ(Life(copy.get()).recovered, reading.items);
      ASSERT_EQ(Read(copy.get()).items, reading.items);
    }

    // A segment that ends inside its header is damaged, because a segment gets its name only once
    // its header is on the disk.
    for (size_t cut = 0; cut < sizeof(FileHeader); ++cut) {
      system.Put(path, bytes.substr(0, cut));
      ASSERT_EQ(Read(&system).status.code(), absl::StatusCode::kDataLoss);
    }
  }
}

TEST(WalDamageTest, AnEarlierSegmentThatIsCutIsDataLoss) {
  FaultFileSystem system;
  Write(&system, 24, true);
  const Files files = system.Snapshot();
  const std::string path = PathOf(SegmentName(1));
  ASSERT_NE(path, Last(files));
  const auto frames = Frames(files.at(path));

  for (size_t cut = 0; cut < frames.back().second; ++cut) {
    system.Put(path, files.at(path).substr(0, cut));
    const Reading reading = Read(&system);
    ASSERT_EQ(reading.status.code(), absl::StatusCode::kDataLoss) << "cut at " << cut;
    ASSERT_TRUE(absl::StrContains(reading.status.message(), path)) << reading.status;
  }

  system.Erase(path);
  const absl::Status missing = Read(&system).status;
  EXPECT_EQ(missing.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(missing.message(), path)) << missing;
}

#ifdef SLUICE_SANITIZED
constexpr size_t kStride = 7;  // Sanitizers check the code, so they need not see every bit.
#else
constexpr size_t kStride = 1;
#endif

// Flips each bit of each file in turn. Only the last `doubt` records may be taken for torn.
void FlipEveryBit(FaultFileSystem* system, const Items& items, size_t doubt) {
  const Files files = system->Snapshot();
  size_t lost = 0;
  for (const auto& [path, bytes] : files) {
    for (size_t bit = 0; bit < 8 * bytes.size(); bit += kStride) {
      std::string flipped = bytes;
      flipped[bit / 8] ^= static_cast<char>(1 << bit % 8);
      system->Put(path, std::move(flipped));
      const Reading reading = Read(system);
      SCOPED_TRACE(absl::StrCat(path, " bit ", bit, ": ", reading.status.ToString()));

      if (reading.status.ok()) {
        ASSERT_NO_FATAL_FAILURE(ExpectPrefix(reading.items, items, items.size() - doubt));
      } else {
        ++lost;
        ASSERT_EQ(reading.status.code(), absl::StatusCode::kDataLoss);
        ASSERT_EQ(ReasonOf(reading.status), "BAD_CRC");
        ASSERT_TRUE(absl::StrContains(reading.status.message(), path)) << "the file is named";
        ASSERT_TRUE(absl::StrContains(reading.status.message(), "at offset ")) << "so is the place";
        ASSERT_NO_FATAL_FAILURE(ExpectPrefix(reading.items, items, 0));
      }
    }
    system->Put(path, bytes);
  }

  // A reader that checks little must fail: at least eight flips per record are damage.
  EXPECT_GT(lost, items.size() * 8 / kStride);
}

TEST(WalDamageTest, WithEveryBitFlippedInTurnAllRecordsComeBackOrDataLossNamesThePlace) {
  FaultFileSystem system;
  const Items items = Write(&system, 8, true, false, 1024);
  FlipEveryBit(&system, items, 0);
}

TEST(WalDamageTest, WithEveryBitOfASnapshotOrRecycledSegmentFlippedDataLossIsToldToo) {
  FaultFileSystem system;
  const Items items = Write(&system, 14, true, true, 1024);
  ASSERT_GT(Read(&system).found.snapshot, 0u);
  FlipEveryBit(&system, items, 0);
}

TEST(WalDamageTest, WithoutItsMarkOnlyTheLastBatchMayBeTakenForTorn) {
  FaultFileSystem system;
  const Items items = Write(&system, 8, false, false, 2048);
  FlipEveryBit(&system, items, 2);  // Write() flushes after every second item.
}

TEST(WalDamageTest, ABrokenRecordOfTheLastBatchIsCutThoughALaterOneOfItIsWhole) {
  FaultFileSystem system(8);
  Items items;
  {
    Life life(&system);
    life.Append();
    ASSERT_TRUE(life.Flush());

    // A batch of three records that is never synced.
    system.SetFault([&](uint64_t, const std::string& name, const std::string&) {
      return name == "sync" ? absl::AbortedError("not now") : absl::OkStatus();
    });
    life.Append({1, std::string(600, 'x'), ""});
    for (int i = 0; i < 2; ++i) life.Append({1, absl::StrCat("of the batch ", i), "same size"});
    ASSERT_FALSE(life.AwaitFatal().ok());
    items = life.items;
  }

  system.SetFault(nullptr);
  system.Restart();
  const std::string path = Last(system.Snapshot());
  std::string bytes = system.Snapshot().at(path);
  const auto frames = Frames(bytes);
  if (frames.size() < 2) GTEST_SKIP() << "the batch was cut before its second record";
  bytes[frames[1].first + 50] ^= 1;
  system.Put(path, bytes);
  const Reading reading = Read(&system);
  ASSERT_TRUE(reading.status.ok()) << reading.status;

  EXPECT_EQ(reading.items.size(), 1u);
  EXPECT_TRUE(reading.found.torn);
  EXPECT_EQ(reading.found.end_segment, path);
  EXPECT_EQ(reading.found.end_offset, frames[1].first);

  // What lay behind the cut must never come back, although the next records end exactly where it
  // starts.
  {
    Life life(&system);
    ASSERT_TRUE(life.status.ok()) << life.status;
    life.Append({1, std::string(600, 'y'), ""});
    ASSERT_TRUE(life.Flush());
  }

  const Reading again = Read(&system);
  ASSERT_TRUE(again.status.ok()) << again.status;
  ASSERT_EQ(again.items.size(), 2u);
  EXPECT_EQ(again.items[1].head[0], 'y');
}

TEST(WalDamageTest, ANewerFormatIsRefusedWithBothNumbers) {
  for (const bool snapshot : {false, true}) {
    FaultFileSystem system;
    Write(&system, 6, true, snapshot);
    const Files files = system.Snapshot();
    std::string path = Last(files);
    if (snapshot) path = PathOf(SnapshotName(Read(&system).found.snapshot));
    std::string bytes = files.at(path);
    FileHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    header.format = kFormat + 6;
    header.crc = 0;
    header.crc = Crc32c({reinterpret_cast<const char*>(&header), sizeof(header)});
    std::memcpy(bytes.data(), &header, sizeof(header));
    system.Put(path, bytes);

    for (const absl::Status& status : {Read(&system).status, Life(&system).status}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_EQ(ReasonOf(status), "NEWER_FORMAT");
      EXPECT_THAT(std::string(status.message()),
                  testing::AllOf(testing::HasSubstr(path), testing::HasSubstr("format 7"),
                                 testing::HasSubstr("up to 1")));
    }

    EXPECT_EQ(system.Snapshot().at(path), bytes) << "nothing was touched";
  }
}

TEST(WalDamageTest, ADamagedNewestSnapshotGivesWayToTheOneBeforeIfTheLogStillCarriesOn) {
  FaultFileSystem system;
  const Items items = Write(&system, 6, true, true);
  const Files files = system.Snapshot();
  const Position position = Read(&system).found.snapshot;

  // A crash between the rename of the new snapshot and the removal of what it covers leaves both on
  // the disk.
  std::string damaged = files.at(PathOf(SnapshotName(position)));
  damaged[damaged.size() / 2] ^= 4;
  system.Put(PathOf(SnapshotName(position + 1)), damaged);
  const Reading reading = Read(&system);
  ASSERT_TRUE(reading.status.ok()) << reading.status;

  EXPECT_EQ(reading.items, items);
  EXPECT_EQ(reading.found.remarks.size(), 1u);

  // A snapshot at this position says that more records were durable than the log holds.
  system.Put(PathOf(SnapshotName(items.size() + 1)), damaged);
  EXPECT_EQ(Read(&system).status.code(), absl::StatusCode::kDataLoss);
}

TEST(WalDamageTest, ScanChangesNothing) {
  FaultFileSystem system;
  Write(&system, 10, true, true);
  system.Put(PathOf("snapshot.tmp"), "half");
  system.Put(PathOf("notes.txt"), "mine");
  const Files before = system.Snapshot();
  const uint64_t calls = system.calls();
  const Reading reading = Read(&system);

  EXPECT_TRUE(reading.status.ok()) << reading.status;
  EXPECT_THAT(reading.found.remarks, testing::ElementsAre(testing::HasSubstr("notes.txt")));
  EXPECT_EQ(system.calls(), calls);
  EXPECT_EQ(system.Snapshot(), before);
}

}  // namespace
}  // namespace sluice::wal
