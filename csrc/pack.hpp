// Packs weights into panels (see Matrix), from floats or straight from the blocks of a file.
#pragma once

#include <cstdint>

#include "blocks.hpp"
#include "memory.hpp"
#include "types.hpp"

namespace paradecode {

// Returns the bytes of one source row; cols must be a multiple of the block's size.
std::size_t source_row_bytes(Source source, int cols);

// Returns whether rows of `cols` inputs fill whole blocks of a format.
bool fits(Format format, int cols);

// Returns a matrix of zeros; the number of its panels is made even.
Matrix make_matrix(Arena& arena, Format format, int rows, int cols);
// Returns two matrices of one shape and format whose panel pairs alternate in memory.
void make_interleaved(Arena& arena, Format format, int rows, int cols, Matrix& first,
                      Matrix& second);

// Packs source row `row` as output `target`. The integers are kept if the source has the matrix's
// own format, or if it is a 4-bit source and the matrix is Q4; all else is rounded from float32.
// Rows of different panels may be packed at the same time.
void pack_row(const Matrix& matrix, int target, Source source, const std::uint8_t* row);

// Returns output `row` as float32.
void unpack_row(const Matrix& matrix, int row, float* out);

}  // namespace paradecode
