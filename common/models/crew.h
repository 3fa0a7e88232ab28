#pragma once

#include <cstdint>

#include "common/models/team.h"

namespace sluice {

// The threads that compute one tile: one thread alone, or all threads of a team. In a team, all
// threads call the same functions in the same order, because each call of ForEach() shares its
// units.
class Crew {
 public:
  static Crew OneThread() { return Crew(nullptr); }

  // `team` outlives the crew. For use inside Team::Run().
  static Crew AllOf(Team* team) { return Crew(team->size() > 1 ? team : nullptr); }

  int size() const { return team_ != nullptr ? team_->size() : 1; }

  // Calls unit(i) once for each i < n, on the thread that is free next. Returns when all are done.
  template <typename Unit>
  void ForEach(int64_t n, const Unit& unit) const {
    if (team_ != nullptr) return team_->Share(n, unit);
    for (int64_t i = 0; i < n; ++i) unit(i);
  }

 private:
  explicit Crew(Team* team) : team_(team) {}

  Team* const team_;  // Null: one thread.
};

}  // namespace sluice
