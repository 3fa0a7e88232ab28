#include "services/trainer/teacher.h"

#include "common/base/status.h"
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

}  // namespace sluice::trainer
