#include "common/wal/reader.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wal/frame_reader.h"

namespace sluice::wal {
namespace {
using Result = FrameReader::Result;

absl::Status DamagedError(absl::string_view file, uint64_t offset, absl::string_view what) {
  return Error(absl::StatusCode::kDataLoss, "BAD_CRC",
               absl::StrCat(file, " at offset ", offset, ": ", what));
}

// Adds file and offset to an error that Replay returned for a record.
absl::Status AnnotatePlace(const absl::Status& status, absl::string_view file, uint64_t offset) {
  return status.ok() ? status : Annotate(status, absl::StrCat(file, " at offset ", offset));
}

// Reads a snapshot only to verify it.
class Discard : public Replay {
 public:
  absl::Status OnSnapshot(Position) override { return absl::OkStatus(); }
  absl::Status OnRecord(Entry) override { return absl::OkStatus(); }
};

class DirectoryReader {
 public:
  DirectoryReader(FileSystem* file_system, const std::string& dir, Replay* replay, Found* found,
                  Layout* layout)
      : file_system_(file_system), dir_(dir), replay_(replay), found_(found), layout_(layout) {}

  absl::Status Run() {
    SLUICE_RETURN_IF_ERROR(List());
    SLUICE_RETURN_IF_ERROR(ReadSnapshots());
    found_->last = found_->snapshot;
    SLUICE_RETURN_IF_ERROR(FindSegments());
    for (auto it = layout_->segments.find(start_); it != layout_->segments.end(); ++it) {
      const auto next = std::next(it);
      const bool last = next == layout_->segments.end();
      SLUICE_RETURN_IF_ERROR(ReadSegment(it->first, it->second, last ? nullptr : &next->second));
    }
    return absl::OkStatus();
  }

 private:
  std::string Path(absl::string_view name) const { return absl::StrCat(dir_, "/", name); }

  absl::StatusOr<std::unique_ptr<FrameReader>> Open(absl::string_view name) const {
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<File> file, file_system_->OpenForRead(Path(name)));
    return std::make_unique<FrameReader>(std::move(file), Path(name));
  }

  // Sorts the names in the directory by kind.
  absl::Status List() {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system_->List(dir_));
    for (const std::string& name : names) {
      const FileName parsed = ParseName(name);
      switch (parsed.kind) {
        case FileName::kSegment: layout_->segments[parsed.number] = 0; break;
        case FileName::kSnapshot: layout_->snapshots.push_back(parsed.number); break;
        case FileName::kSpare: layout_->spares.push_back(parsed.number); break;
        case FileName::kTemporary: layout_->temporary = true; break;
        case FileName::kLock: break;
        case FileName::kOther:
          found_->remarks.push_back(
              absl::StrCat(name, " is not a file of the log and was left alone"));
          break;
      }
    }
    std::sort(layout_->spares.begin(), layout_->spares.end());
    return absl::OkStatus();
  }

  // Reads the newest undamaged snapshot. Several exist if a crash or a full disk kept the older
  // ones from being removed. A damaged newer one may then be passed over, because the segments that
  // it covers are recycled only after the older snapshots are removed. But all records that it says
  // were durable must then be found in the log.
  absl::Status ReadSnapshots() {
    const std::vector<Position>& all = layout_->snapshots;
    if (all.empty()) return absl::OkStatus();
    size_t chosen = all.size() - 1;
    // A single snapshot is not verified first, because nothing could replace it.
    if (all.size() > 1) {
      absl::Status first;
      for (size_t left = all.size(); left > 0; --left) {
        Discard discard;
        Found ignored;
        const absl::Status status = ReadSnapshot(all[left - 1], &discard, &ignored);
        if (status.ok()) {
          chosen = left - 1;
          first = absl::OkStatus();
          break;
        }
        if (status.code() != absl::StatusCode::kDataLoss) return status;
        if (first.ok()) first = status;
        found_->remarks.push_back(absl::StrCat("left aside: ", status.message()));
      }
      SLUICE_RETURN_IF_ERROR(first);
    }

    promised_ = all.back();
    return ReadSnapshot(all[chosen], replay_, found_);
  }

  // Reads a snapshot and checks that it is complete.
  absl::Status ReadSnapshot(Position position, Replay* replay, Found* found) {
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<FrameReader> reader,
                            Open(SnapshotName(position)));
    SLUICE_ASSIGN_OR_RETURN(const FileHeader file, reader->SnapshotHeader());
    if (file.number != position)
      return DamagedError(reader->path(), 0,
                          absl::StrCat("its header is of the snapshot at position ", file.number));

    SLUICE_RETURN_IF_ERROR(replay->OnSnapshot(position));
    found->snapshot_records = 0;
    while (true) {
      const uint64_t at = reader->offset();
      FrameHeader header;
      Entry entry;
      SLUICE_ASSIGN_OR_RETURN(const Result result, reader->Next(replay, &header, &entry));
      if (result != Result::kFrame)
        return DamagedError(reader->path(), at, "a record of the snapshot is damaged");
      // Records count from 1, and the mark at the end has the position of the last.
      const bool end = header.kind == FrameKind::kMark;
      if (header.position != found->snapshot_records + (end ? 0 : 1))
        return DamagedError(reader->path(), at, "a record of the snapshot is missing");
      if (end) break;
      entry.position = 0;
      ++found->snapshot_records;
      SLUICE_RETURN_IF_ERROR(AnnotatePlace(replay->OnRecord(std::move(entry)), reader->path(), at));
    }

