#pragma once

#include <cstdint>

namespace sluice {

// Bytes of memory that this process may use: those of the machine, or the limit of its container.
uint64_t MachineMemory();

}  // namespace sluice
