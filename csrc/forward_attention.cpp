// The attention of a forward's layers.
#include <algorithm>

#include "exact.hpp"
#include "forward_products.hpp"

namespace paradecode {

void Forward::plan_tiles(Attention& kind) {
  const Plan& plan = kind.plan;
  const int group = kind.shape.heads / kind.shape.kv_heads;
  const int splits = (group + kMaxQueries - 1) / kMaxQueries;
  const int most_heads = (group + splits - 1) / splits;
  const int most_rows = kMaxQueries / most_heads;
  for (std::size_t i = 0; i < plan.spans.size(); ++i)
    for (int kv = 0; kv < kind.shape.kv_heads; ++kv)
      for (int row = 0; row < plan.spans[i].rows; row += most_rows)
        for (int head = 0; head < group; head += most_heads) {
          const SpanPlan& span = plan.spans[i];
          const int rows = std::min(most_rows, span.rows - row);
          int first = first_block(span.row_views[static_cast<std::size_t>(row)]);
          int end = first;
          for (int r = row; r < row + rows; ++r) {
            const RowView& view = span.row_views[static_cast<std::size_t>(r)];
            first = std::min(first, first_block(view));
            end = std::max(end, end_block(span, view));
          }
          kind.tiles.push_back({static_cast<int>(i), row, rows, kv, kv * group + head,
                                std::min(most_heads, group - head), first, end});
        }
  divide_tiles(kind);
}

// A few tiles that the threads cannot share evenly are divided into ranges of blocks.
void Forward::divide_tiles(Attention& kind) {
  const int threads = model_.team_->size();
  const auto tiles = static_cast<int>(kind.tiles.size());
  if (tiles == 0 || tiles % threads == 0 || tiles >= kShare * threads) return;
  const int ranges = (kShare * threads + tiles - 1) / tiles;
  std::vector<Tile> divided;
  for (const Tile& tile : kind.tiles) {
    const int blocks = tile.end_block - tile.first_block;
    kind.part_blocks = std::max(kind.part_blocks, tile.end_block);
    for (int i = 0; i < ranges; ++i) {
      Tile range = tile;
      range.first_block = tile.first_block + blocks * i / ranges;
      range.end_block = tile.first_block + blocks * (i + 1) / ranges;
      if (range.first_block < range.end_block) divided.push_back(range);
    }
  }
  if (divided.size() == kind.tiles.size()) {
    kind.part_blocks = 0;
    return;
  }
  kind.tiles = std::move(divided);
  parts_ = space_.parts.need(static_cast<std::size_t>(part_at(kind, kind.plan.rows, 0)));
}

int Forward::first_block(const RowView& row) const { return row.start / kAttentionBlock; }

int Forward::end_block(const SpanPlan& span, const RowView& row) const {
  const int seen = span.view.prefix_length + row.count;
  // A row that sees nothing has no block: nobody would write its parts.
  return seen <= row.start ? first_block(row) : (seen + kAttentionBlock - 1) / kAttentionBlock;
}

std::int64_t Forward::part_at(const Attention& kind, std::int64_t row, int head) const {
  return (row * kind.shape.heads + head) * kind.part_blocks * part_floats(kind.dim);
}

// What the heads of a row made, as the input of the output projection. `sinks` may be null.
const float* Forward::attended(const Attention& kind, const float* sinks, int row,
                               float* out) const {
  if (kind.part_blocks == 0) return kind.made + std::int64_t{row} * kind.width;
  const SpanPlan& span = kind.plan.span_of(row);
  const RowView& view = span.row_views[static_cast<std::size_t>(row - span.first_row)];
  const int size = kind.shape.head_dim;
  for (int head = 0; head < kind.shape.heads; ++head)
    kernels_.merge_parts(parts_ + part_at(kind, row, head), first_block(view),
                         end_block(span, view), kind.dim, size,
                         sinks == nullptr ? nullptr : sinks + head, out + head * size);
  std::fill(out + kind.shape.heads * size, out + kind.width, 0.0F);
  return out;
}

// Those values of a row times the sigmoids of its gates.
const float* Forward::gated(const Attention& kind, const float* values, int row, float* out) const {
  if (!kind.shape.gated) return values;
  const int size = kind.shape.head_dim;
  const float* gates = gates_ + std::int64_t{row} * kind.shape.heads * kind.dim;
  for (int head = 0; head < kind.shape.heads; ++head)
    for (int i = 0; i < size; ++i) {
      const double gate = 1.0 / (1.0 + exact_exp(-double{gates[head * kind.dim + i]}));
      out[head * size + i] = values[head * size + i] * static_cast<float>(gate);
    }
  std::fill(out + kind.shape.heads * size, out + kind.width, 0.0F);
  return out;
}

// The attention of a layer.
void Forward::mix(Member& member, int layer, Turn turn) {
  const LayerWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)];
  const Attention& kind = attention(layer);
  auto& own = own_of(member);
  const int rows = plan_.rows;
  member.enter(Part::Queries);
  project(member, layer);

  member.enter(Part::Attend);
  member.phase(static_cast<int>(kind.tiles.size()), [&](int chunk) {
    attend(kind, kind.tiles[static_cast<std::size_t>(chunk)], layer, own.scores.data());
  });

  member.enter(Part::Output);
  const int o_step = chunk_units(w.o.panels, model_.team_->size());
  with_input(
      member, rows, kind.width, needs({w.o.format}),
      [&](int row, float* out) { return gated(kind, attended(kind, w.sinks, row, out), row, out); },
      (w.o.panels + o_step - 1) / o_step * blocks_of(rows),
      product(w.o, w.o_bias, o_step, target(w.after_attn, turn)));
  close(member, layer, w.after_attn, turn);
}

