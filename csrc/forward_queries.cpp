// Queries, keys and values of a forward's layers.
#include <cmath>

#include "exact.hpp"
#include "forward_products.hpp"

namespace paradecode {

// Projects queries, and brings keys and values where attention reads them.
void Forward::project(Member& member, int layer) {
  const LayerWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)];
  const Attention& kind = attention(layer);
  auto& own = own_of(member);
  const int rows = plan_.rows;
  const int blocks = blocks_of(rows);
  const bool ranked = kind.shape.query_rank > 0;
  const int kept = shape_.layer(layer).keys_of < 0 ? 2 * kind.shape.kv_heads : 0;
  const int queries = ranked ? w.q_down.panels / 2 : kind.shape.heads;
  const int gates = kind.shape.gated ? kind.shape.heads : 0;
  const int units = queries + kept + gates;
  const Format first = ranked ? w.q_down.format : w.q.format;
  const Format last = gates > 0 ? w.attn_gate.format : first;
  const Needs forms =
      kept > 0 ? needs({first, w.k.format, w.v.format, last}) : needs({first, last});
  with_input(member, rows, width_, forms, normed(w.attn_norm), units * blocks,
             [&](int chunk, const Activations& input) {
               const int block = chunk / units;
               const int unit = chunk % units;
               const int row = block * kRowBlock;
               if (unit >= queries + kept)
                 project_gate(unit - queries - kept, row, block_rows(block), input, layer);
               else if (unit >= queries)
                 project_kept(member, unit - queries, row, block_rows(block), input, layer,
                              own.tile.data());
               else if (ranked)
                 kernels_.matmul(w.q_down, 2 * unit, 2, input, row, block_rows(block),
                                 ranked_ + row * ranked_stride_ + unit * kGroup, ranked_stride_,
                                 nullptr, false);
               else
                 project_query(member, unit, row, block_rows(block), input, layer);
             });
  if (ranked) project_ranked(member, layer);
  if (kind.shape.qk_norm == HeadNorm::All)
    member.phase(rows, [&](int row) { norm_all_heads(row, layer); });
}

// Queries of what `q_down` made.
void Forward::project_ranked(Member& member, int layer) {
  const LayerWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)];
  const AttentionShape& shape = attention(layer).shape;
  const int width = round_up(shape.query_rank, kGroup);
  with_input(
      member, plan_.rows, width, needs({w.q.format}),
      [&](int row, float* out) {
        kernels_.rms_norm(ranked_ + row * ranked_stride_, w.q_inner_norm, shape.query_rank, width,
                          shape_.norm_epsilon, out);
        return out;
      },
      shape.heads * blocks_of(plan_.rows),
      [&](int chunk, const Activations& input) {
        const int block = chunk / shape.heads;
        project_query(member, chunk % shape.heads, block * kRowBlock, block_rows(block), input,
                      layer);
      });
}

void Forward::project_query(Member& member, int head, int row, int rows, const Activations& input,
                            int layer) {
  const LayerWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)];
  const Attention& kind = attention(layer);
  const int dim = kind.dim;
  const int panels = dim / kLanes;
  const std::int64_t stride = std::int64_t{kind.shape.heads} * dim;
  float* out = queries_ + row * stride + head * dim;
  kernels_.matmul(w.q, head * panels, panels, input, row, rows, out, stride,
                  w.q_bias == nullptr ? nullptr : w.q_bias + head * dim, false);
  if (kind.shape.qk_norm == HeadNorm::All) return;
  member.enter(Part::Rotate);
  for (int r = 0; r < rows; ++r) finish_query(kind, out + r * stride, row + r, w.q_norm);
  member.enter(Part::Queries);
}

void Forward::project_gate(int head, int row, int rows, const Activations& input, int layer) {
  const LayerWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)];
  const Attention& kind = attention(layer);
  const int panels = kind.dim / kLanes;
  const std::int64_t stride = std::int64_t{kind.shape.heads} * kind.dim;
  const float* bias = w.attn_gate_bias == nullptr ? nullptr : w.attn_gate_bias + head * kind.dim;
  kernels_.matmul(w.attn_gate, head * panels, panels, input, row, rows,
                  gates_ + row * stride + head * kind.dim, stride, bias, false);
}

