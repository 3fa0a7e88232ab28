#include "services/trainer/core/history.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "services/trainer/core/append_file.h"
#include "services/trainer/core/checkpoint.h"
#include "tests/services/trainer/tiny_model.h"

namespace sluice::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

StepRecord Record(int64_t step, int64_t incarnation = 1) {
  return {.step = step,
          .version = {incarnation, step + 1},
          .at = absl::FromUnixMillis(1'700'000'000'250 + 1000 * step),
          .values = {{"reward_mean", 0.5}, {"seconds_step", 2}, {"eval/held out/pass@1", 0.25}},
          .staleness = {{0, 10}, {1, 30}, {12, 10}}};
}

std::string Line(int64_t step, int64_t incarnation = 1) {
  return MetricsLine(Record(step, incarnation)) + "\n";
}

std::vector<int64_t> StepsIn(const std::string& path) {
  std::vector<int64_t> steps;
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return steps;
  EXPECT_TRUE(text->empty() || text->back() == '\n') << "the last line is torn";
  for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    steps.push_back(nlohmann::json::parse(line).at("step").get<int64_t>());
  }
  return steps;
}

class MetricsLogTest : public testing::Test {
 protected:
  void Write(const std::string& text) { ASSERT_TRUE(WriteFileAtomic(path_, text).ok()); }

  const std::string dir_ = FreshDir();
  const std::string path_ = dir_ + "/metrics.jsonl";
};

TEST_F(MetricsLogTest, ALineHoldsTheStepTheValuesByAnyNameAndTheStaleness) {
  StepRecord record = Record(12, 3);
  record.values["loss"] = std::numeric_limits<double>::quiet_NaN();
  record.values["step"] = 99;  // Must not hide the step.

  EXPECT_EQ(MetricsLine(record),
            R"({"step":12,"version":13,"incarnation":3,"time":1700000012.25,)"
            R"("eval/held out/pass@1":0.25,"loss":null,"reward_mean":0.5,"seconds_step":2.0,)"
            R"("staleness":{"0":10,"1":30,"12":10}})");
}

TEST_F(MetricsLogTest, EachStepIsALineOfItsOwn) {
  MetricsLog log(path_, 1);
  ASSERT_TRUE(log.CutBack(0).ok());
  for (int64_t step = 0; step < 3; ++step) ASSERT_TRUE(log.Append(Record(step)).ok());

  EXPECT_EQ(*ReadFile(path_), Line(0) + Line(1) + Line(2));
}

TEST_F(MetricsLogTest, StepsThatAreTrainedAgainReplaceTheirLines) {
  Write(Line(0) + Line(1) + Line(2) + Line(3));
  MetricsLog log(path_, 2);

  const absl::StatusOr<MetricsLog::Cut> cut = log.CutBack(2);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->last_step, 1);
  EXPECT_EQ(cut->steps, 2);
  EXPECT_EQ(cut->bytes_unreadable, 0);

  ASSERT_TRUE(log.Append(Record(2, 2)).ok());
  EXPECT_EQ(*ReadFile(path_), Line(0) + Line(1) + Line(2, 2));
}

TEST_F(MetricsLogTest, AnUnfinishedLineOfAKilledProcessIsRemovedWhereverItBreaks) {
  const std::string whole = Line(0) + Line(1);
  const std::string last = Line(2);
  for (size_t length = 1; length < last.size(); ++length) {
    SCOPED_TRACE(length);
    Write(whole + last.substr(0, length));
    MetricsLog log(path_, 2);

    const absl::StatusOr<MetricsLog::Cut> cut = log.CutBack(2);
    ASSERT_TRUE(cut.ok()) << cut.status();
    EXPECT_EQ(cut->bytes_unreadable, static_cast<int64_t>(length));
    ASSERT_TRUE(log.Append(Record(2, 2)).ok());
    ASSERT_EQ(*ReadFile(path_), whole + Line(2, 2));
  }
}

TEST_F(MetricsLogTest, WhatALossOfPowerLeavesAtTheEndIsRemoved) {
  Write(Line(0) + std::string(5000, '\0') + "\n" + "{\"step\":\n" + "12\n");
  MetricsLog log(path_, 2);
  ASSERT_TRUE(log.CutBack(1).ok());
  ASSERT_TRUE(log.Append(Record(1, 2)).ok());
  EXPECT_EQ(*ReadFile(path_), Line(0) + Line(1, 2));
}

