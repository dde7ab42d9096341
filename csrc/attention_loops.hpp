// The loops of attention over the keys and values of a cache, which lie in pages that runs of
// tokens name. A score is a sum over head dimensions in order, so it does not matter in which lane,
// page or tile a token is.
#pragma once

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

// What keys and values are, and whether they are fetched ahead: not if another tile was here a
// moment ago, for then they are in the second-level cache and fetching costs more than it saves.
template <class Type, bool Fetches>
struct Source {
  using Element = Type;
  static constexpr bool fetches = Fetches;
};

// Fetches the elements that a vector at `p` is loaded from; `part` counts vectors.
template <class From>
inline void fetch_ahead(const typename From::Element* p, int part) {
  if (From::fetches && (sizeof(*p) == 4 || part % 2 == 0)) Simd::prefetch(p);
}

// The first run that has an ordinal of at least `from`.
inline int run_at(const Run* runs, int count, std::int32_t from) {
  int low = 0;
  while (low < count) {
    const int middle = (low + count) / 2;
    if (runs[middle].ordinal + runs[middle].count <= from)
      low = middle + 1;
    else
      count = middle;
  }
  return low;
}

template <class From, int Queries, int Pages>
inline void score_pages(const AttentionTile& tile, const typename From::Element* const* keys,
                        const typename From::Element* const* next, Simd::F (*out)[Pages]) {
#pragma GCC unroll 16
  for (int q = 0; q < Queries; ++q)
#pragma GCC unroll 16
    for (int p = 0; p < Pages; ++p) out[q][p] = Simd::zero();
  for (int d = 0; d < tile.head_dim; ++d) {
    Simd::F key[Pages];
#pragma GCC unroll 16
    for (int p = 0; p < Pages; ++p) {
      key[p] = load_cache(keys[p] + d * kPage);
      fetch_ahead<From>(next[p] + d * kPage, d);
    }
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
    Simd::store(out, scores);
    return;
  }
  float lanes[kLanes];
  Simd::store(lanes, scores);
  for (int i = 0; i < run.count; ++i) out[i] = lanes[run.first + i];
}

// Where scores are written: those of query q and ordinal i at values[q * stride + i - origin].
// Sixteen floats before and after what is asked for may be overwritten.
struct ScoreBuffer {
  float* values;
  std::int64_t stride;
  std::int32_t origin;
};

template <class From, int Queries, int Pages>
inline void score_step(const AttentionTile& tile, const Run* runs, int left,
                       const ScoreBuffer& out) {
  const std::int64_t page_size = std::int64_t{tile.head_dim} * kPage;
  const typename From::Element* keys[Pages];
  const typename From::Element* next[Pages];
#pragma GCC unroll 16
  for (int p = 0; p < Pages; ++p) {
    keys[p] = page_of<typename From::Element>(tile, tile.keys, runs[p], page_size);
    next[p] = p + Pages < left
                  ? page_of<typename From::Element>(tile, tile.keys, runs[p + Pages], page_size)
                  : keys[p];
  }
  Simd::F scores[Queries][Pages];
  score_pages<From, Queries, Pages>(tile, keys, next, scores);
#pragma GCC unroll 16
  for (int p = 0; p < Pages; ++p)
#pragma GCC unroll 16
    for (int q = 0; q < Queries; ++q)
      put_scores(scores[q][p], runs[p], out.values + q * out.stride + runs[p].ordinal - out.origin);
}
// Scores of the tokens [from, to) of a list.
template <class From, int Queries>
inline void score_runs(const AttentionTile& tile, const Run* runs, int count, std::int32_t from,
                       std::int32_t to, const ScoreBuffer& out) {
  // About a dozen independent sums hide the latency of an addition.
  constexpr int pages = Queries == 1 ? 8 : Queries <= 3 ? 4 : Queries <= 4 ? 3 : 2;
  int i = run_at(runs, count, from);
  int end = i;
  while (end < count && runs[end].ordinal < to) ++end;
  for (; i + pages <= end; i += pages)
    score_step<From, Queries, pages>(tile, runs + i, count - i, out);
  for (; i < end; ++i) score_step<From, Queries, 1>(tile, runs + i, count - i, out);
}

