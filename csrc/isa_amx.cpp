// Compiled with the flags of its instruction set; nothing here may be inlined elsewhere, so the
// kernels live in unnamed namespaces and use no library templates.
#if defined(PARADECODE_EMULATED_TILES)
#include "simd_portable.hpp"
#include "tiles_emulated.hpp"
#else
#include "simd_avx512.hpp"
#include "tiles_amx.hpp"
#endif
//
#include "matmul_tiles.hpp"
#include "table.hpp"

namespace paradecode {

const Kernels& amx_kernels() {
  static constexpr Kernels table = [] {
    Kernels out = kernel_table("amx");
    out.matmul = matmul_by_tiles<Tiles>;
    return out;
  }();
  return table;
}

}  // namespace paradecode
