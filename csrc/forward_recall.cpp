// The heads of layers whose state is a matrix for each head.
#include <cmath>

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
    float* made = recalled_ + row * recall_stride_;
    float* inputs = made_records_ + row * record_stride_ + kind.inputs_at();
    if (kind.scales()) scale_heads(kind, at, made);
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
      product(w.out, w.out_bias, step, target(w.after, turn)));
  close(member, layer, w.after, turn);
}

// Multiplies what the matrices made of a row by the factors of the part.
void Forward::scale_heads(const StateShape& kind, const Recalled& at, float* made) const {
  const int starts[] = {0, at.k, at.v, at.z, at.a, at.b};
  for (std::size_t i = 0; i + 1 < kind.factors.size(); ++i)
    for (int k = starts[i]; k < starts[i + 1]; ++k) made[k] *= kind.factors[i];
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
    strength *= kind.factors.back();
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

// One head of a span's rows. Rows that begin with one state read it together.
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
  float** sums = own.sums.data();
  float* factors = own.factors.data();
  float* decayed = factors + std::int64_t{2 * kReaders} * std::max(n, kPage);
  const auto key = [&](const float* record) { return record + group * n; };
  const auto fresh = [&](const float* record) { return record + keys + head * p; };
  // Multiplies keys by what is left of them between two sums of decays.
  const auto fade = [&](const float* by, const float* since, const float* until, float* out) {
    const auto left = [&](int i) {
      return static_cast<float>(
          exact_exp(since == nullptr ? double{until[i]} : double{until[i] - since[i]}));
    };
    const float all = kind.channels ? 0.0F : left(0);
    for (int i = 0; i < n; ++i) out[i] = by[i] * (kind.channels ? left(i) : all);
  };

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
    const float* last = record_of(part, span, start.columns[kPage - 1]) + c_at;
    for (int j = 0; j < kPage; ++j) {
      const float* record = record_of(part, span, start.columns[j]);
      fade(key(record), record + c_at, last, factors + j * n);
      rows[j] = fresh(record);
    }
    float all = static_cast<float>(exact_exp(double{last[0]}));
    for (int i = 0; i < n; ++i) {
      if (kind.channels) all = static_cast<float>(exact_exp(double{last[i]}));
      sums[i] = state + std::int64_t{i} * p;
      for (int k = 0; k < p; ++k) sums[i][k] = all * before[std::int64_t{i} * p + k];
    }
    kernels_.add_rows(rows, kPage, {factors, 1, n}, p, sums, n);
    starts[index] = state;
  };

  std::vector<std::size_t> waiting;
  const auto reach = [&](std::size_t index) {
    for (; starts[index] == nullptr; index = static_cast<std::size_t>(span.starts[index].parent))
      waiting.push_back(index);
    for (; !waiting.empty(); waiting.pop_back()) advance(waiting.back());
  };

  // What rows read of the state with which their page begins, before what is fresh in the page.
  const auto read = [&](std::size_t begin, std::size_t end, const float* state) {
    int count = 0;
    const auto add = [&](const float* by, const float* total, float* out) {
      std::fill_n(out, p, 0.0F);
      fade(by, nullptr, total, factors + count * n);
      sums[count++] = out;
    };
    for (std::size_t i = begin; i < end; ++i) {
      const std::int64_t row = span.first_row + span.order[i];
      float* record = made_records_ + row * record_stride_;
      float* made = recalled_ + row * recall_stride_;
      if (kind.delta) add(key(record), record + c_at, record + keys + head * p);
      add(made + group * n, record + c_at, made + at.y + head * p);
    }
    for (int i = 0; i < n; ++i) rows[i] = state + std::int64_t{i} * p;
    kernels_.add_rows(rows, n, {factors, n, 1}, p, sums, count);
  };

  const auto finish = [&](std::int32_t row) {
    float* made = recalled_ + (span.first_row + row) * recall_stride_;
    float* record = made_records_ + (span.first_row + row) * record_stride_;
    const float* total = record + c_at;
    const int depth = span.depth(row);
    const int ours = depth % kPage;
    const float* others[kPage];
    const float* their_keys[kPage];
    float left[kPage];
    for (int j = 0; j < ours; ++j) {
      others[j] = record_of(part, span, span.path(row)[depth - ours + j]);
      their_keys[j] = key(others[j]);
      rows[j] = fresh(others[j]);
      if (!kind.channels)
        left[j] = static_cast<float>(exact_exp(double{total[0] - others[j][c_at]}));
    }
    const auto add = [&](const float* by, float* out) {
      if (!kind.channels) kernels_.dots(by, their_keys, ours, n, factors);
      for (int j = 0; j < ours; ++j) {
        if (!kind.channels) {
          factors[j] *= left[j];
          continue;
        }
        fade(by, others[j] + c_at, total, decayed);
        factors[j] = dot(kernels_, decayed, their_keys[j], n);
      }
      kernels_.add_rows(rows, ours, {factors, 0, 1}, p, &out, 1);
    };
    const float* value = made + at.v + head * p;
    const float strength = made[at.b + head];
    float* u = record + keys + head * p;
    if (kind.delta) {
      add(key(record), u);
      for (int k = 0; k < p; ++k) u[k] = strength * (value[k] - u[k]);
    } else {
      for (int k = 0; k < p; ++k) u[k] = strength * value[k];
    }
    const float* query = made + group * n;
    float* y = made + at.y + head * p;
    add(query, y);
    const float near = dot(kernels_, query, key(record), n);
    const float more = kind.skip ? w.skip[head] : 0.0F;
    for (int k = 0; k < p; ++k) y[k] += near * u[k];
    for (int k = 0; kind.skip && k < p; ++k) y[k] += more * value[k];
  };

  for (std::size_t begin = 0; begin < span.order.size();) {
    const auto start_of = [&](std::size_t i) {
      return static_cast<std::size_t>(span.start[static_cast<std::size_t>(span.order[i])]);
    };
    const std::size_t start = start_of(begin);
    std::size_t end = begin + 1;
    while (end < std::min(span.order.size(), begin + kReaders) && start_of(end) == start) ++end;
    reach(start);
    read(begin, end, starts[start]);
    for (; begin < end; ++begin) finish(span.order[begin]);
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
               kind.out_epsilon > 0 ? kind.out_epsilon : shape_.norm_epsilon);
  }
  for (int head = 0; kind.gate == Gate::After && head < kind.heads; ++head)
    for (int i = 0; i < size; ++i) out[head * size + i] *= gate(head, i);
  std::fill(out + all, out + round_up(all, kGroup), 0.0F);
}

}  // namespace paradecode
