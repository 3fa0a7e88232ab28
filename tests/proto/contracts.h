#pragma once

#include <string>
#include <vector>

namespace google::protobuf {
class FileDescriptor;
class MethodDescriptor;
}  // namespace google::protobuf

// The wire contracts as the build has them: read from the descriptors that are linked in.
namespace sluice::contracts {

// Every .proto file of the tree, by name. Aborts where one is in the tree and not in the binary.
std::vector<const google::protobuf::FileDescriptor*> Files();

// Every method of every service, in the order of Files().
std::vector<const google::protobuf::MethodDescriptor*> Methods();

// All that a peer can see of the contracts, one fact a line: fields with number, label and type,
// enum values, reserved numbers and names, methods with their messages and rule. Documentation and
// the job file's defaults are left out.
std::string Describe();

}  // namespace sluice::contracts