void Forward::attend(const Attention& kind, const Tile& tile, int layer, float* scores) {
  const SpanPlan& span = kind.plan.spans[static_cast<std::size_t>(tile.span)];
  AttentionTile out;
  out.span = &span.view;
  out.head_dim = kind.shape.head_dim;
  out.padded_dim = kind.dim;
  out.first_block = tile.first_block;
  out.end_block = tile.end_block;
  out.fetches = tile.row == 0;
  out.scores = scores;
  out.score_stride = score_stride_;
  out.softcap = kind.shape.softcap;
  out.slopes = !kind.shape.slopes.empty();
  const float* sinks = model_.weights_.layers[static_cast<std::size_t>(layer)].sinks;
  const int cached = shape_.cached(layer);
  for (int scratch = 0; scratch < 2; ++scratch) {
    out.keys[scratch] = model_.cache_.keys(scratch == 1, cached, tile.kv_head);
    out.values[scratch] = model_.cache_.values(scratch == 1, cached, tile.kv_head);
    out.stretch[scratch] = model_.cache_.stretch(scratch == 1, cached);
  }
  for (int r = 0; r < tile.rows; ++r)
    for (int h = 0; h < tile.heads; ++h) {
      const std::int64_t row = span.first_row + tile.row + r;
      const int head = tile.head + h;
      out.row[out.count] = tile.row + r;
      out.query[out.count] = queries_ + (row * kind.shape.heads + head) * kind.dim;
      out.position[out.count] = plan_.positions[static_cast<std::size_t>(row)];
      if (out.slopes) out.slope[out.count] = kind.shape.slopes[static_cast<std::size_t>(head)];
      if (sinks != nullptr) out.sink[out.count] = sinks + head;
      out.out[out.count] = kind.made + row * kind.width + head * kind.shape.head_dim;
      out.parts[out.count] = kind.part_blocks == 0 ? nullptr : parts_ + part_at(kind, row, head);
      ++out.count;
    }
  const int seen =
      std::min(span.view.prefix_length + span.view.extra_length, tile.end_block * kAttentionBlock) -
      tile.first_block * kAttentionBlock;
  count_bytes(static_cast<std::size_t>(seen) * model_.cache_.head_slot_bytes(cached));
  if (model_.cache_.half())
    kernels_.attention_f16(out);
  else
    kernels_.attention_f32(out);
}

}  // namespace paradecode
