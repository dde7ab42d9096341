// Layers with a state: short convolutions, and heads with a matrix as their state.
#include <cmath>
#include <cstring>

#include "exact.hpp"
#include "forward_products.hpp"

namespace paradecode {
namespace {

double softplus(double x) { return x > 30 ? x : exact_log(1 + exact_exp(x)); }

float dot(const Kernels& kernels, const float* a, const float* b, int size) {
  float out = 0;
  kernels.dots(a, &b, 1, size, &out);
  return out;
}

// Multiplies values by the inverse root of their mean square, and by gains.
void norm_group(const Kernels& kernels, float* values, const float* gain, int size, float epsilon) {
  const float scale =
      1.0F / std::sqrt(dot(kernels, values, values, size) / static_cast<float>(size) + epsilon);
  for (int i = 0; i < size; ++i) values[i] = values[i] * scale * gain[i];
}

}  // namespace

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
    record_stride_ = std::max(record_stride_, kind.record_numbers());
    if (kind.cell != Cell::None) {
      recall_stride_ = std::max(recall_stride_, std::int64_t{step_width(kind)});
      matrix = std::max(matrix, std::int64_t{kind.kept()});
      queue = std::max({queue, kind.block(), 2 * kind.padded_block(), kind.key_dim});
      widest = std::max({widest, round_up(kind.heads * kind.value_dim, kGroup),
                         round_up(kind.decay_rank, kGroup)});
      continue;
    }
    const int wide = kind.heads == 0
                         ? 3 * width_
                         : 3 * round_up(kind.keys(), kGroup) + 3 * round_up(kind.values(), kGroup) +
                               2 * round_up(kind.decays(), kGroup) + round_up(kind.heads, kGroup) +
                               round_up(kind.decay_rank, kGroup);
    recall_stride_ = std::max(recall_stride_, std::int64_t{wide});
    matrix = std::max(matrix, std::int64_t{kind.key_dim} * kind.padded_value());
    queue = std::max(queue, kind.key_dim);
    widest = std::max(
        {widest, round_up(kind.heads * kind.value_dim, kGroup), round_up(kind.decay_rank, kGroup)});
  }
  recalled_ = space_.recalled.need(count(plan_.rows, recall_stride_));
  made_records_ = space_.records.need(count(plan_.rows, record_stride_));
  for (auto& member : space_.members) {
    member.starts.need(starts * static_cast<std::size_t>(matrix));
    member.pointers.need(static_cast<std::size_t>(queue + kPage + 2));
    member.factors.need(static_cast<std::size_t>(2 * queue + kPage + 2));
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
  member.phase(static_cast<int>(lineage_.size()), [&](int index) {
    const SpanLineage& span = lineage_[static_cast<std::size_t>(index)];
    const auto numbers = static_cast<std::size_t>(kind.record_numbers());
    for (int row = 0; row < span.rows; ++row) {
      const std::int64_t target = span.targets[static_cast<std::size_t>(row)];
      if (target < 0) continue;
      std::copy_n(made_records_ + (span.first_row + row) * record_stride_, numbers,
                  model_.states_.record(part, target));
      count_bytes(numbers * sizeof(float));
    }
    const int past = kind.width > 0 ? kind.width - 1 : 0;
    for (const SpanLineage::Write& write : span.writes) {
      float* tail = model_.states_.state(part, write.slot) + kind.tail_at();
      const SpanLineage::Start& start = span.starts[static_cast<std::size_t>(write.start)];
      if (kind.cell != Cell::None) {
        std::copy_n(record_of(part, span, start.columns[kPage - 1]), kind.kept(),
                    model_.states_.state(part, write.slot));
        count_bytes(static_cast<std::size_t>(kind.kept()) * sizeof(float));
      }
      for (int i = 0; i < past; ++i)
        std::copy_n(record_of(part, span, start.columns[kPage - past + i]) + kind.inputs_at(),
                    kind.mixed(), tail + std::int64_t{i} * kind.mixed());
    }
  });
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
      product(w.out, w.out_bias, step, target(layer, w.after, turn.first)));
  close(member, layer, w.after, turn);
}

// Where what a recurrence reads lies in a row of `recalled_`.
struct Forward::Recalled {
  explicit Recalled(const StateShape& kind)
      : k(round_up(kind.keys(), kGroup)),
        v(2 * k),
        z(v + round_up(kind.values(), kGroup)),
        a(z + round_up(kind.values(), kGroup)),
        b(a + round_up(kind.decays(), kGroup)),
        y(b + round_up(kind.heads, kGroup)) {}
  int k, v, z, a, b, y;
};

