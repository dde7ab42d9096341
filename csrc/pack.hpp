// Weights into panels (see Matrix), from floats or straight from the blocks of a file.
#pragma once

#include <cstdint>

#include "blocks.hpp"
#include "memory.hpp"
#include "types.hpp"

namespace paradecode {

// Bytes of one source row; cols must be a multiple of the block's size.
std::size_t source_row_bytes(Source source, int cols);

// Whether rows of `cols` inputs fill whole blocks of a format.
bool fits(Format format, int cols);

// A matrix of zeros; its panels are made even in number.
Matrix make_matrix(Arena& arena, Format format, int rows, int cols);
// Two matrices of one shape and format whose panel pairs alternate in memory.
void make_interleaved(Arena& arena, Format format, int rows, int cols, Matrix& first,
                      Matrix& second);

// Puts source row `row` at output `target`. A source whose own format the matrix has, and a 4-bit
// one in a Q4 matrix, keeps its integers; everything else is rounded from float32. Rows of
// different panels may be packed at the same time.
void pack_row(const Matrix& matrix, int target, Source source, const std::uint8_t* row);

// Output `row` as float32.
void unpack_row(const Matrix& matrix, int row, float* out);

}  // namespace paradecode
