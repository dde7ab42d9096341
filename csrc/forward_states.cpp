// Layers with a state: their memory, their records, and short convolutions.
#include <algorithm>

#include "forward_products.hpp"

namespace paradecode {

// Takes the memory that a forward needs for parts with a state, and returns the widest input of
// their products.
int Forward::plan_recall() {
  if (shape_.states.empty()) return 0;
  int widest = 0;
  std::size_t starts = 0;
  for (const SpanLineage& span : lineage_) starts = std::max(starts, span.starts.size());
  std::int64_t matrix = 0;
  int queue = 0;
  recall_stride_ = 0;
  for (const StateShape& kind : shape_.states) {
    const int wide = kind.heads == 0
                         ? 3 * width_
                         : 3 * round_up(kind.keys(), kGroup) + 3 * round_up(kind.values(), kGroup) +
                               2 * round_up(kind.decays(), kGroup) + round_up(kind.heads, kGroup) +
                               round_up(kind.decay_rank, kGroup);
    recall_stride_ = std::max(recall_stride_, std::int64_t{wide});
    record_stride_ = std::max(record_stride_, kind.record_numbers());
    matrix = std::max(matrix, std::int64_t{kind.key_dim} * kind.padded_value());
    queue = std::max(queue, kind.key_dim);
    widest = std::max(
        {widest, round_up(kind.heads * kind.value_dim, kGroup), round_up(kind.decay_rank, kGroup)});
  }
  recalled_ = space_.recalled.need(count(plan_.rows, recall_stride_));
  made_records_ = space_.records.need(count(plan_.rows, record_stride_));
  for (auto& member : space_.members) {
    member.starts.need(starts * static_cast<std::size_t>(matrix));
    member.pointers.need(static_cast<std::size_t>(std::max(queue, kPage)));
    member.sums.need(static_cast<std::size_t>(std::max(queue, 2 * kReaders)));
    member.factors.need(static_cast<std::size_t>((2 * kReaders + 1) * std::max(queue, kPage)));
  }
  return widest;
}

// A record of a column of a span.
const float* Forward::record_of(int part, const SpanLineage& span, std::int32_t column) const {
  const auto cached = static_cast<std::int32_t>(span.cached.size());
  return column < cached
             ? model_.states_.record(part, span.cached[static_cast<std::size_t>(column)])
             : made_records_ + (span.first_row + column - cached) * record_stride_;
}

const SpanLineage& Forward::lineage_of(int row) const {
  return lineage_[static_cast<std::size_t>(&plan_.span_of(row) - plan_.spans.data())];
}

// Multiplies rows by the matrices of `pieces`, whose results lie side by side.
void Forward::project_pieces(Member& member, const Norm& norm,
                             std::initializer_list<Piece> pieces) {
  int units = 0;
  Needs forms;
  for (const Piece& piece : pieces) {
    if (piece.weight->panels == 0) continue;
    units += piece.weight->panels / 2;
    forms.add(piece.weight->format);
  }
  with_input(member, plan_.rows, width_, forms, normed(norm), units * blocks_of(plan_.rows),
             [&](int chunk, const Activations& input) {
               const int row = chunk / units * kRowBlock;
               int unit = chunk % units;
               const Piece* piece = pieces.begin();
               while (unit >= piece->weight->panels / 2) unit -= (piece++)->weight->panels / 2;
               const float* bias = piece->bias == nullptr ? nullptr : piece->bias + unit * kGroup;
               kernels_.matmul(*piece->weight, 2 * unit, 2, input, row, block_rows(chunk / units),
                               recalled_ + row * recall_stride_ + piece->at + unit * kGroup,
                               recall_stride_, bias, false);
             });
}

// The inputs of a convolution at the row and its nearest ancestors, the oldest first, and their
// sum with the taps.
void Forward::convolve_row(int part, const StateShape& kind, const StateWeights& w, int row,
                           float* out) const {
  const SpanLineage& span = lineage_of(row);
  const int own = row - span.first_row;
  const int past = kind.width - 1;
  const int depth = span.depth(own);
  const int size = kind.mixed();
  const float* before =
      span.state < 0 ? nullptr : model_.states_.state(part, span.state) + kind.tail_at();
  if (w.tap_bias != nullptr)
    std::copy_n(w.tap_bias, size, out);
  else
    std::fill_n(out, size, 0.0F);
  for (int tap = 0; tap <= past; ++tap) {
    const int at = depth - past + tap;  // on the path, which the row itself ends
    const float* in = nullptr;
    if (tap == past)
      in = made_records_ + row * record_stride_ + kind.inputs_at();
    else if (at >= 0)
      in = record_of(part, span, span.path(own)[at]) + kind.inputs_at();
    else if (before != nullptr)
      in = before + std::int64_t{at + past} * size;
    if (in == nullptr) continue;  // There is nothing before the first row.
    const float* taps = w.turned + std::int64_t{tap} * size;
    for (int i = 0; i < size; ++i) out[i] += taps[i] * in[i];
  }
}

// Stores the records of rows, and of the states that are written the last inputs before the page.
void Forward::keep_records(Member& member, int part, const StateShape& kind) {
  const int spans = static_cast<int>(lineage_.size());
  member.phase(spans + plan_.rows, [&](int chunk) {
    if (chunk < spans) return keep_tails(part, kind, lineage_[static_cast<std::size_t>(chunk)]);
    const int row = chunk - spans;
    const SpanLineage& span = lineage_of(row);
    const std::int64_t target = span.targets[static_cast<std::size_t>(row - span.first_row)];
    if (target < 0) return;
    const auto numbers = static_cast<std::size_t>(kind.record_numbers());
    std::copy_n(made_records_ + row * record_stride_, numbers, model_.states_.record(part, target));
    count_bytes(numbers * sizeof(float));
  });
}

void Forward::keep_tails(int part, const StateShape& kind, const SpanLineage& span) const {
  const int past = kind.width > 0 ? kind.width - 1 : 0;
  for (const SpanLineage::Write& write : span.writes) {
    float* tail = model_.states_.state(part, write.slot) + kind.tail_at();
    const SpanLineage::Start& start = span.starts[static_cast<std::size_t>(write.start)];
    for (int i = 0; i < past; ++i)
      std::copy_n(record_of(part, span, start.columns[kPage - past + i]) + kind.inputs_at(),
                  kind.mixed(), tail + std::int64_t{i} * kind.mixed());
  }
}

// The short gated convolution of a layer.
void Forward::convolve(Member& member, int layer, int number, Turn turn) {
  const StateShape& kind = shape_.state(layer, number);
  const int part = shape_.layer(layer).first_state + number;
  const StateWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)]
                              .states[static_cast<std::size_t>(number)];
  const int rows = plan_.rows;
  member.enter(Part::Queries);
  project_pieces(member, w.before,
                 {{&w.in[0], w.in_bias[0], 0},
                  {&w.in[1], w.in_bias[1], width_},
                  {&w.in[2], w.in_bias[2], 2 * width_}});
  member.enter(Part::Attend);
  member.phase(rows, [&](int row) {
    const float* made = recalled_ + row * recall_stride_;
    float* record = made_records_ + row * record_stride_;
    for (int i = 0; i < width_; ++i) record[i] = made[i] * made[2 * width_ + i];
  });
  member.phase(rows, [&](int row) {
    float* made = recalled_ + row * recall_stride_;
    convolve_row(part, kind, w, row, made);
    for (int i = 0; i < width_; ++i) made[i] *= made[width_ + i];
  });
  keep_records(member, part, kind);
  member.enter(Part::Output);
  const int step = chunk_units(w.out.panels, model_.team_->size());
  with_input(
      member, rows, width_, needs({w.out.format}),
      [&](int row, float*) { return recalled_ + row * recall_stride_; },
      (w.out.panels + step - 1) / step * blocks_of(rows),
      product(w.out, w.out_bias, step, target(w.after, turn)));
  close(member, layer, w.after, turn);
}

}  // namespace paradecode
