#include "kernels.hpp"
//
#include "matmul.hpp"
#include "traffic.hpp"

namespace paradecode::PARADECODE_SET {

void matmul(const Matrix& weight, int panel, int panels, const Activations& input, int row,
            int rows, float* out, std::int64_t out_stride, const float* bias, bool add) {
  with_format(weight.format, [&](auto kind) {
    if constexpr (has_superblocks(kind.value))
      matmul_superblocks(weight, panel, panels, input, row, rows, out, out_stride, bias, add);
    else
      matmul_as<kind.value>(weight, panel, panels, input, row, rows, {out, out_stride, bias, add});
  });
  count_bytes(static_cast<std::size_t>(panels) * weight.panel_bytes);
}

}  // namespace paradecode::PARADECODE_SET
