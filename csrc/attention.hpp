// Attention of a few query vectors over the tokens their rows see.
//
// A score is a sum over head dimensions in order, so it does not matter in which lane, page or
// tile a token is. The scores of a row are then laid out in the canonical order of what it sees;
// the softmax sum and the sum of values follow that order.
#pragma once

#include "elementwise.hpp"
#include "types.hpp"

namespace paradecode {
namespace {

template <class Element>
inline Simd::F load_cache(const Element* p) {
  if constexpr (sizeof(Element) == 2)
    return Simd::load_f16(p);
  else
    return Simd::load(p);
}

template <class Element>
inline const Element* page_of(const AttentionTile& tile, const void* const* base, const Run& run,
                              std::int64_t page_size) {
  const int scratch = run.scratch ? 1 : 0;
  return static_cast<const Element*>(base[scratch]) + run.page / kStretch * tile.stretch[scratch] +
         run.page % kStretch * page_size;
}

template <class Element, int Queries, int Pages>
inline void score_pages(const AttentionTile& tile, const Element* const* keys,
                        Simd::F (*out)[Pages]) {
#pragma GCC unroll 16
  for (int q = 0; q < Queries; ++q)
#pragma GCC unroll 16
    for (int p = 0; p < Pages; ++p) out[q][p] = Simd::zero();
  for (int d = 0; d < tile.head_dim; ++d) {
    Simd::F key[Pages];
#pragma GCC unroll 16
    for (int p = 0; p < Pages; ++p) key[p] = load_cache(keys[p] + d * kPage);
#pragma GCC unroll 16
    for (int q = 0; q < Queries; ++q) {
      const Simd::F x = Simd::all(tile.query[q][d]);
#pragma GCC unroll 16
      for (int p = 0; p < Pages; ++p) out[q][p] = Simd::fma(x, key[p], out[q][p]);
    }
  }
}

inline void put_scores(Simd::F scores, const Run& run, float* out) {
  if (run.first == 0) {  // what lies beyond the run is overwritten later
    Simd::store(out + run.ordinal, scores);
    return;
  }
  float lanes[kLanes];
  Simd::store(lanes, scores);
  for (int i = 0; i < run.count; ++i) out[run.ordinal + i] = lanes[run.first + i];
}

template <class Element, int Queries, int Pages>
inline void score_step(const AttentionTile& tile, const Run* runs, float* out) {
  const Element* keys[Pages];
#pragma GCC unroll 16
  for (int p = 0; p < Pages; ++p)
    keys[p] = page_of<Element>(tile, tile.keys, runs[p], std::int64_t{tile.head_dim} * kPage);
  Simd::F scores[Queries][Pages];
  score_pages<Element, Queries, Pages>(tile, keys, scores);
#pragma GCC unroll 16
  for (int p = 0; p < Pages; ++p)
#pragma GCC unroll 16
    for (int q = 0; q < Queries; ++q)
      put_scores(scores[q][p], runs[p], out + q * tile.score_stride);
}

// Scores of the tokens [from, to) of a list, written to `out` at their ordinals.
template <class Element, int Queries>
inline void score_runs(const AttentionTile& tile, const Run* runs, int count, std::int32_t from,
                       std::int32_t to, float* out) {
  // About a dozen independent sums hide the latency of an addition.
  constexpr int pages = Queries == 1 ? 8 : Queries <= 3 ? 4 : Queries <= 4 ? 3 : 2;
  int i = 0;
  while (i < count && runs[i].ordinal + runs[i].count <= from) ++i;
  int end = i;
  while (end < count && runs[end].ordinal < to) ++end;
  for (; i + pages <= end; i += pages) score_step<Element, Queries, pages>(tile, runs + i, out);
  for (; i < end; ++i) score_step<Element, Queries, 1>(tile, runs + i, out);
}

// Replaces scores[0 .. count) by exponentials and returns the inverse of their sum.
inline float softmax(float* scores, std::int32_t count) {
  Simd::F top = Simd::all(-INFINITY);
  std::int32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) top = Simd::max(top, Simd::load(scores + i));
  float best = max_lanes(top);
  for (; i < count; ++i) best = scores[i] > best ? scores[i] : best;
  const Simd::F shift = Simd::all(best);
  Simd::F sum = Simd::zero();
  for (i = 0; i + kLanes <= count; i += kLanes) {
    const Simd::F e = exp_lanes(Simd::sub(Simd::load(scores + i), shift));
    Simd::store(scores + i, e);
    sum = Simd::add(sum, e);
  }
  if (i < count) {
    float tail[kLanes];
    for (int k = 0; k < kLanes; ++k) tail[k] = i + k < count ? scores[i + k] : best;
    Simd::store(tail, exp_lanes(Simd::sub(Simd::load(tail), shift)));
    for (int k = count - i; k < kLanes; ++k) tail[k] = 0.0F;
    for (int k = 0; i + k < count; ++k) scores[i + k] = tail[k];
    sum = Simd::add(sum, Simd::load(tail));
  }
  return 1.0F / sum_lanes(sum);
}

template <class Element>
inline const Element* value_row(const AttentionTile& tile, const Run& run, std::int32_t index) {
  const std::int64_t row = run.first + (index - run.ordinal);
  return page_of<Element>(tile, tile.values, run, std::int64_t{tile.padded_dim} * kPage) +
         row * tile.padded_dim;
}

// Adds weight x value of the tokens [from, to) of a list to `sums`, in order. weights[q] is
// indexed by the token's ordinal.
template <class Element, int Queries, int Chunks>
inline void add_values(const AttentionTile& tile, const Run* runs, int count, std::int32_t from,
                       std::int32_t to, int dim, const float* const* weights, float* const* sums) {
  Simd::F sum[Queries][Chunks];
#pragma GCC unroll 16
  for (int q = 0; q < Queries; ++q)
#pragma GCC unroll 16
    for (int c = 0; c < Chunks; ++c) sum[q][c] = Simd::load(sums[q] + dim + c * kLanes);
  for (int i = 0; i < count && runs[i].ordinal < to; ++i) {
    const Run& run = runs[i];
    const std::int32_t begin = run.ordinal < from ? from : run.ordinal;
    const std::int32_t stop = run.ordinal + run.count;
    const std::int32_t end = stop < to ? stop : to;
    if (begin >= end) continue;
    const Element* value = value_row<Element>(tile, run, begin) + dim;
    for (std::int32_t t = begin; t < end; ++t, value += tile.padded_dim) {
      Simd::F v[Chunks];
#pragma GCC unroll 16
      for (int c = 0; c < Chunks; ++c) v[c] = load_cache(value + c * kLanes);
#pragma GCC unroll 16
      for (int q = 0; q < Queries; ++q) {
        const Simd::F w = Simd::all(weights[q][t]);
#pragma GCC unroll 16
        for (int c = 0; c < Chunks; ++c) sum[q][c] = Simd::fma(w, v[c], sum[q][c]);
      }
    }
  }
#pragma GCC unroll 16
  for (int q = 0; q < Queries; ++q)
#pragma GCC unroll 16
    for (int c = 0; c < Chunks; ++c) Simd::store(sums[q] + dim + c * kLanes, sum[q][c]);
}

template <class Element, int Queries>
inline void add_range(const AttentionTile& tile, const Run* runs, int count, std::int32_t from,
                      std::int32_t to, const float* const* weights, float* const* sums) {
  if (from >= to) return;
  int dim = 0;
  for (; dim + 4 * kLanes <= tile.padded_dim; dim += 4 * kLanes)
    add_values<Element, Queries, 4>(tile, runs, count, from, to, dim, weights, sums);
  for (; dim < tile.padded_dim; dim += kLanes)
    add_values<Element, Queries, 1>(tile, runs, count, from, to, dim, weights, sums);
}

template <class Element>
inline void add_listed(const AttentionTile& tile, const RowView& row, std::int32_t from,
                       const float* weights, float* sum) {
  const SpanView& span = *tile.span;
  int run = 0;
  for (std::int32_t i = from; i < row.count; ++i) {
    const std::int32_t index = row.list[i];
    while (span.extra[run].ordinal + span.extra[run].count <= index) ++run;
    const Element* value = value_row<Element>(tile, span.extra[run], index);
    const Simd::F w = Simd::all(weights[i]);
    for (int d = 0; d < tile.padded_dim; d += kLanes)
      Simd::store(sum + d, Simd::fma(w, load_cache(value + d), Simd::load(sum + d)));
  }
}

inline constexpr int kMaxHeadDim = 1024;

template <class Element, int Queries>
inline void attend(const AttentionTile& tile) {
  const SpanView& span = *tile.span;
  const std::int32_t prefix = span.prefix_length;
  std::int32_t first = prefix;  // of the prefix, over the tile
  std::int32_t last_start = 0;
  std::int32_t reach = 0;
  std::int32_t shared = span.extra_length;
#pragma GCC unroll 16
  for (int q = 0; q < Queries; ++q) {
    const RowView& row = span.rows[tile.row[q]];
    first = row.start < first ? row.start : first;
    last_start = row.start > last_start ? row.start : last_start;
    reach = row.reach > reach ? row.reach : reach;
    shared = row.lead < shared ? row.lead : shared;
  }
  score_runs<Element, Queries>(tile, span.prefix, span.prefix_runs, first, prefix, tile.scores);
  score_runs<Element, Queries>(tile, span.extra, span.extra_runs, 0, reach, tile.scores + prefix);

  alignas(64) float sums[Queries][kMaxHeadDim];
  float inverse[Queries];
  const float* prefix_weights[Queries];
  const float* extra_weights[Queries];
  float* sum[Queries];
#pragma GCC unroll 16
  for (int q = 0; q < Queries; ++q) {
    const RowView& row = span.rows[tile.row[q]];
    float* scores = tile.scores + q * tile.score_stride;
    if (row.list != nullptr)
      for (std::int32_t i = row.lead; i < row.count; ++i)
        scores[prefix + i] = scores[prefix + row.list[i]];
    const std::int32_t total = prefix - row.start + row.count;
    inverse[q] = total == 0 ? 0.0F : softmax(scores + row.start, total);
    prefix_weights[q] = scores;
    extra_weights[q] = scores + prefix;
    sum[q] = sums[q];
    for (int d = 0; d < tile.padded_dim; ++d) sums[q][d] = 0.0F;
  }
#pragma GCC unroll 16
  for (int q = 0; q < Queries; ++q)
    add_range<Element, 1>(tile, span.prefix, span.prefix_runs, span.rows[tile.row[q]].start,
                          last_start, prefix_weights + q, sum + q);
  add_range<Element, Queries>(tile, span.prefix, span.prefix_runs, last_start, prefix,
                              prefix_weights, sum);
  add_range<Element, Queries>(tile, span.extra, span.extra_runs, 0, shared, extra_weights, sum);
#pragma GCC unroll 16
  for (int q = 0; q < Queries; ++q) {
    const RowView& row = span.rows[tile.row[q]];
    if (row.list != nullptr) {
      // The entries of the list from `shared` to its lead equal their index.
      add_listed<Element>(tile, row, shared, extra_weights[q], sums[q]);
    } else {
      add_range<Element, 1>(tile, span.extra, span.extra_runs, shared, row.count, extra_weights + q,
                            sum + q);
    }
    for (int d = 0; d < tile.head_dim; ++d) tile.out[q][d] = sums[q][d] * inverse[q];
  }
}

template <class Element>
inline void attention(const AttentionTile& tile) {
  static_assert(kMaxQueries == 6);
  switch (tile.count) {
    case 1: return attend<Element, 1>(tile);
    case 2: return attend<Element, 2>(tile);
    case 3: return attend<Element, 3>(tile);
    case 4: return attend<Element, 4>(tile);
    case 5: return attend<Element, 5>(tile);
    default: return attend<Element, 6>(tile);
  }
}

}  // namespace
}  // namespace paradecode
