// What the files of one kernel set share. Each set compiles them with the flags of its processors
// and with two definitions: PARADECODE_SET, its name, and PARADECODE_VECTORS, the header of its
// vectors. Everything else of a set lies in unnamed namespaces and uses no library templates, since
// nothing may be inlined where another processor runs it.
#pragma once

#include PARADECODE_VECTORS
//
#include "types.hpp"

namespace paradecode::PARADECODE_SET {

// A set has several files, and kernels that take long to compile are apart, so that all cores
// compile.
void matmul(const Matrix& weight, int panel, int panels, const Activations& input, int row,
            int rows, float* out, std::int64_t out_stride, const float* bias, bool add);
// The same for formats with blocks of 256 inputs.
void matmul_superblocks(const Matrix& weight, int panel, int panels, const Activations& input,
                        int row, int rows, float* out, std::int64_t out_stride, const float* bias,
                        bool add);
// The same by tiles, in sets that have PARADECODE_TILES, the header of theirs.
void matmul_by_tiles(const Matrix& weight, int panel, int panels, const Activations& input, int row,
                     int rows, float* out, std::int64_t out_stride, const float* bias, bool add);
void attention_f16(const AttentionTile& tile);
void attention_f32(const AttentionTile& tile);
void merge_parts(const float* parts, int first_block, int end_block, int padded_dim, int head_dim,
                 const float* sink, float* out);

}  // namespace paradecode::PARADECODE_SET
