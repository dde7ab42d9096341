// How the attention of a row is shared out, for the rows that a caller asks about.
#pragma once

#include "cache.hpp"
#include "types.hpp"

namespace paradecode {

// What a layer's scores have beside the product of query and key; see AttentionTile.
struct ScoreRule {
  float softcap = 0;
  float slope = 0;
  std::int32_t position = 0;
  const float* sink = nullptr;
};

// Fills `out` with the share of each token of a span, the prefix first, in the attention of one
// query vector: they add up to 1, less what a sink takes, and are 0 for what the row does not see.
void attention_weights(const SpanView& span, int row, const float* query, int head_dim,
                       const Cache& cache, int layer, int kv_head, const ScoreRule& rule,
                       float* out);

}  // namespace paradecode
