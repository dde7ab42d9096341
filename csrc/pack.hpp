// Weights into panels (see Matrix), from float32 or straight from GGUF blocks.
#pragma once

#include <cstdint>

#include "memory.hpp"
#include "types.hpp"

namespace paradecode {

// How the rows that are handed to `pack_row` are stored.
enum class Source : int { F32 = 0, F16 = 1, BF16 = 2, Q4_0 = 3, Q4_1 = 4, Q8_0 = 5, Q4_K = 6 };

// Bytes of one source row; cols must be a multiple of the block (32, or 256 for Q4_K).
std::size_t source_row_bytes(Source source, int cols);

// A matrix of zeros; its panels are made even in number.
Matrix make_matrix(Arena& arena, Format format, int rows, int cols);
// Two matrices of one shape and format whose panel pairs alternate in memory.
void make_interleaved(Arena& arena, Format format, int rows, int cols, Matrix& first,
                      Matrix& second);

// Puts source row `row` at output `target`. Q4_0, Q4_1 and Q4_K go to Q4, and Q8_0 to Q8, without
// touching the integers; F16, BF16 and F32 go to their own format as they are. Everything else is
// rounded from float32.
void pack_row(const Matrix& matrix, int target, Source source, const std::uint8_t* row);

// Output `row` as float32.
void unpack_row(const Matrix& matrix, int row, float* out);

}  // namespace paradecode
