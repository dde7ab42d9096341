#include "kernels.hpp"
//
#include "attention.hpp"

namespace paradecode::PARADECODE_SET {

void attention_f16(const AttentionTile& tile) { attention<std::uint16_t>(tile); }

void attention_f32(const AttentionTile& tile) { attention<float>(tile); }

void merge_parts(const float* parts, int first_block, int end_block, int padded_dim, int head_dim,
                 const float* sink, float* out) {
  merge_blocks(parts, first_block, end_block, padded_dim, head_dim, sink, out);
}

}  // namespace paradecode::PARADECODE_SET
