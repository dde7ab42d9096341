#include "kernels.hpp"
//
#include "matmul.hpp"

namespace paradecode::PARADECODE_SET {

void matmul_superblocks(const Matrix& weight, int panel, int panels, const Activations& input,
                        int row, int rows, float* out, std::int64_t out_stride, const float* bias,
                        bool add) {
  with_format(weight.format, [&](auto kind) {
    if constexpr (has_superblocks(kind.value))
      matmul_as<kind.value>(weight, panel, panels, input, row, rows, {out, out_stride, bias, add});
  });
}

}  // namespace paradecode::PARADECODE_SET
