#pragma once

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace sluice::rpc {

// Text from outside (rows, paths, model files, what a model wrote, errors of libraries) may hold
// bytes that are not UTF-8. A receiver refuses a whole message for one such byte in a string field,
// so what goes out passes here: Call() and ClientStream see to it for requests, and a service does
// so for answers that carry such text.

// Whether every string field of the message, those of its sub-messages and maps included, is UTF-8.
bool HasValidText(const google::protobuf::Message& message);

// Replaces what is not UTF-8 in these fields, as Utf8Lossy does. `bytes` fields stay as they are.
void MakeTextValid(google::protobuf::Message* message);

}  // namespace sluice::rpc
