#include "services/trainer/one_slot_worker.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

namespace sluice::trainer {
namespace {

TEST(OneSlotWorkerTest, TasksArePutInTurnAndEachOneRuns) {
  std::string order;
  OneSlotWorker worker;

  for (const char name : {'a', 'b', 'c', 'd'}) {
    ASSERT_TRUE(worker
                    .Put([&order, name] {
                      order += name;
                      return absl::OkStatus();
                    })
                    .ok());
  }

  EXPECT_TRUE(worker.Flush().ok());
  EXPECT_EQ(order, "abcd");
}

TEST(OneSlotWorkerTest, AReplacedTaskIsNeverRunButTheOneThatRunsIsFinished) {
  std::string order;
  std::promise<void> started, go_on;
  OneSlotWorker worker;
  worker.Replace([&] {
    started.set_value();
    go_on.get_future().wait();
    order += "first";
    return absl::OkStatus();
  });
  started.get_future().wait();

  worker.Replace([&] {
    order += " second";
    return absl::OkStatus();
  });
  worker.Replace([&] {
    order += " third";
    return absl::OkStatus();
  });
  go_on.set_value();

  EXPECT_TRUE(worker.Flush().ok());
  EXPECT_EQ(order, "first third");
}

TEST(OneSlotWorkerTest, AfterATaskHasFailedNoOtherRunsAndEveryCallHasItsError) {
  std::promise<void> told;
  absl::Status when_told;
  OneSlotWorker* self = nullptr;
  OneSlotWorker worker([&] {
    when_told = self->status();
    told.set_value();
  });
  self = &worker;
  bool ran = false;
  const auto run = [&ran] {
    ran = true;
    return absl::OkStatus();
  };

  worker.Replace([] { return absl::DataLossError("the disk is gone"); });
  told.get_future().wait();
  const absl::Status put = worker.Put(run);
  worker.Replace(run);

  EXPECT_EQ(when_told.message(), "the disk is gone");
  EXPECT_EQ(put.message(), "the disk is gone");
  EXPECT_EQ(worker.Flush().message(), "the disk is gone");
  EXPECT_FALSE(ran);
}

TEST(OneSlotWorkerTest, WhatATaskHoldsIsFreedOnceItIsDone) {
  const auto held = std::make_shared<int>();
  OneSlotWorker worker;

  ASSERT_TRUE(worker.Put([held] { return absl::OkStatus(); }).ok());
  ASSERT_TRUE(worker.Flush().ok());

  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace sluice::trainer
