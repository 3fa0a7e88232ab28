#include "common/tokenizer/tokenizer_file.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using nlohmann::json;

// Handles the parser's events. model.vocab and model.merges go directly into their lists;
// everything else becomes JSON values.
class Reader : public nlohmann::json_sax<json> {
 public:
  explicit Reader(TokenizerFile* file) : file_(file) {}
  const absl::Status& status() const { return status_; }

  bool null() override { return AddValue(nullptr); }
  bool boolean(bool value) override { return AddValue(value); }
  bool number_integer(number_integer_t value) override {
    return mode_ == kVocab ? AddVocabEntry(value) : AddValue(value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    return mode_ == kVocab ? AddVocabEntry(value > INT32_MAX ? -1 : static_cast<int64_t>(value))
                           : AddValue(value);
  }
  bool number_float(number_float_t value, const string_t&) override { return AddValue(value); }
  bool binary(binary_t&) override { return Fail("the file contains binary data"); }
  bool string(string_t& value) override {
    if (mode_ == kMerges) return AddMergeText(std::move(value));
    if (mode_ == kPair) return AddPairPart(std::move(value));
    return AddValue(std::move(value));
  }

  bool start_object(std::size_t) override {
    if (mode_ != kRest) return FailWrongForm();
    if (AtModel("vocab")) {
      if (!AddValue(nullptr)) return false;
      file_->has_vocab = true;
      mode_ = kVocab;
      return true;
    }
    return OpenContainer(json::object());
  }
  bool end_object() override {
    if (mode_ == kVocab) {
      mode_ = kRest;
      return true;
    }
    return CloseContainer();
  }
  bool key(string_t& name) override {
    key_ = std::move(name);
    if (mode_ == kRest && open_.back()->contains(key_))
      return Fail(absl::StrCat("the key \"", key_, "\" occurs twice in one object"));
    return true;
  }
  bool start_array(std::size_t) override {
    if (mode_ == kMerges) {
      mode_ = kPair;
      pair_.clear();
      return true;
    }
    if (mode_ != kRest) return FailWrongForm();
    if (AtModel("merges")) {
      if (!AddValue(nullptr)) return false;
      file_->has_merges = true;
      mode_ = kMerges;
      return true;
    }
    return OpenContainer(json::array());
  }
  bool end_array() override {
    if (mode_ == kPair) {
      mode_ = kMerges;
      if (pair_.size() != 2) return FailWrongForm();
      file_->merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      return true;
    }
    if (mode_ == kMerges) {
      mode_ = kRest;
      return true;
    }
    return CloseContainer();
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return Fail(error.what());
  }

 private:
  enum Mode { kRest, kVocab, kMerges, kPair };  // The place that the next value belongs to.

  bool Fail(absl::string_view what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(what);
    return false;
  }
  bool FailWrongForm() {
    if (mode_ == kVocab)
      return Fail(absl::StrCat("model.vocab: the id of \"", key_, "\" is not in [0, ",
                               TokenizerFile::kMaxId, "]"));
    return Fail(absl::StrCat("model.merges[", file_->merges.size(),
                             "] is neither \"a b\" nor [\"a\", \"b\"]"));
  }
  // Whether the next value is `name` of the top-level object `model`.
  bool AtModel(absl::string_view name) const {
    return open_.size() == 2 && model_ && key_ == name && open_.back()->is_object();
  }

  bool AddVocabEntry(int64_t id) {
    if (id < 0 || id > TokenizerFile::kMaxId) return FailWrongForm();
    file_->vocab.emplace_back(std::move(key_), static_cast<int32_t>(id));
    return true;
  }
  bool AddMergeText(std::string text) {
    if (absl::StartsWith(text, "#version")) return true;
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      return FailWrongForm();
    file_->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }
  bool AddPairPart(std::string text) {
    if (pair_.size() == 2) return FailWrongForm();
    pair_.push_back(std::move(text));
    return true;
  }

  // Puts a value where it belongs. Pointers in open_ stay valid, because a container is not changed
  // while one of its values is open.
  json* Put(json value) {
    if (++values_ > TokenizerFile::kMaxValues) {
      Fail(absl::StrCat("the file has more than ", TokenizerFile::kMaxValues,
                        " values beside vocab and merges"));
      return nullptr;
    }
    if (open_.empty()) {
      *file_->rest = std::move(value);
      return file_->rest.get();
    }
    if (open_.back()->is_object()) return &((*open_.back())[key_] = std::move(value));
    open_.back()->push_back(std::move(value));
    return &open_.back()->back();
  }
  bool AddValue(json value) {
    return mode_ == kRest ? Put(std::move(value)) != nullptr : FailWrongForm();
  }
  bool OpenContainer(json container) {
    if (open_.size() == TokenizerFile::kMaxDepth)
      return Fail(absl::StrCat("values are nested deeper than ", TokenizerFile::kMaxDepth));
    // Remember whether the second level is `model`, for AtModel().
    if (open_.size() == 1) model_ = key_ == "model";
    json* const placed = Put(std::move(container));
    if (placed != nullptr) open_.push_back(placed);
    return placed != nullptr;
  }
  bool CloseContainer() {
    open_.pop_back();
    return true;
  }

  TokenizerFile* const file_;
  absl::Status status_;
  Mode mode_ = kRest;
  bool model_ = false;  // The second open container is `model`.
  std::string key_;
  std::vector<json*> open_;  // Open containers, outermost first.
  std::vector<std::string> pair_;
  size_t values_ = 0;
};

}  // namespace

TokenizerFile::TokenizerFile() : rest(std::make_unique<json>()) {}
TokenizerFile::TokenizerFile(TokenizerFile&&) noexcept = default;
TokenizerFile::~TokenizerFile() = default;

absl::StatusOr<TokenizerFile> TokenizerFile::Parse(absl::string_view text) {
  if (text.size() > kMaxBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("the file has ", text.size(), " bytes; the limit is ", kMaxBytes));
  TokenizerFile file;
  Reader reader(&file);
  const bool whole = json::sax_parse(text.begin(), text.end(), &reader);
  SLUICE_RETURN_IF_ERROR(reader.status());
  if (!whole || !file.rest->is_object())
    return absl::InvalidArgumentError("the file is not a JSON object");
  return file;
}

}  // namespace sluice
