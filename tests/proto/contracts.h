#pragma once

#include <string>
#include <vector>

namespace google::protobuf {
class FileDescriptor;
class MethodDescriptor;
}  // namespace google::protobuf

// The wire contracts as the build has them, read from the descriptors that are linked in.
namespace sluice::contracts {

// Every .proto file of the tree, by name. Aborts if a file of the tree is not linked into the
// binary.
std::vector<const google::protobuf::FileDescriptor*> Files();

// Every method of every service, in the order of Files().
std::vector<const google::protobuf::MethodDescriptor*> Methods();

// Describes everything that a peer can see of the contracts, one fact per line: fields with number,
// label and type, enum values, reserved numbers and names, and methods with their messages and
// rule. Comments and the defaults of the job file are left out.
std::string Describe();

}  // namespace sluice::contracts
