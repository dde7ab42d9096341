// The attention of a draft head's blocks; backends/heads/attention.py is the same in Python.
#include <algorithm>
#include <cmath>

#include "exact.hpp"
#include "head_pass.hpp"

namespace paradecode {
namespace {

// The largest number in half precision. A head's states may grow from level to level of its draft.
void hold(float* values, int count) {
  constexpr float kLargest = 65504.0F;
  for (int i = 0; i < count; ++i) values[i] = std::clamp(values[i], -kLargest, kLargest);
}

}  // namespace

void HeadPass::turn(std::size_t b, int index) {
  const HeadBlock& block = nets_.blocks[b];
  const HeadRow& row = rows_[static_cast<std::size_t>(index)];
  Cache& cache = inputs_[row.input].memory->cache;
  const Slot slot{row.slot / kPage, static_cast<std::uint8_t>(row.slot % kPage), false};
  const int size = block.size;
  const int half = size / 2;
  float cosines[kMostHeadSize / 2];
  float sines[kMostHeadSize / 2];
  for (int i = 0; i < half; ++i)
    exact_turn(row.position * block.frequencies[static_cast<std::size_t>(i)], cosines[i], sines[i]);
  float padded[kMostHeadSize + kLanes] = {};
  const auto turned = [&](const float* x, const std::vector<float>& gain, float factor) {
    std::copy_n(x, size, padded);
    if (!gain.empty())
      kernels_.rms_norm(padded, gain.data(), size, round_up(size, kLanes), block.epsilon, padded);
    for (int i = 0; i < half; ++i) {
      const float a = padded[i];
      const float z = padded[i + half];
      padded[i] = (a * cosines[i] - z * sines[i]) * factor;
      padded[i + half] = (z * cosines[i] + a * sines[i]) * factor;
    }
  };
  float* x = runs_.before[b]->result(index);
  const float scale = 1.0F / std::sqrt(static_cast<float>(size));
  for (int head = 0; head < block.heads; ++head, x += size) {
    turned(x, block.q_norm, scale);
    std::copy_n(padded, size, x);
  }
  const auto layer = static_cast<int>(b);
  for (int head = 0; head < block.kv_heads; ++head, x += size) {
    turned(x, block.k_norm, 1.0F);
    hold(padded, size);
    cache.put_key(slot, layer, head, padded, kernels_);
  }
  for (int head = 0; head < block.kv_heads; ++head, x += size) {
    std::copy_n(x, size, padded);
    hold(padded, size);
    cache.put_value(slot, layer, head, padded, kernels_);
  }
}

void HeadPass::attend(std::size_t b, const Queries::Tile& tile, Buffer<float>& scores) {
  const HeadBlock& block = nets_.blocks[b];
  const Queries& asks = queries(b);
  const HeadSpan& span = spans_[tile.span];
  const SpanPlan& plan = span.plan->spans[0];
  const Cache& cache = inputs_[span.input].memory->cache;
  AttentionTile out;
  out.span = &plan.view;
  out.head_dim = block.size;
  out.padded_dim = round_up(block.size, kLanes);
  out.score_stride = round_up(plan.view.extra_length + 2 * kLanes, kLanes);
  out.scores = scores.need(static_cast<std::size_t>(kMaxQueries * out.score_stride));
  const auto layer = static_cast<int>(b);
  out.keys[0] = cache.keys(false, layer, tile.kv_head);
  out.values[0] = cache.values(false, layer, tile.kv_head);
  out.stretch[0] = cache.stretch(false, layer);
  const int group = block.heads / block.kv_heads;
  for (int q = tile.first; q < tile.first + tile.count; ++q) {
    const std::size_t i = asks.begins[tile.span] + static_cast<std::size_t>(q / group);
    const int at = (tile.kv_head * group + q % group) * block.size;
    out.row[out.count] = static_cast<int>(asks.rows[i] - span.first);
    out.query[out.count] = runs_.before[b]->result(static_cast<int>(asks.rows[i])) + at;
    out.out[out.count] = runs_.after[b]->input(0, static_cast<int>(i)) + at;
    ++out.count;
  }
  // The blocks of tokens that any of these rows sees.
  int most = 0;
  for (int q = 0; q < out.count; ++q) most = std::max(most, plan.view.rows[out.row[q]].count);
  out.end_block = (plan.view.prefix_length + most + kAttentionBlock - 1) / kAttentionBlock;
  if (cache.half())
    kernels_.attention_f16(out);
  else
    kernels_.attention_f32(out);
}

}  // namespace paradecode
