#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/mutex.h"
#include "common/base/splitmix.h"
#include "common/testing/fault_file_system.h"
#include "common/wal/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// The tests compare a log with a slow, obvious model: the list of everything that was appended.
namespace sluice::wal {

inline constexpr char kDir[] = "data/log";

struct Item {
  uint8_t type = 0;
  std::string head, payload;
  bool operator==(const Item&) const = default;
};
using Items = std::vector<Item>;

inline std::ostream& operator<<(std::ostream& out, const Item& item) {
  return out << "{" << int{item.type} << ", " << item.head << ", " << item.payload.size()
             << " bytes}";
}

// Item `n` of every list. Its payload has at most 299 bytes, which are several sectors in the tests
// that make sectors small. MakeRecord() cuts it into up to three parts.
inline Item MakeItem(uint64_t n) {
  SplitMix64 random(n);
  return {.type = static_cast<uint8_t>(random.Below(256)),
          .head = absl::StrCat("head ", n),
          .payload = std::string(random.Below(4) == 0 ? 0 : random.Below(300),
                                 static_cast<char>('a' + n % 26))};
}

inline Part MakePart(absl::string_view bytes) {
  auto owner = std::make_shared<std::string>(bytes);
  return {.owner = owner, .bytes = *owner, .crc32c = Crc32c(bytes)};
}

inline Record MakeRecord(const Item& item) {
  Record record{.type = item.type, .head = item.head};
  const absl::string_view payload = item.payload;
  for (size_t at = 0, part = payload.size() / 3 + 1; at < payload.size(); at += part)
    record.payload.push_back(MakePart(payload.substr(at, part)));
  return record;
}

// Rebuilds the list from the log. In these tests a snapshot holds the whole list up to its
// position.
class Rebuild : public Replay {
 public:
  absl::Status OnSnapshot(Position position) override {
    EXPECT_TRUE(items.empty());
    in_snapshot_ = true;
    snapshot = position;
    return absl::OkStatus();
  }
  absl::Status OnSnapshotEnd() override {
    EXPECT_EQ(items.size(), snapshot);
    in_snapshot_ = false;
    return absl::OkStatus();
  }
  absl::Status OnRecord(Entry entry) override {
    items.push_back({entry.type, std::string(entry.head), std::string(entry.payload)});
    EXPECT_EQ(entry.payload_crc32c, Crc32c(entry.payload));
    EXPECT_EQ(entry.position, in_snapshot_ ? 0 : items.size());
    return absl::OkStatus();
  }
  Position snapshot = 0;
  Items items;

 private:
  bool in_snapshot_ = false;
};

// One life of a process: opens the log, appends to it, waits for what the log reports, and closes
// it. One thread of the test uses it; the log's own threads report under mu_.
class Life {
 public:
  static Log::Options SmallOptions(FileSystem* system) {
    Log::Options options;
    options.segment_bytes = 4096;
    options.batch_bytes = 1024;
    options.low_bytes = 0;
    options.reserve_bytes = 0;
    options.retry = absl::Milliseconds(1);
    options.file_system = system;
    return options;
  }

  explicit Life(FileSystem* system) : Life(SmallOptions(system), kDir) {}
  Life(const Log::Options& options, const std::string& dir) {
    Rebuild rebuild;
    absl::StatusOr<std::unique_ptr<Log>> opened = Log::Open(options, dir, &rebuild, &found);
    status = opened.status();
    if (!status.ok()) return;
    items = recovered = std::move(rebuild.items);
    durable_ = items.size();
    log = *std::move(opened);
    log->Start({.on_durable = [this](Position position) { Set(&durable_, position); },
                .on_fatal =
                    [this](const absl::Status& why) {
                      MutexLock lock(&mu_);
                      ++fatals;
                      fatal = why;
                      changed_.NotifyAll();
                    },
                .on_space =
                    [this](Space space) {
                      MutexLock lock(&mu_);
                      spaces.push_back(space);
                      changed_.NotifyAll();
                    }});
  }
  ~Life() { log.reset(); }

  Position Append() { return Append(MakeItem(items.size())); }
  Position Append(const Item& item) {
    items.push_back(item);
    return log->Append(MakeRecord(item));
  }
  // Waits until `position` is durable. Returns false if the log died first.
  bool AwaitDurable(Position position) {
    MutexLock lock(&mu_);
    while (durable_ < position && fatals == 0) changed_.Wait(&mu_);
    return durable_ >= position;
  }
  bool Flush() { return AwaitDurable(items.size()); }
  // Waits until the snapshot is done. CANCELLED: the log has ended.
  absl::Status TakeSnapshot() {
    std::vector<Record> state;
    for (const Item& item : items) state.push_back(MakeRecord(item));
    bool done = false;
    absl::Status result;

    if (!log->Snapshot(std::move(state), [&](const absl::Status& status) {
          MutexLock lock(&mu_);
          done = true;
          result = status;
          changed_.NotifyAll();
        })) {
      return absl::CancelledError("the log has ended");
    }

    MutexLock lock(&mu_);
    while (!done) changed_.Wait(&mu_);
    return result;
  }
  // Waits until the log reports `space`.
  void AwaitSpace(Space space) {
    MutexLock lock(&mu_);
    while (spaces.empty() || spaces.back() != space) changed_.Wait(&mu_);
  }
  // Waits until the log dies, and returns why.
  absl::Status AwaitFatal() {
    MutexLock lock(&mu_);
    while (fatals == 0) changed_.Wait(&mu_);
    return fatal;
  }
  Position durable() {
    MutexLock lock(&mu_);
    return durable_;
  }

  absl::Status status;  // What Open returned.
  Found found;
  Items recovered;  // The items that Open gave back.
  Items items;      // All items: `recovered`, then those appended since.
  std::unique_ptr<Log> log;
  int fatals = 0;
  absl::Status fatal;
  std::vector<Space> spaces;

 private:
  void Set(Position* what, Position value) {
    MutexLock lock(&mu_);
    EXPECT_GT(value, *what);
    *what = value;
    changed_.NotifyAll();
  }
  Mutex mu_;
  CondVar changed_;
  Position durable_ = 0;
};

// What comes back must be a prefix of what was appended, and hold everything that was acknowledged.
inline void ExpectPrefix(const Items& got, const Items& appended, Position acknowledged) {
  ASSERT_GE(got.size(), acknowledged) << "acknowledged records are gone";
  ASSERT_LE(got.size(), appended.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], appended[i]) << "record " << i + 1;
}

}  // namespace sluice::wal
