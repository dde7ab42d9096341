// Compiled with the flags of its instruction set; nothing here may be inlined elsewhere, so the
// kernels live in unnamed namespaces and use no library templates.
#include "simd_portable.hpp"
//
#include "table.hpp"

namespace paradecode {

const Kernels& portable_kernels() {
  static constexpr Kernels table = kernel_table("portable");
  return table;
}

}  // namespace paradecode
