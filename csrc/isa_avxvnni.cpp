// Compiled with the flags of its instruction set; nothing here may be inlined elsewhere, so the
// kernels live in unnamed namespaces and use no library templates.
#define PARADECODE_AVXVNNI
#include "simd_avx2.hpp"
//
#include "table.hpp"

namespace paradecode {

const Kernels& avxvnni_kernels() {
  static constexpr Kernels table = kernel_table("avxvnni");
  return table;
}

}  // namespace paradecode
