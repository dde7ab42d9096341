// Compiled with the flags of its instruction set; nothing here may be inlined elsewhere, so the
// kernels live in unnamed namespaces and use no library templates.
#include "simd_neon.hpp"
//
#include "table.hpp"

namespace paradecode {

const Kernels& neon_kernels() {
  static constexpr Kernels table = kernel_table("neon");
  return table;
}

}  // namespace paradecode