TEST_F(MetricsLogTest, LinesLongerThanABlockOfTheSearchAreFound) {
  StepRecord wide = Record(1);
  for (int i = 0; i < 1000; ++i) wide.values[absl::StrCat("eval/set ", i, "/pass@1")] = i;
  Write(Line(0) + MetricsLine(wide) + "\n" + Line(2));
  MetricsLog log(path_, 2);

  const absl::StatusOr<MetricsLog::Cut> cut = log.CutBack(2);
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut->last_step, 1);
  EXPECT_EQ(*ReadFile(path_), Line(0) + MetricsLine(wide) + "\n");
}

TEST_F(MetricsLogTest, ARunFromTheModelBeginsAnEmptyFile) {
  Write(Line(0) + Line(1));
  MetricsLog log(path_, 2);
  const absl::StatusOr<MetricsLog::Cut> cut = log.CutBack(0);
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut->last_step, -1);
  EXPECT_EQ(*ReadFile(path_), "");
}

TEST_F(MetricsLogTest, ATrainerThatWasReplacedDoesNotWriteOverItsSuccessor) {
  MetricsLog old(path_, 1);
  for (int64_t step = 0; step < 3; ++step) ASSERT_TRUE(old.Append(Record(step)).ok());
  MetricsLog successor(path_, 2);
  ASSERT_TRUE(successor.CutBack(1).ok());
  ASSERT_TRUE(successor.Append(Record(1, 2)).ok());

  EXPECT_EQ(old.Append(Record(3, 1)).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(*ReadFile(path_), Line(0) + Line(1, 2));
}

TEST_F(MetricsLogTest, ALineThatAReplacedTrainerStillWroteIsRemovedByItsSuccessor) {
  MetricsLog log(path_, 2);
  ASSERT_TRUE(log.CutBack(0).ok());
  ASSERT_TRUE(log.Append(Record(0, 2)).ok());
  Write(Line(0, 2) + Line(5, 1));

  ASSERT_TRUE(log.Append(Record(1, 2)).ok());
  EXPECT_EQ(*ReadFile(path_), Line(0, 2) + Line(1, 2));
}

TEST_F(MetricsLogTest, ALineThatDidNotFitIsWrittenWithTheNextOne) {
  std::filesystem::create_symlink("/dev/full", path_);
  MetricsLog log(path_, 1);
  EXPECT_EQ(log.Append(Record(0)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(log.Append(Record(1)).code(), absl::StatusCode::kResourceExhausted);

  std::filesystem::remove(path_);
  ASSERT_TRUE(log.Append(Record(2)).ok());
  EXPECT_EQ(*ReadFile(path_), Line(0) + Line(1) + Line(2));
  EXPECT_EQ(log.lines_lost(), 0);
}

TEST_F(MetricsLogTest, OnlySoManyLinesWaitForADisk) {
  std::filesystem::create_symlink("/dev/full", path_);
  MetricsLog log(path_, 1);
  const int64_t count = MetricsLog::kMaxWaiting + 5;
  for (int64_t step = 0; step < count; ++step) EXPECT_FALSE(log.Append(Record(step)).ok());
  EXPECT_EQ(log.lines_lost(), 5);

  std::filesystem::remove(path_);
  // The oldest waiting line makes room for the new one.
  ASSERT_TRUE(log.Append(Record(count)).ok());
  EXPECT_EQ(log.lines_lost(), 6);

  const std::vector<int64_t> steps = StepsIn(path_);
  EXPECT_EQ(steps.front(), 6);
  EXPECT_EQ(steps.back(), count);
  EXPECT_EQ(steps.size(), MetricsLog::kMaxWaiting);
}

// A limit on the size of files breaks a write off in its middle, as an almost full disk does.
TEST_F(MetricsLogTest, AWriteThatBreaksOffLeavesNothingBehind) {
  ASSERT_TRUE(AppendToFile(path_, "whole\n", [](int, int64_t size) { return size; }).ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);

  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);

  const auto appended = AppendToFile(path_, "too long\n", [](int, int64_t size) { return size; });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);

  EXPECT_FALSE(appended.ok());
  EXPECT_EQ(*ReadFile(path_), "whole\n");
}

class HistoryTest : public MetricsLogTest {
 protected:
  History Open(int64_t incarnation) {
    return History(dir_, incarnation,
                   [this](const std::string& text) { warnings_.push_back(text); });
  }

  std::vector<std::string> warnings_;
};

TEST_F(HistoryTest, ADiskThatIsFullIsWarnedOfOnceAndTrainingGoesOn) {
  History history = Open(1);
  history.Begin(0);
  history.Append(Record(0));
  EXPECT_THAT(warnings_, IsEmpty());

  std::filesystem::rename(path_, path_ + ".kept");
  std::filesystem::create_symlink("/dev/full", path_);
  for (int64_t step = 1; step < 4; ++step) history.Append(Record(step));
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("No space left on device; training goes on without"));

  std::filesystem::remove(path_);
  std::filesystem::rename(path_ + ".kept", path_);
  history.Append(Record(4));
  EXPECT_THAT(StepsIn(path_), ElementsAre(0, 1, 2, 3, 4));
  ASSERT_EQ(warnings_.size(), 2u);
  EXPECT_THAT(warnings_[1], HasSubstr("can be written again; no step is missing"));
}