// A key or a value: head after head of keys, then of values.
void Forward::project_kept(Member& member, int unit, int row, int rows, const Activations& input,
                           int layer, float* scratch) {
  const LayerWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)];
  const Attention& kind = attention(layer);
  const AttentionShape& shape = kind.shape;
  const int dim = kind.dim;
  const int panels = dim / kLanes;
  const bool is_key = unit < shape.kv_heads;
  const int head = unit % shape.kv_heads;
  const float* bias = is_key ? w.k_bias : w.v_bias;
  const bool later = is_key && shape.qk_norm == HeadNorm::All;
  const std::int64_t stride = later ? std::int64_t{shape.kv_heads} * dim : dim;
  float* out = later ? keys_ + row * stride + head * dim : scratch;
  kernels_.matmul(is_key ? w.k : w.v, head * panels, panels, input, row, rows, out, stride,
                  bias == nullptr ? nullptr : bias + head * dim, false);
  if (later) return;
  member.enter(Part::Rotate);
  for (int r = 0; r < rows; ++r) {
    float* values = out + r * stride;
    const Slot& slot = kind.plan.slots[static_cast<std::size_t>(row + r)];
    if (is_key) {
      finish_head(kind, values, row + r, w.k_norm);
      model_.cache_.put_key(slot, layer, head, values, kernels_);
    } else {
      if (w.v_norm != nullptr)
        kernels_.rms_norm(values, w.v_norm, shape.head_dim, dim, shape_.norm_epsilon, values);
      model_.cache_.put_value(slot, layer, head, values, kernels_);
    }
  }
  count_bytes(static_cast<std::size_t>(rows) * model_.cache_.head_slot_bytes(layer) / 2);
  member.enter(Part::Queries);
}

// Norms the queries and the keys of a row, each over all heads, and finishes the heads.
void Forward::norm_all_heads(int row, int layer) {
  const LayerWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)];
  const Attention& kind = attention(layer);
  const AttentionShape& shape = kind.shape;
  const auto turn = [&](float* values, int heads) {
    for (int head = 0; head < heads; ++head) rotate(kind, values + head * kind.dim, row);
  };
  const auto finish = [&](float* values, const float* gain, int heads) {
    if (shape.norm_turned) turn(values, heads);
    kernels_.rms_norm(values, gain, heads * shape.head_dim, heads * kind.dim, shape_.norm_epsilon,
                      values);
    if (!shape.norm_turned) turn(values, heads);
  };
  float* queries = queries_ + row * std::int64_t{shape.heads} * kind.dim;
  finish(queries, w.q_norm, shape.heads);
  for (int head = 0; head < shape.heads; ++head) scale_query(kind, queries + head * kind.dim, row);
  if (shape_.layer(layer).keys_of >= 0) return;
  float* keys = keys_ + row * std::int64_t{shape.kv_heads} * kind.dim;
  finish(keys, w.k_norm, shape.kv_heads);
  const Slot& slot = kind.plan.slots[static_cast<std::size_t>(row)];
  for (int head = 0; head < shape.kv_heads; ++head)
    model_.cache_.put_key(slot, layer, head, keys + head * kind.dim, kernels_);
  count_bytes(static_cast<std::size_t>(shape.kv_heads) * model_.cache_.head_slot_bytes(layer) / 2);
}

void Forward::finish_query(const Attention& kind, float* query, int row, const float* norm) const {
  finish_head(kind, query, row, norm);
  scale_query(kind, query, row);
}

// Scores need a factor, which may grow with the position.
void Forward::scale_query(const Attention& kind, float* query, int row) const {
  float scale = kind.shape.factor();
  if (kind.shape.growth > 0) {
    const std::int64_t steps =
        plan_.positions[static_cast<std::size_t>(row)] / kind.shape.growth_every;
    scale *= static_cast<float>(1.0 + double{kind.shape.growth} *
                                          exact_log(1.0 + static_cast<double>(steps)));
  }
  for (int d = 0; d < kind.dim; ++d) query[d] *= scale;
}

// A head of queries or keys as attention reads it: normed, unless `norm` is null, and turned.
void Forward::finish_head(const Attention& kind, float* head, int row, const float* norm) const {
  const bool late = kind.shape.norm_turned;
  if (late) rotate(kind, head, row);
  if (norm != nullptr)
    kernels_.rms_norm(head, norm, kind.shape.head_dim, kind.dim, shape_.norm_epsilon, head);
  if (!late) rotate(kind, head, row);
}

void Forward::rotate(const Attention& kind, float* head, int row) const {
  const int pairs = kind.shape.pairs();
  const float* cosines = kind.rotations + std::int64_t{row} * 2 * pairs;
  const float* sines = cosines + pairs;
  for (int i = 0; i < pairs; ++i) {
    const float low = head[i];
    const float high = head[i + pairs];
    head[i] = low * cosines[i] - high * sines[i];
    head[i + pairs] = high * cosines[i] + low * sines[i];
  }
}

}  // namespace paradecode
