#pragma once

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace sluice::rpc {

// Text from outside (dataset rows, paths, model files, model output, errors of libraries) may
// contain bytes that are not UTF-8. A receiver refuses a whole message if one string field contains
// such a byte, so every outgoing message must be made valid first. Call() and ClientStream::Write()
// do it for requests; a service does it for answers that carry such text. The frames of a
// ClientStream are not made valid, because the headers that clients send hold no text from outside.

// Whether every string field of the message is UTF-8, including those in sub-messages and maps.
bool HasValidText(const google::protobuf::Message& message);

// Replaces the bytes that are not UTF-8 in these fields, as Utf8Lossy() does. Fields of type
// `bytes` are left as they are.
void MakeTextValid(google::protobuf::Message* message);

}  // namespace sluice::rpc