// The heads of a recurrence.
void Forward::recall(Member& member, int layer, int number, Turn turn) {
  const StateShape& kind = shape_.state(layer, number);
  const int part = shape_.layer(layer).first_state + number;
  const StateWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)]
                              .states[static_cast<std::size_t>(number)];
  const Recalled at(kind);
  const int rows = plan_.rows;
  member.enter(Part::Queries);
  const Matrix none;
  const bool ranked = kind.decay_rank > 0;
  const auto given = [&](const Matrix& weight) { return weight.data == nullptr ? &none : &weight; };
  project_pieces(member, w.before,
                 {{&w.in[0], w.in_bias[0], 0},
                  {&w.in[1], w.in_bias[1], at.k},
                  {&w.in[2], w.in_bias[2], at.v},
                  {given(w.z), w.z_bias, at.z},
                  {ranked ? &none : given(w.a), nullptr, at.a},
                  {given(w.b), nullptr, at.b}});
  if (ranked) project_ranked_decays(member, w, kind, at);
  member.enter(Part::Rotate);
  member.phase(rows, [&](int row) {
    const float* made = recalled_ + row * recall_stride_;
    float* inputs = made_records_ + row * record_stride_ + kind.inputs_at();
    if (kind.width == 0) return;
    std::copy_n(made, kind.keys(), inputs);
    std::copy_n(made + at.k, kind.keys(), inputs + kind.keys());
    std::copy_n(made + at.v, kind.values(), inputs + 2 * kind.keys());
  });
  member.phase(rows, [&](int row) { prepare_heads(own_of(member), part, kind, w, at, row); });
  member.phase(static_cast<int>(lineage_.size()), [&](int index) {
    add_decays(part, kind, lineage_[static_cast<std::size_t>(index)]);
  });
  member.enter(Part::Attend);
  member.phase(static_cast<int>(lineage_.size()) * kind.heads, [&](int chunk) {
    run_head(own_of(member), part, kind, w, at,
             lineage_[static_cast<std::size_t>(chunk / kind.heads)], chunk % kind.heads);
  });
  keep_records(member, part, kind);
  member.enter(Part::Output);
  const int step = chunk_units(w.out.panels, model_.team_->size());
  with_input(
      member, rows, round_up(kind.heads * kind.value_dim, kGroup), needs({w.out.format}),
      [&](int row, float* out) {
        finish_heads(kind, w, at, row, out);
        return out;
      },
      (w.out.panels + step - 1) / step * blocks_of(rows),
      product(w.out, w.out_bias, step, target(layer, w.after, turn.first)));
  close(member, layer, w.after, turn);
}

// Decays of what `a_down` makes.
void Forward::project_ranked_decays(Member& member, const StateWeights& w, const StateShape& kind,
                                    const Recalled& at) {
  project_pieces(member, w.before, {{&w.a_down, nullptr, at.y}});
  const int width = round_up(kind.decay_rank, kGroup);
  const int units = w.a.panels / 2;
  with_input(
      member, plan_.rows, width, needs({w.a.format}),
      [&](int row, float*) { return recalled_ + row * recall_stride_ + at.y; },
      units * blocks_of(plan_.rows),
      [&](int chunk, const Activations& input) {
        const int row = chunk / units * kRowBlock;
        kernels_.matmul(w.a, 2 * (chunk % units), 2, input, row, block_rows(chunk / units),
                        recalled_ + row * recall_stride_ + at.a + chunk % units * kGroup,
                        recall_stride_, nullptr, false);
      });
}

