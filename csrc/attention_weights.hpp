// How the attention of a row is shared out, for the rows that a caller asks about.
#pragma once

#include "cache.hpp"
#include "types.hpp"

namespace paradecode {

// Fills `out` with the share of each token of a span, the prefix first, in the attention of one
// query vector: they add up to 1, and are 0 for what the row does not see.
void attention_weights(const SpanView& span, int row, const float* query, int head_dim,
                       const Cache& cache, int layer, int kv_head, float* out);

}  // namespace paradecode