    found->snapshot = position;
    found->snapshot_bytes = reader->offset();
    return AnnotatePlace(replay->OnSnapshotEnd(), reader->path(), 0);
  }

  // Reads segment headers from the newest backwards, up to the segment that holds the first record
  // to replay.
  absl::Status FindSegments() {
    auto& segments = layout_->segments;
    // A snapshot is only written while a segment exists, so the segments must have been lost.
    if (segments.empty()) {
      if (promised_ == 0) return absl::OkStatus();
      return Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                   absl::StrCat(dir_, " has a snapshot at position ", promised_,
                                " and no segment of the log"));
    }
    uint64_t expected = 0;  // Number of the segment before the one read last.
    Position after = ~Position{0};
    for (auto it = segments.rbegin(); it != segments.rend(); ++it) {
      if (expected != 0 && it->first != expected) break;
      SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<FrameReader> reader,
                              Open(SegmentName(it->first)));
      SLUICE_ASSIGN_OR_RETURN(const FileHeader header, reader->SegmentHeader());
      if (header.number != it->first || header.first == 0 || header.first > after) {
        return DamagedError(reader->path(), 0,
                            absl::StrCat("its header is of segment ", header.number,
                                         " from position ", header.first));
      }
      start_ = it->first;
      it->second = after = header.first;
      expected = it->first - 1;
      if (header.first <= found_->snapshot + 1) return absl::OkStatus();
    }

    return Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                 absl::StrCat(Path(SegmentName(start_ - 1)),
                              " is missing: the records from position ", found_->snapshot + 1,
                              " to ", after - 1, " were in it or in earlier segments"));
  }

  // Replays the records of one segment. `next_first`: the position at which the next segment
  // starts; null for the last segment.
  absl::Status ReadSegment(uint64_t number, Position first, const Position* next_first) {
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<FrameReader> reader, Open(SegmentName(number)));
    SLUICE_RETURN_IF_ERROR(reader->SegmentHeader().status());
    // The headers read so far prove that the log was durable up to this position.
    Position known = first - 1;
    layout_->doubt_offset = reader->offset();
    Position expected = first;

    while (true) {
      found_->end_segment = reader->path();
      found_->end_offset = reader->offset();
      if (next_first != nullptr && expected == *next_first) return absl::OkStatus();
      FrameHeader header;
      Entry entry;
      // Skip the bodies of records that the snapshot covers.
      SLUICE_ASSIGN_OR_RETURN(
          const Result result,
          reader->Next(expected > found_->snapshot ? replay_ : nullptr, &header, &entry));
      const bool mark = result == Result::kFrame && header.kind == FrameKind::kMark;

      if (result != Result::kFrame || header.position != expected - (mark ? 1 : 0)) {
        if (next_first == nullptr)
          return CheckEnd(reader.get(), expected, result == Result::kBadBody ? &header : nullptr);
        return DamagedError(reader->path(), found_->end_offset,
                            absl::StrCat("the record of position ", expected,
                                         " is damaged, and the log goes on behind it"));
      }
      // A batch starts only when everything before it is durable, so doubt begins at this frame. A
      // mark says this of the batch before it.
      if (header.durable > known) {
        known = header.durable;
        layout_->doubt_offset = found_->end_offset;
      }
      if (mark) continue;
      if (expected > found_->snapshot) {
        ++found_->records;
        found_->last = expected;
        found_->bytes += header.frame_bytes();
        SLUICE_RETURN_IF_ERROR(
            AnnotatePlace(replay_->OnRecord(std::move(entry)), reader->path(), found_->end_offset));
      }
      ++expected;
    }
  }

  // No complete frame starts at the end offset of the last segment. Decides whether this is the end
  // of the log, perhaps torn, or damage.
  absl::Status CheckEnd(FrameReader* reader, Position expected, const FrameHeader* broken) {
    const uint64_t end = found_->end_offset;
    if (promised_ >= expected) {
      return DamagedError(reader->path(), end,
                          absl::StrCat("the record of position ", expected,
                                       " is damaged, and a snapshot says it was durable"));
    }

    // If the header is intact, skip its body: the payload may contain bytes that look like frames.
    SLUICE_ASSIGN_OR_RETURN(
        const std::optional<Position> durable,
        reader->FindNewestDurable(end + (broken != nullptr ? broken->frame_bytes() : 8)));
    if (durable >= expected)
      return DamagedError(reader->path(), end,
                          absl::StrCat("the record of position ", expected,
                                       " is damaged, and a later one says it was durable"));
    found_->torn = broken != nullptr || durable.has_value();
    return absl::OkStatus();
  }

  FileSystem* const file_system_;
  const std::string dir_;
  Replay* const replay_;
  Found* const found_;
  Layout* const layout_;
  // Position of the newest snapshot, damaged or not. The log was durable up to it.
  Position promised_ = 0;
  uint64_t start_ = 0;  // Number of the first segment to replay.
};
}  // namespace

absl::Status ReadDirectory(FileSystem* file_system, const std::string& dir, Replay* replay,
                           Found* found, Layout* layout) {
  return DirectoryReader(file_system, dir, replay, found, layout).Run();
}

}  // namespace sluice::wal