// Brings q, k and v of a row behind their convolution, its own log decay, and its strengths.
void Forward::prepare_heads(Model::Workspace::Member& own, int part, const StateShape& kind,
                            const StateWeights& w, const Recalled& at, int row) const {
  float* made = recalled_ + row * recall_stride_;
  float* record = made_records_ + row * record_stride_;
  const int keys = kind.keys();
  if (kind.width > 0) {
    float* mixed = own.row.need(count(1, round_up(kind.mixed(), kLanes)));
    convolve_row(part, kind, w, row, mixed);
    std::fill(mixed + kind.mixed(), mixed + round_up(kind.mixed(), kLanes), 0.0F);
    kernels_.activate[static_cast<int>(Activation::Silu)](mixed, nullptr,
                                                          round_up(kind.mixed(), kLanes));
    std::copy_n(mixed, keys, made);
    std::copy_n(mixed + keys, keys, made + at.k);
    std::copy_n(mixed + 2 * keys, kind.values(), made + at.v);
  }
  for (int head = 0; kind.unit && head < kind.key_heads; ++head)
    for (float* values : {made + head * kind.key_dim, made + at.k + head * kind.key_dim}) {
      const float length = 1.0F / std::sqrt(dot(kernels_, values, values, kind.key_dim) + 1e-6F);
      for (int n = 0; n < kind.key_dim; ++n) values[n] *= length;
    }
  for (int i = 0; i < keys; ++i) made[i] *= kind.scale;
  std::copy_n(made + at.k, keys, record);
  float* falls = record + keys + kind.values();
  for (int i = 0; i < kind.decays(); ++i) {
    const int head = kind.channels ? i * kind.heads / keys : i;
    const double asked =
        kind.decay == Decay::Fixed ? 0.0 : double{made[at.a + i]} + double{w.dt_bias[i]};
    if (kind.decay == Decay::Fixed) {
      falls[i] = w.decay[head];
    } else if (kind.decay == Decay::LogSigmoid) {
      falls[i] = static_cast<float>(-softplus(-asked)) / kind.decay_divisor;
    } else {
      const float step =
          std::min(std::max(static_cast<float>(softplus(asked)), kind.least_step), kind.most_step);
      falls[i] = step * w.decay[head];
      if (kind.strength == Strength::Step) made[at.b + i] = step;
    }
  }
  for (int head = 0; head < kind.heads; ++head) {
    float& strength = made[at.b + head];
    if (kind.strength == Strength::One) strength = 1.0F;
    if (kind.strength == Strength::Sigmoid)
      strength = static_cast<float>(1.0 / (1.0 + exact_exp(-double{strength})));
  }
  if (kind.gate != Gate::None)
    kernels_.activate[static_cast<int>(Activation::Silu)](made + at.z, nullptr,
                                                          round_up(kind.values(), kLanes));
}

// Makes of each row's own log decay the sum since the start of its page.
void Forward::add_decays(int part, const StateShape& kind, const SpanLineage& span) const {
  const int at = kind.keys() + kind.values();
  for (const std::int32_t row : span.order) {
    const int depth = span.depth(row);
    if (depth % kPage == 0) continue;
    const float* before = record_of(part, span, span.path(row)[depth - 1]) + at;
    float* own = made_records_ + (span.first_row + row) * record_stride_ + at;
    for (int i = 0; i < kind.decays(); ++i) own[i] = before[i] + own[i];
  }
}

