// Parts whose records are states: LSTM, GRU and sLSTM, Mamba-1 and RG-LRU.
#include <cmath>

#include "forward_products.hpp"

namespace paradecode {
namespace {

// Units that a member steps through all rows of a span, if no weights are between them: their
// states stay in the first-level cache meanwhile.
constexpr int kSlice = 256;

int slices(const StateShape& kind) {
  return kind.dense() ? kind.heads : (kind.units() + kSlice - 1) / kSlice;
}

}  // namespace

// Where what such a part reads lies in a row of `recalled_`: the gates, or the input of the
// convolution and what it makes of it.
struct Forward::Stepped {
  explicit Stepped(const StateShape& kind)
      : z(round_up((kind.width > 0 ? 1 : kind.gates()) * kind.units(), kGroup)),
        inner(z + (kind.width > 0 ? round_up(kind.units(), kGroup) : 0)),
        steps(inner + round_up(kind.decay_rank + 2 * kind.key_dim, kGroup)),
        end(steps + (kind.cell == Cell::Scan ? round_up(kind.units(), kGroup) : 0)) {}
  int z, inner, steps, end;
};

int Forward::step_width(const StateShape& kind) { return Stepped(kind).end; }

void Forward::step(Member& member, int layer, int number, Turn turn) {
  const StateShape& kind = shape_.state(layer, number);
  const int part = shape_.layer(layer).first_state + number;
  const StateWeights& w = model_.weights_.layers[static_cast<std::size_t>(layer)]
                              .states[static_cast<std::size_t>(number)];
  const Stepped at(kind);
  const int rows = plan_.rows;
  const bool scans = kind.cell == Cell::Scan;
  member.enter(Part::Queries);
  const Matrix none;
  project_pieces(member, w.before,
                 {{&w.in[0], w.in_bias[0], 0}, {kind.width > 0 ? &w.z : &none, w.z_bias, at.z}});
  if (kind.width > 0) {
    member.enter(Part::Rotate);
    const Activation gate = scans ? Activation::Silu : Activation::GeluTanh;
    member.phase(rows, [&](int row) {
      float* made = recalled_ + row * recall_stride_;
      std::copy_n(made, kind.mixed(), made_records_ + row * record_stride_ + kind.inputs_at());
      kernels_.activate[static_cast<int>(gate)](made + at.z, nullptr, kind.units());
    });
    member.phase(rows, [&](int row) {
      float* made = recalled_ + row * recall_stride_;
      convolve_row(part, kind, w, row, made);
      if (scans) kernels_.activate[static_cast<int>(Activation::Silu)](made, nullptr, kind.units());
    });
  }
  if (scans) project_steps(member, kind, w, at);
  member.enter(Part::Attend);
  member.phase(static_cast<int>(lineage_.size()) * slices(kind), [&](int chunk) {
    step_units(own_of(member), part, kind, w, at,
               lineage_[static_cast<std::size_t>(chunk / slices(kind))], chunk % slices(kind));
  });
  keep_records(member, part, kind);
  member.enter(Part::Output);
  const int step = chunk_units(w.out.panels, model_.team_->size());
  with_input(
      member, rows, round_up(kind.heads * kind.value_dim, kGroup), needs({w.out.format}),
      [&](int row, float* out) {
        finish_cells(kind, at, row, out);
        return out;
      },
      (w.out.panels + step - 1) / step * blocks_of(rows),
      product(w.out, w.out_bias, step, target(w.after, turn)));
  close(member, layer, w.after, turn);
}

// Steps, keys and queries of Mamba-1, from what its convolution makes.
void Forward::project_steps(Member& member, const StateShape& kind, const StateWeights& w,
                            const Stepped& at) {
  const auto multiply = [&](const Matrix& weight, const float* bias, int width, int to, auto fill) {
    const int units = weight.panels / 2;
    with_input(member, plan_.rows, width, needs({weight.format}), fill,
               units * blocks_of(plan_.rows), [&](int chunk, const Activations& input) {
                 const int row = chunk / units * kRowBlock;
                 const int unit = chunk % units;
                 kernels_.matmul(weight, 2 * unit, 2, input, row, block_rows(chunk / units),
                                 recalled_ + row * recall_stride_ + to + unit * kGroup,
                                 recall_stride_, bias == nullptr ? nullptr : bias + unit * kGroup,
                                 false);
               });
  };
  multiply(w.b, nullptr, round_up(kind.value_dim, kGroup), at.inner,
           [&](int row, float*) { return recalled_ + row * recall_stride_; });
  const int width = round_up(kind.decay_rank, kGroup);
  multiply(w.a, w.dt_bias, width, at.steps, [&](int row, float* out) {
    std::copy_n(recalled_ + row * recall_stride_ + at.inner, kind.decay_rank, out);
    std::fill(out + kind.decay_rank, out + width, 0.0F);
    if (kind.inner_norm) norm_inner(out, w.inner_norms[0], kind.decay_rank);
    return out;
  });
}

// Multiplies values by the inverse root of their mean square, and by gains.
void Forward::norm_inner(float* values, const float* gain, int size) const {
  float squares = 0;
  const float* others = values;
  kernels_.dots(values, &others, 1, size, &squares);
  const float scale = 1.0F / std::sqrt(squares / static_cast<float>(size) + shape_.norm_epsilon);
  for (int i = 0; i < size; ++i) values[i] = values[i] * scale * gain[i];
}

// Some units of all rows of a span: a row reads the state of the row before it on its path.
void Forward::step_units(Model::Workspace::Member& own, int part, const StateShape& kind,
                         const StateWeights& w, const Stepped& at, const SpanLineage& span,
                         int slice) const {
  const int size = kind.dense() ? kind.padded_block() : kSlice;
  const int first = slice * size;
  const int units = kind.units();
  CellStep step;
  step.count = std::min(size, units - first);
  step.in_stride = step.state_stride = units;
  step.inner_stride = step.count;
  step.numbers = kind.numbers();
  float* nothing = own.starts.data();
  float* gates = own.factors.data();
  const bool scans = kind.cell == Cell::Scan;
  for (const std::int32_t row : span.order) {
    const int depth = span.depth(row);
    const int packed = span.first_row + row;
    float* made = recalled_ + packed * recall_stride_;
    const std::int32_t parent = depth > 0 ? span.path(row)[depth - 1] : -1;
    const float* before = parent >= 0       ? record_of(part, span, parent)
                          : span.state >= 0 ? model_.states_.state(part, span.state)
                                            : nullptr;
    if (before != nullptr && parent < static_cast<std::int32_t>(span.cached.size()))
      count_bytes(static_cast<std::size_t>(step.count * step.numbers) * sizeof(float));
    if (before == nullptr && kind.cell != Cell::Unit) {
      std::fill_n(nothing, kind.kept(), 0.0F);
      before = nothing;
    }
    step.before = before == nullptr ? nullptr : before + first;
    step.after = made_records_ + packed * record_stride_ + first;
    step.in = made + first;
    step.inner = gates;
    if (scans) {
      const float* inner = made + at.inner + kind.decay_rank;
      step.keys = inner;
      step.queries = inner + kind.key_dim;
      if (kind.inner_norm) {
        std::copy_n(inner, 2 * kind.key_dim, gates);
        norm_inner(gates, w.inner_norms[1], kind.key_dim);
        norm_inner(gates + kind.key_dim, w.inner_norms[2], kind.key_dim);
        step.keys = gates;
        step.queries = gates + kind.key_dim;
      }
      step.inner = made + at.steps + first;
      step.decay = w.turned_decay + first;
      step.weight = w.skip + first;
      step.out = made + first;
    } else {
      step.weight = w.decay == nullptr ? nullptr : w.decay + first;
      read_gates(own, kind, w, kind.cell == Cell::Unit ? step.in : step.before, first, step.count,
                 gates);
    }
    kernels_.cells[static_cast<int>(kind.cell) - 1](step);
  }
}

// What units give to the gates of the units from `first` on: [gates, count].
void Forward::read_gates(Model::Workspace::Member& own, const StateShape& kind,
                         const StateWeights& w, const float* by, int first, int count,
                         float* out) const {
  const int units = kind.units();
  const bool apart = kind.cell == Cell::Unit;
  for (int gate = 0; gate < kind.gates(); ++gate, out += count) {
    const int in = apart ? 0 : gate;
    const float* bias = w.inner_bias[apart ? gate : 0];
    const float* weights = w.inner[apart ? gate : 0];
    if (bias != nullptr)
      std::copy_n(bias + in * units + first, count, out);
    else
      std::fill_n(out, count, 0.0F);
    if (!kind.dense()) {
      for (int i = 0; i < count; ++i) out[i] += weights[in * units + first + i] * by[i];
      continue;
    }
    const int size = kind.block();
    const float* block = weights + (std::int64_t{in} * units + first) * size;
    for (int k = 0; k < size; ++k) own.pointers.data()[k] = block + std::int64_t{k} * count;
    kernels_.add_rows(own.pointers.data(), size, {by, 0, 1}, count, &out, 1);
  }
}

// The outputs of all units of a row, with their gate, as the output projection reads them.
void Forward::finish_cells(const StateShape& kind, const Stepped& at, int row, float* out) const {
  const float* made = recalled_ + row * recall_stride_;
  const float* values = kind.cell == Cell::Scan ? made : made_records_ + row * record_stride_;
  const int size = kind.block();
  const int all = kind.heads * kind.value_dim;
  for (int unit = 0; unit < all; ++unit) {
    const int from = unit / size * kind.padded_block() + unit % size;
    out[unit] = kind.width > 0 ? values[from] * made[at.z + from] : values[from];
  }
  std::fill(out + all, out + round_up(all, kGroup), 0.0F);
}

}  // namespace paradecode
