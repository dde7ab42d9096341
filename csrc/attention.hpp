// Attention of a few query vectors over the tokens their rows see.
//
// What a row sees is numbered: the prefix, then its extra tokens. Every kAttentionBlock numbers are
// a block. A block gives a part: the largest score, the sum of the exponentials below it, and the
// weighted sum of values.
#pragma once

#include "attention_loops.hpp"
#include "attention_parts.hpp"
#include "types.hpp"

namespace paradecode {
namespace {

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

// Caps the scores of the numbers that a query sees of a block, and adds what falls with the
// distance between the query and the key. The two parts of the block have their positions in lists
// of their own, of which `list` may choose.
inline void change_scores(const AttentionTile& tile, int q, const BlockView& view, float* scores) {
  const SpanView& span = *tile.span;
  const std::int32_t begin = view.begin[q];
  const std::int32_t end = view.end[q];
  if (tile.softcap > 0) cap(scores + begin - view.low, tile.softcap, end - begin);
  if (!tile.slopes) return;
  std::int32_t positions[kAttentionBlock + kLanes];
  const std::int32_t* list = span.rows[tile.row[q]].list;
  for (std::int32_t i = begin; i < end; ++i) {
    const std::int32_t extra = i - view.prefix;
    std::int32_t& at = positions[i - begin];
    if (extra >= 0)
      at = span.extra_positions[list == nullptr ? extra : list[extra]];
    else
      at = span.prefix_positions == nullptr ? i : span.prefix_positions[i];
  }
  for (std::int32_t i = 0; i < kLanes; ++i) positions[end - begin + i] = tile.position[q];
  const Simd::F slope = Simd::all(tile.slope[q]);
  const Simd::I own = Simd::int_all(-tile.position[q]);
  for (std::int32_t i = 0; i < end - begin; i += kLanes) {
    float* at = scores + begin - view.low + i;
    const Simd::F distance = Simd::to_float(Simd::int_add(Simd::int_load(positions + i), own));
    Simd::store(at, Simd::fma(slope, distance, Simd::load(at)));
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
  const bool changed = tile.softcap > 0 || tile.slopes;
  for (int block = tile.first_block; block < tile.end_block; ++block) {
    const BlockView view(tile, block);
    score_block(tile, passes, view, listed, scores);
    float* sums[kMaxQueries];
    for (int q = 0; q < tile.count; ++q) {
      sums[q] = tile.parts[q] == nullptr ? own[begun[q] ? 1 : 0][q]
                                         : tile.parts[q] + block * part_floats(tile.padded_dim);
      for (int d = 0; d < tile.padded_dim; ++d) sums[q][d] = 0.0F;
      if (!view.sees(q)) continue;
      if (changed) change_scores(tile, q, view, scores[q] + kLanes);
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
      finish_part({own[0][q], tile.padded_dim}, tile.head_dim, tile.sink[q], tile.out[q]);
    else
      for (int d = 0; d < tile.head_dim; ++d) tile.out[q][d] = 0.0F;
  }
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
