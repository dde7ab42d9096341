// Compiled with the flags of its instruction set; nothing here may be inlined elsewhere, so the
// kernels live in unnamed namespaces and use no library templates.
#include "simd_avx512.hpp"
//
#include "table.hpp"

namespace paradecode {

const Kernels& avx512_kernels() {
  static constexpr Kernels table = kernel_table("avx512");
  return table;
}

}  // namespace paradecode