TEST_F(HistoryTest, AFolderThatCannotBeWrittenIsWarnedOf) {
  std::filesystem::create_directory(path_);
  ASSERT_TRUE(WriteFileAtomic(dir_ + "/tensorboard", "not a folder").ok());
  History history = Open(1);
  history.Begin(0);
  history.Append(Record(0));
  history.Append(Record(1));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("metrics.jsonl"), HasSubstr("tensorboard")));
}

TEST_F(HistoryTest, StepsOfTheCheckpointThatTheFileLacksAreNamed) {
  Write(Line(0) + Line(1));
  Open(2).Begin(5);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("lacks steps 2 to 4")));
}

TEST_F(HistoryTest, TheFilesAreNoCheckpoints) {
  History history = Open(1);
  history.Begin(0);
  history.Append(Record(0));
  CheckpointStore store({.dir = dir_});
  EXPECT_THAT(store.List(), IsEmpty());
  EXPECT_FALSE(store.ReadNewest(nullptr)->has_value());
}

// --- TensorBoard, read by code that shares nothing with the writer: the message types are read
// from a description, the checksum is computed bit by bit.

constexpr char kEventProto[] = R"(
  name: "event.proto" package: "tensorboard" syntax: "proto3"
  message_type {
    name: "Event"
    field { name: "wall_time" number: 1 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
    field { name: "step" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL }
    field { name: "file_version" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL }
    field {
      name: "summary" number: 5 type: TYPE_MESSAGE type_name: "Summary" label: LABEL_OPTIONAL
    }
    field {
      name: "session_log" number: 7
      type: TYPE_MESSAGE type_name: "SessionLog" label: LABEL_OPTIONAL
    }
  }
  message_type {
    name: "Summary"
    nested_type {
      name: "Value"
      field { name: "tag" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: "simple_value" number: 2 type: TYPE_FLOAT label: LABEL_OPTIONAL }
    }
    field { name: "value" number: 1 type: TYPE_MESSAGE type_name: "Value" label: LABEL_REPEATED }
  }
  message_type {
    name: "SessionLog"
    enum_type {
      name: "Status" value { name: "UNSPECIFIED" number: 0 } value { name: "START" number: 1 }
    }
    field { name: "status" number: 1 type: TYPE_ENUM type_name: "Status" label: LABEL_OPTIONAL }
  }
)";

