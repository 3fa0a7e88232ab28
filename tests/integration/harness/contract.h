#pragma once

#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/channel.h"
#include "google/protobuf/message.h"

// What the tests that walk all methods share.
namespace sluice::integration {

// "sluice.queue.v1.QueueService.Admit" of its request.
std::string MethodName(const google::protobuf::Message& request);

// One call, or a stream up to its first answer; no tries beyond the first few seconds.
absl::Status CallOnce(const rpc::Channel& channel, const google::protobuf::Message& request);

// A message as text without what a clock puts in: durations and timestamps, which differ from call
// to call.
std::string Canonical(const google::protobuf::Message& message);

// The answers to a call and its repeat are equal; where they have a field `repeat`, it is false,
// then true. `not_compared`: paths of fields that tell what the call itself did.
void ExpectRepeat(const google::protobuf::Message& first, const google::protobuf::Message& second,
                  const std::set<std::string>& not_compared = {});

// A method that nothing serves yet answers UNIMPLEMENTED.
void ExpectNotBuilt(const rpc::Channel& channel, const google::protobuf::Message& request,
                    std::set<std::string>* walked);

// The service's methods that `walked` lacks, by name; read from the descriptors, so a new method is
// not forgotten.
std::string NotWalked(const std::string& service, const std::set<std::string>& walked);

}  // namespace sluice::integration
