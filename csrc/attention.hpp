// Attention of a few query vectors over the tokens their rows see.
//
// A score is a sum over head dimensions in order, so it does not matter in which lane, page or
// tile a token is. What a row sees is numbered: the prefix, then its extra tokens. Every
// kAttentionBlock numbers are a block. A block gives a part: the largest score, the sum of the
// exponentials below it, and the weighted sum of values. Parts are merged in order (as in
// FlashAttention, Dao 2022), by one thread as it goes or later from memory, to the same bits.
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

inline void finish_part(const Part& part, int head_dim, float* out) {
  const float inverse = 1.0F / part.mass();
  for (int d = 0; d < head_dim; ++d) out[d] = part.sums[d] * inverse;
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

inline std::int32_t least(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
inline std::int32_t most(std::int32_t a, std::int32_t b) { return a > b ? a : b; }

// Numbers [begin, end) that each query of a tile sees of a block, and what several queries share.
struct BlockView {
  BlockView(const AttentionTile& tile, int block)
      : low(block * kAttentionBlock),
        high(low + kAttentionBlock),
        prefix(tile.span->prefix_length),
        prefix_begin(high),
        joint_begin(low),
        prefix_end(least(high, prefix)),
        extra_begin(most(low, prefix) - prefix),
        extra_end(extra_begin),
        joint_end(most(high, prefix) - prefix) {
    for (int q = 0; q < tile.count; ++q) {
      const RowView& row = tile.span->rows[tile.row[q]];
      begin[q] = most(low, row.start);
      end[q] = least(high, prefix + row.count);
      prefix_begin = least(prefix_begin, begin[q]);
      joint_begin = most(joint_begin, begin[q]);
      extra_end = most(extra_end, end[q] - prefix);
      joint_end = least(joint_end, row.lead);
    }
    joint_begin = least(joint_begin, prefix_end);
  }

  bool sees(int q) const { return begin[q] < end[q]; }

  std::int32_t low, high, prefix;
  std::int32_t prefix_begin;  // of any query
  std::int32_t joint_begin;   // of the prefix that all queries see
  std::int32_t prefix_end;
  // Of the extra tokens, from 0.
  std::int32_t extra_begin;
  std::int32_t extra_end;  // of any query
  std::int32_t joint_end;  // up to here all queries see the same
  std::int32_t begin[kMaxQueries], end[kMaxQueries];
};

inline constexpr int kBlockScores = kAttentionBlock + 2 * kLanes;

// The loops over keys and values. They are made for a source and a number of queries; what is
// between them runs once a block, and is one function for all of these.
struct Passes {
  using AddRange = void (*)(const AttentionTile&, const Run*, int, std::int32_t, std::int32_t,
                            const float*, std::int64_t, float* const*);

  void (*score)(const AttentionTile&, const Run*, int, std::int32_t, std::int32_t,
                const ScoreBuffer&);
  AddRange add;
  AddRange add_one;  // of one query
  void (*add_listed)(const AttentionTile&, const RowView&, std::int32_t, std::int32_t, const float*,
                     float*);
};

template <class From, int Queries>
inline constexpr Passes kPasses = {score_runs<From, Queries>, add_range<From, Queries>,
                                   add_range<From, 1>, add_listed<typename From::Element>};

// `listed`: rows have lists, and the scores of all extra tokens are in tile.scores.
inline void score_block(const AttentionTile& tile, const Passes& passes, const BlockView& view,
                        bool listed, float (*scores)[kBlockScores]) {
  const SpanView& span = *tile.span;
  if (view.prefix_begin < view.prefix_end)
    passes.score(tile, span.prefix, span.prefix_runs, view.prefix_begin, view.prefix_end,
                 {scores[0] + kLanes, kBlockScores, view.low});
  if (!listed) {
    if (view.extra_begin < view.extra_end)
      passes.score(tile, span.extra, span.extra_runs, view.extra_begin, view.extra_end,
                   {scores[0] + kLanes, kBlockScores, view.low - view.prefix});
    return;
  }
  for (int q = 0; q < tile.count; ++q) {
    const std::int32_t* list = span.rows[tile.row[q]].list;
    const float* from = tile.scores + q * tile.score_stride;
    float* to = scores[q] + kLanes + view.prefix - view.low;
    for (std::int32_t i = view.extra_begin; i < view.end[q] - view.prefix; ++i)
      to[i] = from[list == nullptr ? i : list[i]];
  }
}

inline void value_block(const AttentionTile& tile, const Passes& passes, const BlockView& view,
                        const float (*weights)[kBlockScores], float* const* sums) {
  const SpanView& span = *tile.span;
  // Of the first number of the prefix, and of the first extra token.
  const std::int64_t prefix_at = kLanes - view.low;
  const std::int64_t extra_at = prefix_at + view.prefix;
  for (int q = 0; q < tile.count; ++q)
    passes.add_one(tile, span.prefix, span.prefix_runs, view.begin[q], view.joint_begin,
                   weights[q] + prefix_at, 0, sums + q);
  passes.add(tile, span.prefix, span.prefix_runs, view.joint_begin, view.prefix_end,
             weights[0] + prefix_at, kBlockScores, sums);
  passes.add(tile, span.extra, span.extra_runs, view.extra_begin, view.joint_end,
             weights[0] + extra_at, kBlockScores, sums);
  const std::int32_t rest = most(view.extra_begin, view.joint_end);
  for (int q = 0; q < tile.count; ++q) {
    const RowView& row = span.rows[tile.row[q]];
    const std::int32_t end = view.end[q] - view.prefix;
    if (row.list != nullptr)
      passes.add_listed(tile, row, rest, end, weights[q] + extra_at, sums[q]);
    else
      passes.add_one(tile, span.extra, span.extra_runs, rest, end, weights[q] + extra_at, 0,
                     sums + q);
  }
}

inline void attend(const AttentionTile& tile, const Passes& passes) {
  const SpanView& span = *tile.span;
  std::int32_t reach = 0;
  bool listed = false;
  for (int q = 0; q < tile.count; ++q) {
    const RowView& row = span.rows[tile.row[q]];
    reach = most(reach, row.reach);
    listed |= row.list != nullptr;
  }
  if (listed)
    passes.score(tile, span.extra, span.extra_runs, 0, reach, {tile.scores, tile.score_stride, 0});

  alignas(64) float scores[kMaxQueries][kBlockScores];
  alignas(64) float own[2][kMaxQueries][part_floats(kMostHeadDim)];
  bool begun[kMaxQueries] = {};
  for (int block = tile.first_block; block < tile.end_block; ++block) {
    const BlockView view(tile, block);
    score_block(tile, passes, view, listed, scores);
    float* sums[kMaxQueries];
    for (int q = 0; q < tile.count; ++q) {
      sums[q] = tile.parts[q] == nullptr ? own[begun[q] ? 1 : 0][q]
                                         : tile.parts[q] + block * part_floats(tile.padded_dim);
      for (int d = 0; d < tile.padded_dim; ++d) sums[q][d] = 0.0F;
      if (view.sees(q))
        exponentials(scores[q] + kLanes + view.begin[q] - view.low, view.end[q] - view.begin[q],
                     {sums[q], tile.padded_dim});
    }
    value_block(tile, passes, view, scores, sums);
    for (int q = 0; q < tile.count; ++q) {
      if (tile.parts[q] != nullptr || !view.sees(q)) continue;
      if (begun[q]) merge({own[0][q], tile.padded_dim}, {sums[q], tile.padded_dim});
      begun[q] = true;
    }
  }
  for (int q = 0; q < tile.count; ++q) {
    if (tile.parts[q] != nullptr) continue;
    if (begun[q])
      finish_part({own[0][q], tile.padded_dim}, tile.head_dim, tile.out[q]);
    else
      for (int d = 0; d < tile.head_dim; ++d) tile.out[q][d] = 0.0F;
  }
}

// What a tile without `parts` computes, from the parts of the blocks that a query sees.
inline void merge_blocks(const float* parts, int first_block, int end_block, int padded_dim,
                         int head_dim, float* out) {
  if (first_block >= end_block) {
    for (int d = 0; d < head_dim; ++d) out[d] = 0.0F;
    return;
  }
  alignas(64) float kept[part_floats(kMostHeadDim)];
  const auto part = [&](int block) { return parts + block * part_floats(padded_dim); };
  for (std::int64_t d = 0; d < part_floats(padded_dim); ++d) kept[d] = part(first_block)[d];
  for (int block = first_block + 1; block < end_block; ++block)
    merge({kept, padded_dim}, {part(block), padded_dim});
  finish_part({kept, padded_dim}, head_dim, out);
}

template <class From>
inline void attend_as(const AttentionTile& tile) {
  static constexpr Passes passes[kMaxQueries] = {kPasses<From, 1>, kPasses<From, 2>,
                                                 kPasses<From, 3>, kPasses<From, 4>,
                                                 kPasses<From, 5>, kPasses<From, 6>};
  attend(tile, passes[tile.count - 1]);
}

template <class Element>
inline void attention(const AttentionTile& tile) {
  if (tile.fetches)
    attend_as<Source<Element, true>>(tile);
  else
    attend_as<Source<Element, false>>(tile);
}

}  // namespace
}  // namespace paradecode