template <class Element>
inline const Element* value_row(const AttentionTile& tile, const Run& run, std::int32_t index) {
  const std::int64_t row = run.first + (index - run.ordinal);
  return page_of<Element>(tile, tile.values, run, std::int64_t{tile.padded_dim} * kPage) +
         row * tile.padded_dim;
}

// How many runs ahead values are fetched.
inline constexpr int kValueRunsAhead = 4;

// Adds weight x value of the tokens [from, to) of a list to `sums`, in order. The weight of a
// token for query q is weights[q * stride + ordinal].
template <class From, int Queries, int Chunks>
inline void add_values(const AttentionTile& tile, const Run* runs, int count, std::int32_t from,
                       std::int32_t to, int dim, const float* weights, std::int64_t stride,
                       float* const* sums) {
  Simd::F sum[Queries][Chunks];
#pragma GCC unroll 16
  for (int q = 0; q < Queries; ++q)
#pragma GCC unroll 16
    for (int c = 0; c < Chunks; ++c) sum[q][c] = Simd::load(sums[q] + dim + c * kLanes);
  for (int i = run_at(runs, count, from); i < count && runs[i].ordinal < to; ++i) {
    const Run& run = runs[i];
    const std::int32_t begin = run.ordinal < from ? from : run.ordinal;
    const std::int32_t stop = run.ordinal + run.count;
    const std::int32_t end = stop < to ? stop : to;
    const typename From::Element* value = value_row<typename From::Element>(tile, run, begin) + dim;
    const typename From::Element* next = value;
    if (i + kValueRunsAhead < count) {
      const Run& ahead = runs[i + kValueRunsAhead];
      next = value_row<typename From::Element>(tile, ahead, ahead.ordinal) + dim;
    }
    for (std::int32_t t = begin; t < end; ++t, value += tile.padded_dim, next += tile.padded_dim) {
      Simd::F v[Chunks];
#pragma GCC unroll 16
      for (int c = 0; c < Chunks; ++c) {
        v[c] = load_cache(value + c * kLanes);
        fetch_ahead<From>(next + c * kLanes, c);
      }
#pragma GCC unroll 16
      for (int q = 0; q < Queries; ++q) {
        const Simd::F w = Simd::all(weights[q * stride + t]);
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

template <class From, int Queries>
inline void add_range(const AttentionTile& tile, const Run* runs, int count, std::int32_t from,
                      std::int32_t to, const float* weights, std::int64_t stride,
                      float* const* sums) {
  if (from >= to) return;
  int dim = 0;
  for (; dim + 4 * kLanes <= tile.padded_dim; dim += 4 * kLanes)
    add_values<From, Queries, 4>(tile, runs, count, from, to, dim, weights, stride, sums);
  for (; dim < tile.padded_dim; dim += kLanes)
    add_values<From, Queries, 1>(tile, runs, count, from, to, dim, weights, stride, sums);
}

// The same for the entries [from, to) of a row's list of extra tokens.
template <class Element>
inline void add_listed(const AttentionTile& tile, const RowView& row, std::int32_t from,
                       std::int32_t to, const float* weights, float* sum) {
  const SpanView& span = *tile.span;
  if (from >= to) return;
  int run = run_at(span.extra, span.extra_runs, row.list[from]);
  for (std::int32_t i = from; i < to; ++i) {
    const std::int32_t index = row.list[i];
    while (span.extra[run].ordinal + span.extra[run].count <= index) ++run;
    const Element* value = value_row<Element>(tile, span.extra[run], index);
    const Simd::F w = Simd::all(weights[i]);
    for (int d = 0; d < tile.padded_dim; d += kLanes)
      Simd::store(sum + d, Simd::fma(w, load_cache(value + d), Simd::load(sum + d)));
  }
}

}  // namespace
}  // namespace paradecode
