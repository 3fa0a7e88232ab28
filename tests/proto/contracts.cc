#include "tests/proto/contracts.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "sluice/policy/v1/judges.pb.h"
#include "sluice/policy/v1/plugin_servers.pb.h"
#include "sluice/policy/v1/policy.pb.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::contracts {
namespace {

namespace pb = google::protobuf;

std::string TypeName(const pb::FieldDescriptor& field) {
  if (field.is_map()) {
    const pb::Descriptor& entry = *field.message_type();
    return absl::StrCat("map<", TypeName(*entry.map_key()), ", ", TypeName(*entry.map_value()),
                        ">");
  }
  if (field.message_type() != nullptr) return field.message_type()->full_name();
  if (field.enum_type() != nullptr) return field.enum_type()->full_name();
  return field.type_name();
}

std::string Label(const pb::FieldDescriptor& field) {
  if (field.is_map()) return "";
  if (field.is_repeated()) return "repeated ";
  if (field.real_containing_oneof() != nullptr)
    return absl::StrCat("oneof ", field.containing_oneof()->name(), " ");
  return field.has_optional_keyword() ? "optional " : "";
}

void Describe(const pb::EnumDescriptor& type, std::string* out) {
  for (int i = 0; i < type.value_count(); ++i) {
    absl::StrAppend(out, "enum ", type.full_name(), " ", type.value(i)->name(), " = ",
                    type.value(i)->number(), "\n");
  }
  for (int i = 0; i < type.reserved_range_count(); ++i) {
    absl::StrAppend(out, "enum ", type.full_name(), " reserved ", type.reserved_range(i)->start,
                    " to ", type.reserved_range(i)->end, "\n");
  }
}

void Describe(const pb::Descriptor& type, std::string* out) {
  if (type.options().map_entry()) return;
  absl::StrAppend(out, "message ", type.full_name(), "\n");
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor& field = *type.field(i);
    absl::StrAppend(out, "message ", type.full_name(), " ", Label(field), TypeName(field), " ",
                    field.name(), " = ", field.number(), "\n");
  }

  for (int i = 0; i < type.reserved_range_count(); ++i) {
    absl::StrAppend(out, "message ", type.full_name(), " reserved ", type.reserved_range(i)->start,
                    " to ", type.reserved_range(i)->end - 1, "\n");
  }

  for (int i = 0; i < type.reserved_name_count(); ++i) {
    absl::StrAppend(out, "message ", type.full_name(), " reserved ", type.reserved_name(i), "\n");
  }
  for (int i = 0; i < type.enum_type_count(); ++i) Describe(*type.enum_type(i), out);
  for (int i = 0; i < type.nested_type_count(); ++i) Describe(*type.nested_type(i), out);
}

std::string Seconds(const pb::Duration& duration) {
  return absl::StrCat(static_cast<double>(duration.seconds()) + duration.nanos() * 1e-9, " s");
}

void Describe(const pb::MethodDescriptor& method, std::string* out) {
  const rpc::v1::MethodRule& rule = method.options().GetExtension(rpc::v1::method);
  absl::StrAppend(
      out, "method ", method.full_name(), " (", method.client_streaming() ? "stream " : "",
      method.input_type()->full_name(), ") -> (", method.server_streaming() ? "stream " : "",
      method.output_type()->full_name(), ") ", rpc::v1::Kind_Name(rule.kind()), " ",
      rpc::v1::Repeat_Name(rule.repeat()), " deadline ",
      rule.has_deadline() ? Seconds(rule.deadline()) : "none",
      rule.has_max_deadline() ? absl::StrCat(" at most ", Seconds(rule.max_deadline())) : "", " ",
      absl::StrJoin(rule.roles(), " ",
                    [](std::string* to, int role) {
                      absl::StrAppend(to, rpc::v1::Role_Name(static_cast<rpc::v1::Role>(role)));
                    }),
      rule.audited() ? " audited" : "", "\n");
}

}  // namespace

std::vector<const pb::FileDescriptor*> Files() {
  // Links files that few programs use.
  (void)policy::v1::Policy::descriptor();
  (void)policy::v1::Judges::descriptor();
  (void)policy::v1::PluginServers::descriptor();
  const std::filesystem::path root = std::filesystem::path(SLUICE_SOURCE_DIR) / "proto";
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.path().extension() == ".proto")
      names.push_back(std::filesystem::relative(entry.path(), root).string());
  }

  std::sort(names.begin(), names.end());
  std::vector<const pb::FileDescriptor*> files;
  for (const std::string& name : names) {
    const pb::FileDescriptor* file = pb::DescriptorPool::generated_pool()->FindFileByName(name);
    if (file == nullptr) {
      std::fprintf(stderr, "proto/%s is not in the build: list it in proto/CMakeLists.txt\n",
                   name.c_str());
      std::abort();
    }
    files.push_back(file);
  }

  return files;
}

std::vector<const pb::MethodDescriptor*> Methods() {
  std::vector<const pb::MethodDescriptor*> methods;
  for (const pb::FileDescriptor* file : Files()) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m)
        methods.push_back(file->service(s)->method(m));
    }
  }
  return methods;
}

std::string Describe() {
  std::string out;
  for (const pb::FileDescriptor* file : Files()) {
    absl::StrAppend(&out, "file ", file->name(), "\n");
    for (int i = 0; i < file->service_count(); ++i) {
      for (int m = 0; m < file->service(i)->method_count(); ++m)
        Describe(*file->service(i)->method(m), &out);
    }

    for (int i = 0; i < file->message_type_count(); ++i) Describe(*file->message_type(i), &out);
    for (int i = 0; i < file->enum_type_count(); ++i) Describe(*file->enum_type(i), &out);
    for (int i = 0; i < file->extension_count(); ++i) {
      const pb::FieldDescriptor& field = *file->extension(i);
      absl::StrAppend(&out, "extension ", field.containing_type()->full_name(), " ",
                      TypeName(field), " ", field.full_name(), " = ", field.number(), "\n");
    }
  }

  return out;
}

}  // namespace sluice::contracts
