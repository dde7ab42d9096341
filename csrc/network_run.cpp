#include "network_run.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "exact.hpp"
#include "pack.hpp"

namespace paradecode {
namespace {

// The number of rows in a chunk of a product.
constexpr int kRowBlock = 64;
// The number of chunks of a product with which each thread starts.
constexpr int kShare = 4;

float sigmoid(float x) { return static_cast<float>(1.0 / (1.0 + exact_exp(-x))); }

template <class Each>
void elementwise(const float* x, int width, float* out, Each each) {
  for (int c = 0; c < width; ++c) out[c] = each(x[c]);
}

// y has as many numbers as x, or a single one.
template <class Each>
void pairwise(const float* x, const float* y, int width, int other, float* out, Each each) {
  if (other == 1)
    for (int c = 0; c < width; ++c) out[c] = each(x[c], y[0]);
  else
    for (int c = 0; c < width; ++c) out[c] = each(x[c], y[c]);
}

// Adds into four sums that do not wait for one another.
template <class Each>
double sum_of(const float* x, int width, Each each) {
  double sums[4] = {};
  int c = 0;
  for (; c + 4 <= width; c += 4)
    for (int i = 0; i < 4; ++i) sums[i] += each(static_cast<double>(x[c + i]));
  for (; c < width; ++c) sums[0] += each(static_cast<double>(x[c]));
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Computes cosines and sines of the angles by which vectors of `size` numbers are rotated: [rows,
// size / 2].
struct Angles {
  std::vector<float> cosines;
  std::vector<float> sines;

  Angles(const std::int64_t* positions, std::int64_t rows, int size, float theta) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (int i = 0; i < size / 2; ++i) {
        const double frequency = exact_exp(-2.0 * i / size * exact_log(theta));
        float cosine = 0;
        float sine = 0;
        exact_turn(static_cast<float>(static_cast<double>(positions[r]) * frequency), cosine, sine);
        cosines.push_back(cosine);
        sines.push_back(sine);
      }
  }
};

// Returns the rotated vectors of one head: float32 [rows, size].
void rotate(const float* x, const Angles& angles, std::int64_t rows, std::int64_t stride, int size,
            float* out) {
  const int half = size / 2;
  for (std::int64_t r = 0; r < rows; ++r)
    for (int i = 0; i < half; ++i) {
      const float cosine = angles.cosines[static_cast<std::size_t>(r * half + i)];
      const float sine = angles.sines[static_cast<std::size_t>(r * half + i)];
      const float a = x[r * stride + i];
      const float b = x[r * stride + half + i];
      out[r * size + i] = a * cosine - b * sine;
      out[r * size + half + i] = b * cosine + a * sine;
    }
}

}  // namespace

NetworkRun::NetworkRun(const Network& network, int threads)
    : network_(network),
      kernels_(*network.isa_.kernels),
      threads_(threads),
      values_(network.widths_.size()),
      ids_(static_cast<std::size_t>(network.inputs_)),
      chunks_(network.stages_.size() / 2) {
  for (std::size_t i = 0; i < values_.size(); ++i)
    values_[i].stride = round_up(network.widths_[i], kGroup);
}

void NetworkRun::begin(int rows, std::vector<std::int64_t> ends) {
  rows_ = rows;
  ends_ = std::move(ends);
  for (std::size_t i = 0; i < values_.size(); ++i) {
    Value& value = values_[i];
    value.stride = round_up(network_.widths_[i], kGroup);
    if (value.stride > 0)
      value.rows = value.own.need(static_cast<std::size_t>(rows * value.stride));
    else
      ids_[i].resize(static_cast<std::size_t>(rows));
  }
  for (std::size_t stage = 0; stage < network_.stages_.size(); ++stage) {
    if (stage % 2 == 1) divide(static_cast<int>(stage));
    for (const int value : network_.stages_[stage].multiplied) {
      Value& read = values_[static_cast<std::size_t>(value)];
      read.prepared.shape(rows, static_cast<int>(read.stride));
    }
  }
}

void NetworkRun::write_to(float* out, std::int64_t stride) {
  values_.back().rows = out;
  values_.back().stride = stride;
}

void NetworkRun::divide(int stage) {
  std::vector<Chunk>& chunks = chunks_[static_cast<std::size_t>(stage / 2)];
  chunks.clear();
  for (const int index : network_.stages_[static_cast<std::size_t>(stage)].steps) {
    const NetworkStep& step = network_.steps_[static_cast<std::size_t>(index)];
    if (reads_rows(step.kind)) {
      std::int64_t first = 0;
      for (const std::int64_t end : ends_) {
        chunks.push_back({index, 0, 0, first, end - first});
        first = end;
      }
      continue;
    }
    const Matrix& weight = network_.matrices_[static_cast<std::size_t>(step.tensors[0])];
    const int some =
        threads_ == 1 ? weight.panels : std::max(1, weight.panels / (threads_ * kShare));
    for (int panel = 0; panel < weight.panels; panel += some)
      for (int row = 0; row < rows_; row += kRowBlock)
        chunks.push_back({index, panel, std::min(some, weight.panels - panel), row,
                          std::min(kRowBlock, rows_ - row)});
  }
}

void NetworkRun::whole(const Chunk& chunk) {
  const NetworkStep& step = network_.steps_[static_cast<std::size_t>(chunk.step)];
  const int made = network_.inputs_ + chunk.step;
  float* out = at(made, chunk.row);
  if (step.kind == StepKind::Attention) return attend(step, chunk.row, chunk.rows, out);
  if (step.kind == StepKind::Behind) {
    if (chunk.rows == 0) return;
    const auto width = network_.widths_[static_cast<std::size_t>(made)];
    std::fill_n(out, width, 0.0F);
    for (std::int64_t row = chunk.row + 1; row < chunk.row + chunk.rows; ++row)
      std::copy_n(at(step.values[0], row - 1), width, at(made, row));
    return;
  }
  const Matrix& weight = network_.matrices_[static_cast<std::size_t>(step.tensors[0])];
  kernels_.matmul(weight, chunk.panel, chunk.panels,
                  values_[static_cast<std::size_t>(step.values[0])].prepared.view(),
                  static_cast<int>(chunk.row), static_cast<int>(chunk.rows),
                  out + chunk.panel * kLanes, values_[static_cast<std::size_t>(made)].stride,
                  nullptr, false);
}

void NetworkRun::prepare(int value, int row) {
  const Value& read = values_[static_cast<std::size_t>(value)];
  const Activations& input = read.prepared.view();
  const float* x = at(value, row);
  if (is_integer(network_.format_))
    kernels_.quantise(x, 0, input.width / kGroup, row, input);
  else
    for (int k = 0; k < network_.widths_[static_cast<std::size_t>(value)]; ++k)
      input.values[input.value(row, k)] = x[k];
}

void NetworkRun::compute(int index, int row) {
  const NetworkStep& step = network_.steps_[static_cast<std::size_t>(index)];
  const auto widths = [&](std::size_t i) {
    return network_.widths_[static_cast<std::size_t>(step.values[i])];
  };
  float* to = at(network_.inputs_ + index, row);
  const int width = widths(0);
  if (step.kind == StepKind::Lookup) {
    const auto id = ids_[static_cast<std::size_t>(step.values[0])][static_cast<std::size_t>(row)];
    const Matrix& table = network_.matrices_[static_cast<std::size_t>(step.tensors[0])];
    if (tensor(step, 0).empty()) return unpack_row(table, static_cast<int>(id), to);
    const auto columns = network_.widths_[static_cast<std::size_t>(network_.inputs_ + index)];
    std::memcpy(to, tensor(step, 0).data() + id * columns,
                static_cast<std::size_t>(columns) * sizeof(float));
    return;
  }
  const float* x = at(step.values[0], row);
  const auto by_column = [&](std::size_t i, auto each) {
    pairwise(x, tensor(step, i).data(), width, width, to, each);
  };
  const auto with_other = [&](auto each) {
    pairwise(x, at(step.values[1], row), width, widths(1), to, each);
  };
  switch (step.kind) {
    case StepKind::Standardise: {
      const float* mean = tensor(step, 0).data();
      const float* scale = tensor(step, 1).data();
      for (int c = 0; c < width; ++c) to[c] = (x[c] - mean[c]) * scale[c];
      break;
    }
    case StepKind::Scale: by_column(0, [](float a, float b) { return a * b; }); break;
    case StepKind::Shift: by_column(0, [](float a, float b) { return a + b; }); break;
    case StepKind::Relu: elementwise(x, width, to, [](float a) { return a > 0 ? a : 0.0F; }); break;
    case StepKind::Silu:
      std::copy(x, x + width, to);
      kernels_.activate[static_cast<int>(Activation::Silu)](to, nullptr, round_up(width, kLanes));
      break;
    case StepKind::Sigmoid: elementwise(x, width, to, sigmoid); break;
    case StepKind::Gelu:
      elementwise(x, width, to, [](float a) {
        const float inner = 0.7978845608F * (a + 0.044715F * a * a * a);
        return a * sigmoid(2.0F * inner);  // (1 + tanh x) / 2
      });
      break;
    case StepKind::Rms: {
      const double sum = sum_of(x, width, [](double a) { return a * a; });
      to[0] = static_cast<float>(std::sqrt(sum / width + step.number));
      break;
    }
    case StepKind::Centre: {
      const auto mean = static_cast<float>(sum_of(x, width, [](double a) { return a; }) / width);
      elementwise(x, width, to, [mean](float a) { return a - mean; });
      break;
    }
    case StepKind::Add: with_other([](float a, float b) { return a + b; }); break;
    case StepKind::Multiply: with_other([](float a, float b) { return a * b; }); break;
    case StepKind::Divide: with_other([](float a, float b) { return a / b; }); break;
    case StepKind::Join:
      for (std::size_t i = 0; i < step.values.size(); ++i) {
        const float* part = at(step.values[i], row);
        to = std::copy(part, part + widths(i), to);
      }
      break;
    case StepKind::Part: {
      const float* from = x + static_cast<std::int64_t>(step.number);
      std::copy(from, from + step.count, to);
      break;
    }
    default: break;
  }
}

// Computes the attention of one item. A row adds the rows that it sees in their order.
void NetworkRun::attend(const NetworkStep& step, std::int64_t first, std::int64_t rows,
                        float* out) {
  const int width = network_.widths_[static_cast<std::size_t>(step.values[0])];
  const int size = width / step.count;
  const std::int64_t stride = round_up(width, kGroup);
  const std::int64_t out_stride = values_[static_cast<std::size_t>(&step - network_.steps_.data()) +
                                          static_cast<std::size_t>(network_.inputs_)]
                                      .stride;
  const auto numbers = [&](std::size_t i) { return at(step.values[i], first); };
  const auto whole = [&](std::size_t i) {
    return ids_[static_cast<std::size_t>(step.values[i])].data() + first;
  };
  const std::int64_t* groups = whole(4);
  const auto count = static_cast<std::size_t>(rows);
  std::vector<float> query(count * static_cast<std::size_t>(size));
  std::vector<float> key(query.size());
  std::vector<float> columns(query.size());  // the keys as [size, rows]
  std::vector<float> scores(count);
  const Angles angles(whole(3), rows, size, step.number);
  const float scale = 1.0F / std::sqrt(static_cast<float>(size));
  for (int head = 0; head < width; head += size) {
    rotate(numbers(0) + head, angles, rows, stride, size, query.data());
    rotate(numbers(1) + head, angles, rows, stride, size, key.data());
    for (std::int64_t r = 0; r < rows; ++r)
      for (int i = 0; i < size; ++i)
        columns[static_cast<std::size_t>(i * rows + r)] =
            key[static_cast<std::size_t>(r * size + i)];
    for (std::int64_t r = 0; r < rows; ++r) {
      std::fill(scores.begin(), scores.end(), 0.0F);
      for (int i = 0; i < size; ++i) {
        const float q = query[static_cast<std::size_t>(r * size + i)] * scale;
        const float* k = columns.data() + i * rows;
        for (std::int64_t s = 0; s < rows; ++s) scores[static_cast<std::size_t>(s)] += q * k[s];
      }
      float top = -INFINITY;
      for (std::int64_t s = 0; s < rows; ++s)
        if (groups[s] <= groups[r]) top = std::max(top, scores[static_cast<std::size_t>(s)]);
      float sum = 0;
      float* mixed = out + r * out_stride + head;
      std::fill(mixed, mixed + size, 0.0F);
      for (std::int64_t s = 0; s < rows; ++s) {
        if (groups[s] > groups[r]) continue;
        const auto weight =
            static_cast<float>(exact_exp(scores[static_cast<std::size_t>(s)] - top));
        const float* v = numbers(2) + s * stride + head;
        sum += weight;
        for (int i = 0; i < size; ++i) mixed[i] += weight * v[i];
      }
      for (int i = 0; i < size; ++i) mixed[i] /= sum;
    }
  }
}

}  // namespace paradecode
