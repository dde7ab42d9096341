#include "kernels.hpp"
#include PARADECODE_TILES
//
#include "matmul_tiles.hpp"
#include "traffic.hpp"

namespace paradecode::PARADECODE_SET {

void matmul_by_tiles(const Matrix& weight, int panel, int panels, const Activations& input, int row,
                     int rows, float* out, std::int64_t out_stride, const float* bias, bool add) {
  const int rest = rows % kRowGroup;
  const int tiled = !is_integer(weight.format) ? 0 : rest >= kLeastTileRows ? rows : rows - rest;
  if (tiled > 0) {
    count_bytes(static_cast<std::size_t>(panels) * weight.panel_bytes);
    with_format(weight.format, [&](auto kind) {
      if constexpr (is_integer(kind.value))
        matmul_tiled<Tiles, kind.value>(weight, panel, panels, input, row, tiled,
                                        {out, out_stride, bias, add});
    });
  }
  if (tiled < rows)
    matmul(weight, panel, panels, input, row + tiled, rows - tiled, out + tiled * out_stride,
           out_stride, bias, add);
}

}  // namespace paradecode::PARADECODE_SET
