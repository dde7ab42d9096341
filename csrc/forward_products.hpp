// How a forward prepares the inputs of its matrix products and divides them among the threads.
#pragma once

#include <algorithm>

#include "forward.hpp"

namespace paradecode {

// Rows that a chunk of a matrix product covers: their inputs stay in the first-level cache while
// the weights pass by.
inline constexpr int kRowBlock = 64;
// Up to this many rows, every member prepares its own inputs: cheaper than one more phase, and than
// fetching what others wrote, of which a cache line holds the scales of sixteen rows.
inline constexpr int kPrivateRows = 16;
// Chunks of a matrix product that each member starts with.
inline constexpr int kShare = 4;
// Rows that read a head's state together: the factors of more would leave the first-level cache.
inline constexpr int kReaders = 8;

inline int blocks_of(int rows) { return (rows + kRowBlock - 1) / kRowBlock; }
inline std::size_t count(std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); }

// How many panels (or other units) a chunk takes.
inline int chunk_units(int units, int threads) { return std::max(1, units / (threads * kShare)); }

template <class Fill, class Work>
inline void Forward::with_input(Member& member, int rows, int width, Needs needs, Fill fill,
                                int chunks, Work work) {
  auto& own = own_of(member);
  const Part part = member.enter(Part::Prepare);
  const auto prepare = [&](const Activations& input, int row) {
    write_input(fill(row, own.row.data()), width, needs, row, input);
  };
  if (rows <= kPrivateRows) {
    const Activations input = own.input.shape(rows, width);
    member.phase(
        chunks,
        [&] {
          for (int row = 0; row < rows; ++row) prepare(input, row);
          member.enter(part);
        },
        [&](int chunk) { work(chunk, input); });
    return;
  }
  Activations input = space_.input.view();
  input.width = width;
  member.phase((rows + kRowGroup - 1) / kRowGroup, [&](int chunk) {
    for (int row = chunk * kRowGroup; row < std::min(rows, (chunk + 1) * kRowGroup); ++row)
      prepare(input, row);
  });
  member.enter(part);
  member.phase(chunks, [&](int chunk) { work(chunk, input); });
}

// Fills a row of a product's input with the residual stream, normed if there is a norm.
inline auto Forward::normed(const Norm& norm) {
  return [this, &norm](int row, float* out) -> const float* {
    if (norm.gain == nullptr) return state(row);
    norm_row(state(row), norm, out);
    return out;
  };
}

// A chunk of a product, `step` panels wide.
inline auto Forward::product(const Matrix& weight, const float* bias, int step, Target to) {
  return [this, &weight, bias, step, to](int chunk, const Activations& input) {
    const int steps = (weight.panels + step - 1) / step;
    const int panel = chunk % steps * step;
    const int block = chunk / steps;
    kernels_.matmul(weight, panel, std::min(step, weight.panels - panel), input, block * kRowBlock,
                    block_rows(block),
                    to.rows + std::int64_t{block} * kRowBlock * width_ + panel * kLanes, width_,
                    bias == nullptr ? nullptr : bias + panel * kLanes, to.add);
  };
}

}  // namespace paradecode
