#include "common/rpc/method.h"

#include <google/protobuf/descriptor.h>

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::rpc {
namespace {

Repeat RepeatOf(v1::Repeat repeat) {
  switch (repeat) {
    case v1::REPEAT_SAFE: return Repeat::kSafe;
    case v1::REPEAT_KEYED: return Repeat::kKeyed;
    default: return Repeat::kNever;
  }
}

absl::Duration MaxDeadlineOf(const v1::MethodRule& rule) {
  if (rule.has_max_deadline()) return FromProto(rule.max_deadline());
  return rule.kind() == v1::KIND_STREAM ? absl::InfiniteDuration() : absl::Hours(1);
}

Method DescribeMethod(const google::protobuf::MethodDescriptor& descriptor) {
  const v1::MethodRule& rule = descriptor.options().GetExtension(v1::method);
  Method method;
  method.path = absl::StrCat("/", descriptor.service()->full_name(), "/", descriptor.name());
  method.name = absl::StrCat(descriptor.service()->name(), ".", descriptor.name());
  method.repeat = RepeatOf(rule.repeat());
  if (rule.has_deadline()) method.deadline = FromProto(rule.deadline());
  method.max_deadline = MaxDeadlineOf(rule);
  method.request = descriptor.input_type();
  method.response = descriptor.output_type();
  return method;
}

// Only the services in the request's own file are searched.
Method FindMethod(const google::protobuf::Descriptor* request) {
  const google::protobuf::MethodDescriptor* found = nullptr;
  const google::protobuf::FileDescriptor* file = request->file();
  for (int s = 0; s < file->service_count(); ++s) {
    for (int m = 0; m < file->service(s)->method_count(); ++m) {
      const google::protobuf::MethodDescriptor* method = file->service(s)->method(m);
      if (method->input_type() != request) continue;
      SLUICE_CHECK_MSG(found == nullptr,
                       absl::StrCat(request->full_name(), " is taken by more than one method"));
      found = method;
    }
  }
  SLUICE_CHECK_MSG(found != nullptr, absl::StrCat(request->full_name(), " is taken by no method"));
  return DescribeMethod(*found);
}

}  // namespace

const Method& MethodOf(const google::protobuf::Descriptor* request) {
  struct Cache {
    Mutex mu;
    absl::flat_hash_map<const google::protobuf::Descriptor*, std::unique_ptr<const Method>> methods
        ABSL_GUARDED_BY(mu);
  };
  // Never destroyed, because threads may still make calls while the process ends.
  static Cache* const cache = new Cache;
  MutexLock lock(&cache->mu);
  std::unique_ptr<const Method>& method = cache->methods[request];
  if (method == nullptr) method = std::make_unique<const Method>(FindMethod(request));
  return *method;
}

}  // namespace sluice::rpc
