#include "services/trainer/teacher.h"

#include "common/base/status.h"
#include "common/checkpoint/critic.h"
#include "common/checkpoint/teacher.h"

namespace sluice::trainer {

absl::StatusOr<std::optional<ModelDir>> ReadTeacher(const JobConfig& config,
                                                    const ModelDir& student) {
  if (config.teacher_dir.empty()) return std::nullopt;
  absl::StatusOr<ModelDir> teacher = ReadModelDir(config.teacher_dir);
  if (!teacher.ok()) return Annotate(teacher.status(), "model.teacher");
  SLUICE_RETURN_IF_ERROR(
      Annotate(CheckTeacher(student, *teacher, config.plan.longest), "model.teacher"));
  return *std::move(teacher);
}

absl::StatusOr<std::optional<TensorSet>> ReadCriticWeights(const JobConfig& config,
                                                           const ModelDir& policy) {
  if (config.critic_dir.empty()) return std::nullopt;
  const auto read = [&]() -> absl::StatusOr<TensorSet> {
    SLUICE_ASSIGN_OR_RETURN(ModelDir critic, ReadModelDir(config.critic_dir));
    SLUICE_RETURN_IF_ERROR(CheckCritic(policy, critic));
    // The head of a critic is another one, so that of the directory is not read.
    critic.config.tie_word_embeddings = true;
    return ReadWeights(critic, DType::kF32);
  };
  absl::StatusOr<TensorSet> weights = read();
  if (!weights.ok()) return Annotate(weights.status(), "trainer.critic.path");
  return *std::move(weights);
}

}  // namespace sluice::trainer
