#pragma once

#include <cstdint>
#include <exception>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// The unit of a model to which the parameter with this Hugging Face name belongs: unit 0 are the
// parameters that are in no layer, and unit i + 1 is layer i.
int64_t UnitOf(absl::string_view name);

// Lends a TrainModel the memory of its parameters and gradients, unit by unit, for as long as a
// pass needs it. Only the thread that uses the model uses it.
class UnitMemory {
 public:
  // A backward pass needs the parameters too. It adds to their gradients, which are zeros when the
  // unit is entered.
  enum class Pass { kForward, kBackward };
  virtual ~UnitMemory() = default;

  // A pass enters each unit once, and leaves it before it enters the next one. Only unit 0 is
  // entered before and left after all others: it is the pass. The pass ends at the first error.
  virtual absl::Status Enter(Pass pass, int64_t unit) = 0;
  virtual absl::Status Leave(Pass pass, int64_t unit) = 0;
};

// Takes the status of a UnitMemory through torch, which knows only exceptions.
class StatusException : public std::exception {
 public:
  explicit StatusException(absl::Status status) : status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }
  const char* what() const noexcept override { return "a unit of the model has no memory"; }

 private:
  const absl::Status status_;
};

}  // namespace sluice
