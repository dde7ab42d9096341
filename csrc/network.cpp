#include "network.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "errors.hpp"
#include "exact.hpp"
#include "forward.hpp"
#include "pack.hpp"

namespace paradecode {
namespace {

constexpr int kInputs[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 0, 5};
constexpr int kTensors[] = {1, 2, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
constexpr int kKinds = static_cast<int>(StepKind::Attention) + 1;
constexpr std::int64_t kWidest = std::int64_t{1} << 24;

float sigmoid(float x) { return static_cast<float>(1.0 / (1.0 + exact_exp(-x))); }

template <class Each>
void elementwise(const float* x, std::int64_t count, float* out, Each each) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = each(x[i]);
}

// out[r] = each(x[r], y[r]), where a row of y may be one number.
template <class Each>
void pairwise(const float* x, const float* y, std::int64_t rows, int width, int other, float* out,
              Each each) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (int c = 0; c < width; ++c)
      out[r * width + c] = each(x[r * width + c], y[r * other + (other == 1 ? 0 : c)]);
}

// out[r] = each(x[r], t) for a tensor with one number a column.
template <class Each>
void columnwise(const float* x, const float* t, std::int64_t rows, int width, float* out,
                Each each) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (int c = 0; c < width; ++c) out[r * width + c] = each(x[r * width + c], t[c]);
}

// Cosines and sines of the angles that vectors of `size` numbers are rotated by: [rows, size / 2].
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

// The vectors of one head, rotated: float32 [rows, size].
void rotate(const float* x, const Angles& angles, std::int64_t rows, int stride, int size,
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

struct Attended {
  const float* query;
  const float* key;
  const float* value;
  const std::int64_t* positions;
  const std::int64_t* groups;
};

// One item of `rows` rows. A row adds up what it sees in the order of the rows.
void attend(const Attended& in, std::int64_t rows, int width, int heads, float theta, float* out) {
  const int size = width / heads;
  const auto count = static_cast<std::size_t>(rows);
  std::vector<float> query(count * static_cast<std::size_t>(size));
  std::vector<float> key(query.size());
  std::vector<float> columns(query.size());  // the keys as [size, rows]
  std::vector<float> scores(count);
  const Angles angles(in.positions, rows, size, theta);
  const float scale = 1.0F / std::sqrt(static_cast<float>(size));
  for (int first = 0; first < width; first += size) {
    rotate(in.query + first, angles, rows, width, size, query.data());
    rotate(in.key + first, angles, rows, width, size, key.data());
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
        if (in.groups[s] <= in.groups[r]) top = std::max(top, scores[static_cast<std::size_t>(s)]);
      float sum = 0;
      float* mixed = out + r * width + first;
      std::fill(mixed, mixed + size, 0.0F);
      for (std::int64_t s = 0; s < rows; ++s) {
        if (in.groups[s] > in.groups[r]) continue;
        const auto weight =
            static_cast<float>(exact_exp(scores[static_cast<std::size_t>(s)] - top));
        const float* v = in.value + s * width + first;
        sum += weight;
        for (int i = 0; i < size; ++i) mixed[i] += weight * v[i];
      }
      for (int i = 0; i < size; ++i) mixed[i] /= sum;
    }
  }
}

}  // namespace

Network::Network(std::vector<int> widths, std::vector<NetworkStep> steps,
                 const std::vector<NetworkTensor>& tensors, Format format)
    : inputs_(static_cast<int>(widths.size())),
      format_(format),
      widths_(std::move(widths)),
      steps_(std::move(steps)),
      isa_(choose_isa()) {
  if (steps_.empty()) throw InvalidInput("network", "no steps", "give at least one");
  for (const int width : widths_)
    if (width < 0 || width > kWidest)
      throw InvalidInput("network", std::int64_t{width}, "give inputs of sound sizes");
  std::vector<bool> matrix(tensors.size());
  for (const NetworkStep& step : steps_) {
    const int width = width_of(step, tensors);
    if (width < 1)
      throw InvalidInput("network", static_cast<std::int64_t>(widths_.size()) - inputs_,
                         "the sizes of this step do not fit");
    if (step.kind == StepKind::Linear) matrix[static_cast<std::size_t>(step.tensors[0])] = true;
    widths_.push_back(width);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) pack(tensors[i], matrix[i]);
}