// One head of all rows of a span: its states stay in the cache meanwhile.
void Forward::run_head(Model::Workspace::Member& own, int part, const StateShape& kind,
                       const StateWeights& w, const Recalled& at, const SpanLineage& span,
                       int head) const {
  const int n = kind.key_dim;
  const int p = kind.padded_value();
  const int group = kind.tiled ? head % kind.key_heads : head / (kind.heads / kind.key_heads);
  const std::int64_t matrix = std::int64_t{n} * p;
  const int keys = kind.keys();
  const int c_at = keys + kind.values() + (kind.channels ? group * n : head);
  std::vector<const float*> starts(span.starts.size());
  float* scratch = own.starts.data();
  const float** rows = own.pointers.data();
  float* factors = own.factors.data();
  float* decayed = factors + n + kPage + 2;
  const auto key = [&](const float* record) { return record + group * n; };
  const auto fresh = [&](const float* record) { return record + keys + head * p; };

  if (span.state >= 0) {
    starts[0] = model_.states_.state(part, span.state) + head * matrix;
    count_bytes(static_cast<std::size_t>(matrix) * sizeof(float));
  } else {
    std::fill_n(scratch, matrix, 0.0F);
    starts[0] = scratch;
  }
  // The state behind the 16 columns of a page.
  const auto advance = [&](std::size_t index) {
    const SpanLineage::Start& start = span.starts[index];
    const float* before = starts[static_cast<std::size_t>(start.parent)];
    float* state = scratch + static_cast<std::int64_t>(index) * matrix;
    const float* records[kPage];
    float left[kPage];
    for (int j = 0; j < kPage; ++j) records[j] = record_of(part, span, start.columns[j]);
    const float* last = records[kPage - 1] + c_at;
    for (int j = 0; j < kPage; ++j) {
      left[j] = static_cast<float>(exact_exp(double{last[0] - records[j][c_at]}));
      rows[j] = fresh(records[j]);
    }
    float all = static_cast<float>(exact_exp(double{last[0]}));
    for (int i = 0; i < n; ++i) {
      if (kind.channels) all = static_cast<float>(exact_exp(double{last[i]}));
      for (int j = 0; j < kPage; ++j) {
        if (kind.channels)
          left[j] = static_cast<float>(exact_exp(double{last[i] - records[j][c_at + i]}));
        factors[j] = key(records[j])[i] * left[j];
      }
      float* out = state + std::int64_t{i} * p;
      for (int k = 0; k < p; ++k) out[k] = all * before[std::int64_t{i} * p + k];
      kernels_.add_rows(rows, factors, kPage, p, out);
    }
    starts[index] = state;
  };

  std::vector<std::size_t> waiting;
  const auto reach = [&](std::size_t index) {
    for (; starts[index] == nullptr; index = static_cast<std::size_t>(span.starts[index].parent))
      waiting.push_back(index);
    for (; !waiting.empty(); waiting.pop_back()) advance(waiting.back());
  };

  for (const std::int32_t row : span.order) {
    const auto start = static_cast<std::size_t>(span.start[static_cast<std::size_t>(row)]);
    reach(start);
    const float* made = recalled_ + (span.first_row + row) * recall_stride_;
    float* record = made_records_ + (span.first_row + row) * record_stride_;
    const int depth = span.depth(row);
    const int ours = depth % kPage;
    const std::int32_t* columns = span.path(row) + depth - ours;
    const float* total = record + c_at;
    // What a vector of keys reads of the state and of the rows before.
    const auto read = [&](const float* by, float* out) {
      const float all = static_cast<float>(exact_exp(double{total[0]}));
      for (int i = 0; i < n; ++i) {
        const float fall = kind.channels ? static_cast<float>(exact_exp(double{total[i]})) : all;
        factors[i] = by[i] * fall;
        rows[i] = starts[start] + std::int64_t{i} * p;
      }
      const float* others[kPage];
      const float* their_keys[kPage];
      for (int j = 0; j < ours; ++j) {
        others[j] = record_of(part, span, columns[j]);
        their_keys[j] = key(others[j]);
        rows[n + j] = fresh(others[j]);
      }
      if (!kind.channels) kernels_.dots(by, their_keys, ours, n, factors + n);
      for (int j = 0; j < ours; ++j) {
        const float* other = others[j] + c_at;
        if (!kind.channels) {
          factors[n + j] *= static_cast<float>(exact_exp(double{total[0] - other[0]}));
          continue;
        }
        for (int i = 0; i < n; ++i)
          decayed[i] = by[i] * static_cast<float>(exact_exp(double{total[i] - other[i]}));
        factors[n + j] = dot(kernels_, decayed, their_keys[j], n);
      }
      kernels_.add_rows(rows, factors, n + ours, p, out);
    };
    const float* value = made + at.v + head * p;
    const float strength = made[at.b + head];
    float* u = record + keys + head * p;
    float* y = recalled_ + (span.first_row + row) * recall_stride_ + at.y + head * p;
    if (kind.delta) {
      std::fill_n(y, p, 0.0F);
      read(key(record), y);
      for (int k = 0; k < p; ++k) u[k] = strength * (value[k] - y[k]);
    } else {
      for (int k = 0; k < p; ++k) u[k] = strength * value[k];
    }
    const float* query = made + group * n;
    std::fill_n(y, p, 0.0F);
    read(query, y);
    const float near = dot(kernels_, query, key(record), n);
    const float more = kind.skip ? w.skip[head] : 0.0F;
    for (int k = 0; k < p; ++k) y[k] += near * u[k];
    for (int k = 0; kind.skip && k < p; ++k) y[k] += more * value[k];
  }
  for (const SpanLineage::Write& write : span.writes) {
    const auto index = static_cast<std::size_t>(write.start);
    reach(index);
    std::copy_n(starts[index], matrix, model_.states_.state(part, write.slot) + head * matrix);
    count_bytes(static_cast<std::size_t>(matrix) * sizeof(float));
  }
}

// The outputs of all heads of a row, with their gate and norm, as the output projection reads them.
void Forward::finish_heads(const StateShape& kind, const StateWeights& w, const Recalled& at,
                           int row, float* out) const {
  const float* made = recalled_ + row * recall_stride_;
  const int size = kind.value_dim;
  const int all = kind.heads * size;
  const auto gate = [&](int head, int i) { return made[at.z + head * kind.padded_value() + i]; };
  for (int head = 0; head < kind.heads; ++head)
    for (int i = 0; i < size; ++i) {
      float value = made[at.y + head * kind.padded_value() + i];
      if (kind.gate == Gate::Before) value *= gate(head, i);
      out[head * size + i] = value;
    }
  const int groups = kind.out_norm == OutNorm::Head ? kind.heads : kind.norm_groups;
  for (int group = 0; kind.out_norm != OutNorm::None && group < groups; ++group) {
    const int wide = all / groups;
    norm_group(kernels_, out + group * wide,
               kind.out_norm == OutNorm::Head ? w.gain : w.gain + group * wide, wide,
               shape_.norm_epsilon);
  }
  for (int head = 0; kind.gate == Gate::After && head < kind.heads; ++head)
    for (int i = 0; i < size; ++i) out[head * size + i] *= gate(head, i);
  std::fill(out + all, out + round_up(all, kGroup), 0.0F);
}

}  // namespace paradecode
