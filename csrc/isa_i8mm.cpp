// Compiled with the flags of its instruction set; nothing here may be inlined elsewhere, so the
// kernels live in unnamed namespaces and use no library templates.
#define PARADECODE_I8MM
#include "simd_neon.hpp"
//
#include "table.hpp"

namespace paradecode {

const Kernels& i8mm_kernels() {
  static constexpr Kernels table = kernel_table("i8mm");
  return table;
}

}  // namespace paradecode