int Network::width_of(const NetworkStep& step, const std::vector<NetworkTensor>& tensors) const {
  const int kind = static_cast<int>(step.kind);
  if (kind < 0 || kind >= kKinds) return 0;
  const bool join = step.kind == StepKind::Join;
  if (static_cast<int>(step.tensors.size()) != kTensors[kind] || step.values.empty() ||
      (!join && static_cast<int>(step.values.size()) != kInputs[kind]) ||
      !std::isfinite(step.number))
    return 0;
  for (const int value : step.values)
    if (value < 0 || value >= static_cast<int>(widths_.size())) return 0;
  for (const int tensor : step.tensors)
    if (tensor < 0 || tensor >= static_cast<int>(tensors.size())) return 0;
  const auto width = [&](std::size_t i) {
    return widths_[static_cast<std::size_t>(step.values[i])];
  };
  const auto tensor = [&](std::size_t i) -> const NetworkTensor& {
    return tensors[static_cast<std::size_t>(step.tensors[i])];
  };
  const int first = width(0);
  if (step.kind == StepKind::Lookup || step.kind == StepKind::Linear) {
    const bool fits = step.kind == StepKind::Linear ? first > 0 && tensor(0).rows == first
                                                    : first == 0 && tensor(0).rows > 0;
    return fits && tensor(0).columns <= kWidest ? static_cast<int>(tensor(0).columns) : 0;
  }
  if (step.kind == StepKind::Attention) {
    const bool fits = first > 0 && width(1) == first && width(2) == first && width(3) == 0 &&
                      width(4) == 0 && step.heads > 0 && step.number > 0;
    return fits && first % (2 * step.heads) == 0 ? first : 0;
  }
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < step.values.size(); ++i) {
    if (width(i) < 1) return 0;
    sum += width(i);
  }
  if (join) return sum <= kWidest ? static_cast<int>(sum) : 0;
  for (std::size_t i = 0; i < step.tensors.size(); ++i)
    if (tensor(i).rows != 1 || tensor(i).columns != first) return 0;
  if (step.values.size() == 2 && width(1) != 1 && width(1) != first) return 0;
  return step.kind == StepKind::Rms ? 1 : first;
}

void Network::pack(const NetworkTensor& tensor, bool matrix) {
  const auto count = static_cast<std::size_t>(tensor.rows * tensor.columns);
  matrices_.emplace_back();
  tensors_.emplace_back(tensor.values, tensor.values + (matrix ? 0 : count));
  if (!matrix) return;
  const int outputs = static_cast<int>(tensor.columns);
  const int width = static_cast<int>(tensor.rows);
  matrices_.back() = make_matrix(arena_, format_, outputs, width);
  std::vector<float> column(static_cast<std::size_t>(width));
  for (int c = 0; c < outputs; ++c) {
    for (int r = 0; r < width; ++r)
      column[static_cast<std::size_t>(r)] = tensor.values[std::int64_t{r} * outputs + c];
    pack_row(matrices_.back(), c, Source::F32,
             reinterpret_cast<const std::uint8_t*>(column.data()));
  }
}

void Network::check_ids(const std::vector<NetworkInput>& given, std::int64_t rows) const {
  for (const NetworkStep& step : steps_) {
    if (step.kind != StepKind::Lookup) continue;
    const auto table = static_cast<std::size_t>(step.tensors[0]);
    const int width = widths_[static_cast<std::size_t>(&step - steps_.data() + inputs_)];
    const auto most = static_cast<std::int64_t>(tensors_[table].size()) / width;
    const std::int64_t* ids = given[static_cast<std::size_t>(step.values[0])].ids;
    for (std::int64_t r = 0; r < rows; ++r)
      if (ids[r] < 0 || ids[r] >= most)
        throw InvalidInput("inputs of a network", ids[r],
                           "give numbers below " + std::to_string(most));
  }
}

void Network::linear(const float* x, std::int64_t rows, const Matrix& weight, float* out) const {
  const int width = weight.groups * kGroup;
  const int stride = weight.panels * kLanes;
  std::vector<float> made(static_cast<std::size_t>(stride) * kRowGroup);
  std::vector<float> padded(static_cast<std::size_t>(width));
  thread_local InputBuffer buffer;
  const Activations& input = buffer.shape(kRowGroup, width);
  for (std::int64_t first = 0; first < rows; first += kRowGroup) {
    const int now = static_cast<int>(std::min<std::int64_t>(rows - first, kRowGroup));
    for (int r = 0; r < now; ++r) {
      const float* row = x + (first + r) * weight.cols;
      if (is_integer(weight.format)) {
        std::copy(row, row + weight.cols, padded.begin());
        isa_.kernels->quantise(padded.data(), 0, weight.groups, r, input);
      } else {
        for (int k = 0; k < weight.cols; ++k) input.values[input.value(r, k)] = row[k];
      }
    }
    isa_.kernels->matmul(weight, 0, weight.panels, input, 0, now, made.data(), stride, nullptr,
                         false);
    for (int r = 0; r < now; ++r)
      std::memcpy(out + (first + r) * weight.rows, made.data() + std::int64_t{r} * stride,
                  static_cast<std::size_t>(weight.rows) * sizeof(float));
  }
}

