#include "common/base/digest.h"
#include "common/sandbox/code_runner.h"

namespace sluice::sandbox {

std::shared_ptr<const CompiledPrograms::Program> CompiledPrograms::Find(const std::string& source) {
  MutexLock lock(&mu_);
  const auto it = by_key_.find(Sha256(source));
  if (it == by_key_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, it->second);
  return kept_.front().program;
}

void CompiledPrograms::Add(const std::string& source, std::shared_ptr<const Program> program) {
  const auto size_of = [](const Program& kept) {
    return kept.binary.size() + kept.compiler_says.size();
  };
  const std::string key = Sha256(source);
  MutexLock lock(&mu_);
  if (by_key_.contains(key)) return;
  bytes_ += size_of(*program);
  kept_.push_front({key, std::move(program)});
  by_key_[key] = kept_.begin();
  while (bytes_ > most_bytes_ && kept_.size() > 1) {
    bytes_ -= size_of(*kept_.back().program);
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
}

}  // namespace sluice::sandbox
