// Which kernels run here, and why.
#pragma once

#include <string>
#include <vector>

#include "types.hpp"

namespace paradecode {

struct IsaChoice {
  const Kernels* kernels = nullptr;
  std::string reason;
};

// The best instruction set of this processor, or the one that PARADECODE_ISA names. Throws
// InvalidInput when that one is unknown or cannot run here. Read anew at every call.
IsaChoice choose_isa();
// Names of the instruction sets that can run here, best first.
std::vector<std::string> available_isas();

}  // namespace paradecode
