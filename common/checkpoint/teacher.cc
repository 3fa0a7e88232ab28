#include "common/checkpoint/teacher.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"

namespace sluice {

absl::Status CheckSameTokenizer(absl::string_view role, const ModelDir& model,
                                const ModelDir& other) {
  if (model.tokenizer_path.empty() || other.tokenizer_path.empty()) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const std::string theirs, ReadFile(other.tokenizer_path));
  SLUICE_ASSIGN_OR_RETURN(const std::string ours, ReadFile(model.tokenizer_path));
  const std::string their_digest = ToHex(Sha256(theirs)), our_digest = ToHex(Sha256(ours));
  if (their_digest == our_digest) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the tokenizer of the ", role, " is not that of the model: ", other.tokenizer_path,
      " has the SHA-256 ", their_digest, ", and ", model.tokenizer_path, " has ", our_digest));
}

absl::Status CheckTeacher(const ModelDir& student, const ModelDir& teacher, int64_t longest) {
  if (teacher.config.vocab_size != student.config.vocab_size) {
    return absl::FailedPreconditionError(
        absl::StrCat("the teacher ", teacher.path, " has a vocabulary of ",
                     teacher.config.vocab_size, " tokens, but the model ", student.path, " has ",
                     student.config.vocab_size, "; a teacher needs the tokenizer of the model"));
  }
  SLUICE_RETURN_IF_ERROR(CheckSameTokenizer("teacher", student, teacher));
  if (teacher.config.max_context < longest) {
    return absl::FailedPreconditionError(
        absl::StrCat("the teacher ", teacher.path, " was made for ", teacher.config.max_context,
                     " tokens (max_position_embeddings), but a prompt of the model ", student.path,
                     " and its answer may have ", longest, " tokens together"));
  }
  return absl::OkStatus();
}

}  // namespace sluice
