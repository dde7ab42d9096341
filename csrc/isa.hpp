// Says which kernels run on this machine, and why.
#pragma once

#include <string>
#include <vector>

#include "types.hpp"

namespace paradecode {

struct IsaChoice {
  const Kernels* kernels = nullptr;
  std::string reason;
};

// Returns the best instruction set of this processor, or the one that PARADECODE_ISA names. Throws
// InvalidInput if that one is unknown or cannot run here. Every call reads the variable again.
IsaChoice choose_isa();
// Returns the names of the instruction sets that can run here, best first.
std::vector<std::string> available_isas();

}  // namespace paradecode
