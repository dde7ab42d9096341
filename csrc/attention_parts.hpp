// Parts of the attention of a query: each is of a block of tokens. Parts are merged in order (as in
// FlashAttention, Dao 2022), by one thread as it goes or later from memory, to the same bits.
#pragma once

#include "elementwise.hpp"
#include "types.hpp"

namespace paradecode {
namespace {

// Part of the attention of one query: padded_dim sums of values, then the largest score and the
// mass, which is the sum of exponentials; none if the query sees nothing.
template <class Float>
struct PartOf {
  Float* sums;
  int dim;

  Float& top() const { return sums[dim]; }
  Float& mass() const { return sums[dim + 1]; }
};
using Part = PartOf<float>;
using ConstPart = PartOf<const float>;

// As many ones as lanes, and zeros.
alignas(64) inline constexpr float kOnesAndZeros[2 * kLanes] = {1, 1, 1, 1, 1, 1, 1, 1,
                                                                1, 1, 1, 1, 1, 1, 1, 1};

// Replaces scores[0 .. count) by their exponentials below the largest. Sixteen floats after them
// are overwritten.
inline void exponentials(float* scores, std::int32_t count, const Part& part) {
  Simd::F top = Simd::all(-INFINITY);
  Simd::store(scores + count, top);
  for (std::int32_t i = 0; i < count; i += kLanes) top = Simd::max(top, Simd::load(scores + i));
  part.top() = Simd::top(top);
  const Simd::F shift = Simd::all(part.top());
  Simd::F sum = Simd::zero();
  for (std::int32_t i = 0; i < count; i += kLanes) {
    Simd::F e = exp_lanes(Simd::sub(Simd::load(scores + i), shift));
    if (i + kLanes > count) e = Simd::mul(e, Simd::load(kOnesAndZeros + i + kLanes - count));
    Simd::store(scores + i, e);
    sum = Simd::add(sum, e);
  }
  part.mass() = Simd::sum(sum);
}

// Adds the part of the next block that the query sees to `kept`.
inline void merge(const Part& kept, const ConstPart& next) {
  const bool higher = next.top() > kept.top();
  const float top = higher ? next.top() : kept.top();
  // What belongs to the higher top keeps its weight: exp(0) is 1.
  const Simd::F share = exp_lanes(Simd::all(higher ? kept.top() - top : next.top() - top));
  const Simd::F old_share = higher ? share : Simd::all(1.0F);
  const Simd::F new_share = higher ? Simd::all(1.0F) : share;
  for (int d = 0; d < kept.dim; d += kLanes)
    Simd::store(kept.sums + d, Simd::fma(Simd::load(next.sums + d), new_share,
                                         Simd::mul(Simd::load(kept.sums + d), old_share)));
  const Simd::F mass =
      Simd::fma(Simd::all(next.mass()), new_share, Simd::mul(Simd::all(kept.mass()), old_share));
  float lanes[kLanes];
  Simd::store(lanes, mass);
  kept.top() = top;
  kept.mass() = lanes[0];
}

// The sums of values over the mass, to which a sink adds its own.
inline void finish_part(const Part& part, int head_dim, const float* sink, float* out) {
  float inverse = 1.0F / part.mass();
  if (sink != nullptr) {
    const bool higher = *sink > part.top();
    float lanes[kLanes];
    Simd::store(lanes, exp_lanes(Simd::all(higher ? part.top() - *sink : *sink - part.top())));
    inverse = higher ? lanes[0] / (part.mass() * lanes[0] + 1.0F) : 1.0F / (part.mass() + lanes[0]);
  }
  for (int d = 0; d < head_dim; ++d) out[d] = part.sums[d] * inverse;
}

// What a tile without `parts` computes, from the parts of the blocks that a query sees.
inline void merge_blocks(const float* parts, int first_block, int end_block, int padded_dim,
                         int head_dim, const float* sink, float* out) {
  if (first_block >= end_block) {
    for (int d = 0; d < head_dim; ++d) out[d] = 0.0F;
    return;
  }
  alignas(64) float kept[part_floats(kMostHeadDim)];
  const auto part = [&](int block) { return parts + block * part_floats(padded_dim); };
  for (std::int64_t d = 0; d < part_floats(padded_dim); ++d) kept[d] = part(first_block)[d];
  for (int block = first_block + 1; block < end_block; ++block)
    merge({kept, padded_dim}, {part(block), padded_dim});
  finish_part({kept, padded_dim}, head_dim, sink, out);
}

}  // namespace
}  // namespace paradecode