uint32_t MaskedCrcBitByBit(absl::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

class EventReader {
 public:
  EventReader() {
    google::protobuf::FileDescriptorProto file;
    SLUICE_CHECK(google::protobuf::TextFormat::ParseFromString(kEventProto, &file));
    SLUICE_CHECK(pool_.BuildFile(file) != nullptr);
    type_ = pool_.FindMessageTypeByName("tensorboard.Event");
  }

  // Returns each event as text, and checks the framing up to the last byte.
  std::vector<std::string> Read(const std::string& path) {
    std::vector<std::string> events;
    const std::string bytes = *ReadFile(path);
    absl::string_view rest = bytes;
    while (!rest.empty()) {
      // A record is the length (8 bytes), its CRC (4), the event, and the event's CRC (4).
      uint64_t length;
      uint32_t length_crc, event_crc;
      if (rest.size() < 12) break;
      std::memcpy(&length, rest.data(), 8);
      std::memcpy(&length_crc, rest.data() + 8, 4);
      EXPECT_EQ(length_crc, MaskedCrcBitByBit(rest.substr(0, 8)));

      if (rest.size() < 16 + length) break;
      const absl::string_view event = rest.substr(12, length);
      std::memcpy(&event_crc, rest.data() + 12 + length, 4);
      EXPECT_EQ(event_crc, MaskedCrcBitByBit(event));
      rest.remove_prefix(16 + length);

      std::unique_ptr<google::protobuf::Message> message(factory_.GetPrototype(type_)->New());
      EXPECT_TRUE(message->ParseFromArray(event.data(), static_cast<int>(event.size())));
      EXPECT_TRUE(message->GetReflection()->GetUnknownFields(*message).empty());
      events.push_back(message->ShortDebugString());
    }
    EXPECT_TRUE(rest.empty()) << rest.size() << " bytes are no record";
    return events;
  }

 private:
  google::protobuf::DescriptorPool pool_;
  google::protobuf::DynamicMessageFactory factory_{&pool_};
  const google::protobuf::Descriptor* type_ = nullptr;
};

TEST(TensorBoardTest, NamesAreSortedIntoSections) {
  EXPECT_EQ(TensorBoardTag("reward_mean"), "train/reward_mean");
  EXPECT_EQ(TensorBoardTag("seconds_optim"), "seconds/optim");
  EXPECT_EQ(TensorBoardTag("staleness_p95"), "staleness/p95");
  EXPECT_EQ(TensorBoardTag("eval/held out/pass@1"), "eval/held out/pass@1");
}

TEST(TensorBoardTest, AnotherReaderFindsEveryValueOfEveryStep) {
  const std::string dir = FreshDir() + "/tensorboard";
  EventFile file(dir, 3);
  ASSERT_TRUE(file.Append(Record(20, 3)).ok());
  ASSERT_TRUE(file.Append(Record(21, 3)).ok());

  const auto values = [](const std::string& time, int64_t step) {
    return absl::StrCat("wall_time: ", time, " step: ", step, " summary {",
                        " value { tag: \"eval/held out/pass@1\" simple_value: 0.25 }",
                        " value { tag: \"train/reward_mean\" simple_value: 0.5 }",
                        " value { tag: \"seconds/step\" simple_value: 2 } }");
  };

  EXPECT_EQ(file.path(), dir + "/events.out.tfevents.0000000003.sluice");
  EXPECT_THAT(EventReader().Read(file.path()),
              ElementsAre("wall_time: 1700000020.25 file_version: \"brain.Event:2\"",
                          "wall_time: 1700000020.25 step: 20 session_log { status: START }",
                          values("1700000020.25", 20), values("1700000021.25", 21)));
}

TEST(TensorBoardTest, AStepThatDidNotFitLeavesAFileThatCanBeRead) {
  EventFile file(FreshDir() + "/tensorboard", 1);
  ASSERT_TRUE(file.Append(Record(0)).ok());
  const std::string moved = file.path() + ".moved";
  std::filesystem::rename(file.path(), moved);
  std::filesystem::create_symlink("/dev/full", file.path());
  EXPECT_EQ(file.Append(Record(1)).code(), absl::StatusCode::kResourceExhausted);

  std::filesystem::remove(file.path());
  std::filesystem::rename(moved, file.path());
  // Seven bytes of a torn record.
  std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) + 7);
  ASSERT_TRUE(file.Append(Record(2)).ok());

  // The file version, the start of the session, and steps 0 and 2.
  EXPECT_EQ(EventReader().Read(file.path()).size(), 4u);
}

TEST(TensorBoardTest, AFileThatSomebodyDeletedIsBegunAnew) {
  EventFile file(FreshDir() + "/tensorboard", 1);
  ASSERT_TRUE(file.Append(Record(0)).ok());
  std::filesystem::remove_all(std::filesystem::path(file.path()).parent_path());
  ASSERT_TRUE(file.Append(Record(1)).ok());

  EXPECT_THAT(EventReader().Read(file.path()),
              ElementsAre(HasSubstr("file_version"), HasSubstr("step: 1 session_log"),
                          HasSubstr("step: 1 summary")));
}

}  // namespace
}  // namespace sluice::trainer