void Network::run(const std::vector<NetworkInput>& given, const std::vector<std::int64_t>& ends,
                  float* out) const {
  const FloatState state;
  const std::int64_t rows = ends.empty() ? 0 : ends.back();
  check_ids(given, rows);
  Values made(steps_.size());
  const auto numbers = [&](int value) {
    return value < inputs_ ? given[static_cast<std::size_t>(value)].numbers
                           : made[static_cast<std::size_t>(value - inputs_)].data();
  };
  for (std::size_t at = 0; at < steps_.size(); ++at) {
    const NetworkStep& step = steps_[at];
    const int columns = widths_[at + static_cast<std::size_t>(inputs_)];
    const int width = widths_[static_cast<std::size_t>(step.values[0])];
    const std::int64_t count = rows * width;
    made[at].resize(static_cast<std::size_t>(rows * columns));
    float* to = made[at].data();
    const float* x = numbers(step.values[0]);
    const auto tensor = [&](std::size_t i) {
      return tensors_[static_cast<std::size_t>(step.tensors[i])].data();
    };
    const auto pairs = [&](auto each) {
      const int other = step.values[1];
      pairwise(x, numbers(other), rows, width, widths_[static_cast<std::size_t>(other)], to, each);
    };
    switch (step.kind) {
      case StepKind::Linear:
        linear(x, rows, matrices_[static_cast<std::size_t>(step.tensors[0])], to);
        break;
      case StepKind::Standardise: {
        const float* scale = tensor(1);
        columnwise(x, tensor(0), rows, width, to, [](float a, float mean) { return a - mean; });
        columnwise(to, scale, rows, width, to, [](float a, float b) { return a * b; });
        break;
      }
      case StepKind::Scale:
        columnwise(x, tensor(0), rows, width, to, [](float a, float b) { return a * b; });
        break;
      case StepKind::Shift:
        columnwise(x, tensor(0), rows, width, to, [](float a, float b) { return a + b; });
        break;
      case StepKind::Lookup: {
        const std::int64_t* ids = given[static_cast<std::size_t>(step.values[0])].ids;
        for (std::int64_t r = 0; r < rows; ++r)
          std::memcpy(to + r * columns, tensor(0) + ids[r] * columns,
                      static_cast<std::size_t>(columns) * sizeof(float));
        break;
      }
      case StepKind::Relu:
        elementwise(x, count, to, [](float a) { return a > 0 ? a : 0.0F; });
        break;
      case StepKind::Silu: elementwise(x, count, to, [](float a) { return a * sigmoid(a); }); break;
      case StepKind::Sigmoid: elementwise(x, count, to, sigmoid); break;
      case StepKind::Gelu:
        elementwise(x, count, to, [](float a) {
          const float inner = 0.7978845608F * (a + 0.044715F * a * a * a);
          return a * sigmoid(2.0F * inner);  // (1 + tanh x) / 2
        });
        break;
      case StepKind::Rms:
        for (std::int64_t r = 0; r < rows; ++r) {
          double sum = 0;
          for (int c = 0; c < width; ++c)
            sum += static_cast<double>(x[r * width + c]) * x[r * width + c];
          to[r] = static_cast<float>(std::sqrt(sum / width + step.number));
        }
        break;
      case StepKind::Centre:
        for (std::int64_t r = 0; r < rows; ++r) {
          double sum = 0;
          for (int c = 0; c < width; ++c) sum += x[r * width + c];
          const auto mean = static_cast<float>(sum / width);
          for (int c = 0; c < width; ++c) to[r * width + c] = x[r * width + c] - mean;
        }
        break;
      case StepKind::Add: pairs([](float a, float b) { return a + b; }); break;
      case StepKind::Multiply: pairs([](float a, float b) { return a * b; }); break;
      case StepKind::Divide: pairs([](float a, float b) { return a / b; }); break;
      case StepKind::Join: {
        int first = 0;
        for (const int value : step.values) {
          const int part = widths_[static_cast<std::size_t>(value)];
          for (std::int64_t r = 0; r < rows; ++r)
            std::memcpy(to + r * columns + first, numbers(value) + r * part,
                        static_cast<std::size_t>(part) * sizeof(float));
          first += part;
        }
        break;
      }
      case StepKind::Attention: {
        std::int64_t first = 0;
        for (const std::int64_t end : ends) {
          const auto ids = [&](std::size_t i) {
            return given[static_cast<std::size_t>(step.values[i])].ids + first;
          };
          const std::int64_t offset = first * width;
          const Attended item{x + offset, numbers(step.values[1]) + offset,
                              numbers(step.values[2]) + offset, ids(3), ids(4)};
          attend(item, end - first, width, step.heads, step.number, to + offset);
          first = end;
        }
        break;
      }
    }
  }
  std::copy(made.back().begin(), made.back().end(), out);
}

}  // namespace paradecode
