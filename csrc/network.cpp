#include "network.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "errors.hpp"
#include "exact.hpp"
#include "network_run.hpp"
#include "pack.hpp"
#include "team.hpp"

namespace paradecode {
namespace {

constexpr int kInputs[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 0, 5, 1, 1};
constexpr int kTensors[] = {1, 2, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
constexpr int kKinds = static_cast<int>(StepKind::Behind) + 1;
constexpr std::int64_t kWidest = std::int64_t{1} << 24;
// The most rows that run together. More rows run in parts, unless they see one another.
constexpr std::int64_t kRowsAtOnce = 256;

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
  std::vector<Uses> uses(tensors.size());
  for (const NetworkStep& step : steps_) {
    const int width = width_of(step, tensors);
    if (width < 1)
      throw InvalidInput("network", static_cast<std::int64_t>(widths_.size()) - inputs_,
                         "the sizes of this step do not fit");
    for (const int tensor : step.tensors) {
      Uses& use = uses[static_cast<std::size_t>(tensor)];
      (step.kind == StepKind::Linear   ? use.matrix
       : step.kind == StepKind::Lookup ? use.table
                                       : use.plain) = true;
    }
    widths_.push_back(width);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) pack(tensors[i], uses[i]);
  plan();
}

Network::~Network() = default;

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
                      width(4) == 0 && step.count > 0 && step.number > 0;
    return fits && first % (2 * std::int64_t{step.count}) == 0 ? first : 0;
  }
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < step.values.size(); ++i) {
    if (width(i) < 1) return 0;
    sum += width(i);
  }
  if (step.kind == StepKind::Part) {
    const bool whole = step.number >= 0 && step.number == std::floor(step.number);
    return whole && step.count > 0 && step.number + double{1} * step.count <= first ? step.count
                                                                                    : 0;
  }
  if (join) return sum <= kWidest ? static_cast<int>(sum) : 0;
  for (std::size_t i = 0; i < step.tensors.size(); ++i)
    if (tensor(i).rows != 1 || tensor(i).columns != first) return 0;
  if (step.values.size() == 2 && width(1) != 1 && width(1) != first) return 0;
  return step.kind == StepKind::Rms ? 1 : first;
}

void Network::pack(const NetworkTensor& tensor, const Uses& uses) {
  const auto count = static_cast<std::size_t>(tensor.rows * tensor.columns);
  matrices_.emplace_back();
  Matrix& packed = matrices_.back();
  const auto row_of = [&](int row, const float* values) {
    pack_row(packed, row, Source::F32, reinterpret_cast<const std::uint8_t*>(values));
  };
  const bool rounded_table = uses.table && !uses.matrix && is_integer(format_);
  const bool plain = uses.plain || (uses.table && !rounded_table);
  tensors_.emplace_back(tensor.values, tensor.values + (plain ? count : 0));
  table_rows_.push_back(tensor.rows);
  const int rows = static_cast<int>(tensor.rows);
  const int columns = static_cast<int>(tensor.columns);
  if (rounded_table) {
    // Rounded tables have 8 bits: one row is read at a time, so fewer bits would save nothing.
    packed = make_matrix(arena_, Format::Q8, rows, columns);
    for (int r = 0; r < rows; ++r) row_of(r, tensor.values + std::int64_t{r} * columns);
  } else if (uses.matrix) {
    packed = make_matrix(arena_, format_, columns, rows);
    std::vector<float> column(static_cast<std::size_t>(rows));
    for (int c = 0; c < columns; ++c) {
      for (int r = 0; r < rows; ++r)
        column[static_cast<std::size_t>(r)] = tensor.values[std::int64_t{r} * columns + c];
      row_of(c, column.data());
    }
  }
}

// Puts each step into the earliest possible stage, because rows of one stage need no waiting in
// between.
void Network::plan() {
  std::vector<int> made(static_cast<std::size_t>(inputs_), 0);  // the stage of each value
  std::vector<bool> multiplied(widths_.size());
  for (std::size_t at = 0; at < steps_.size(); ++at) {
    const NetworkStep& step = steps_[at];
    const bool whole = step.kind == StepKind::Linear || reads_rows(step.kind);
    int stage = 0;
    for (const int value : step.values) {
      const int known = made[static_cast<std::size_t>(value)];
      const int rounded = known + known % 2;  // after products, rows are one stage later
      stage = std::max(stage, whole ? rounded + 1 : rounded);
    }
    made.push_back(stage);
    stages_.resize(std::max(stages_.size(), static_cast<std::size_t>(stage) + 1));
    stages_[static_cast<std::size_t>(stage)].steps.push_back(static_cast<int>(at));
    if (step.kind != StepKind::Linear) continue;
    const auto value = static_cast<std::size_t>(step.values[0]);
    if (multiplied[value]) continue;
    multiplied[value] = true;
    const int ready = made[value] + made[value] % 2;
    stages_[static_cast<std::size_t>(ready)].multiplied.push_back(step.values[0]);
  }
}

void Network::check_ids(int input, const std::int64_t* ids, std::int64_t count) const {
  for (const NetworkStep& step : steps_) {
    if (step.kind != StepKind::Lookup || step.values[0] != input) continue;
    const std::int64_t most = table_rows_[static_cast<std::size_t>(step.tensors[0])];
    for (std::int64_t i = 0; i < count; ++i)
      if (ids[i] < 0 || ids[i] >= most)
        throw InvalidInput("inputs of a network", ids[i],
                           "give numbers below " + std::to_string(most));
  }
}

std::size_t Network::matrix_bytes() const {
  std::size_t out = 0;
  for (const NetworkStep& step : steps_) {
    if (step.kind != StepKind::Linear) continue;
    const Matrix& matrix = matrices_[static_cast<std::size_t>(step.tensors[0])];
    out += static_cast<std::size_t>(matrix.panels) * matrix.panel_bytes;
  }
  return out;
}

void Network::run(const std::vector<NetworkInput>& given, const std::vector<std::int64_t>& ends,
                  float* out) const {
  const FloatState state;
  const std::int64_t rows = ends.empty() ? 0 : ends.back();
  for (int input = 0; input < inputs_; ++input)
    if (widths_[static_cast<std::size_t>(input)] == 0)
      check_ids(input, given[static_cast<std::size_t>(input)].ids, rows);
  const bool parts = rows_are_apart();
  std::unique_ptr<NetworkRun> run = take_run();
  static Team alone(1);
  Member member(alone, 0);
  const auto width = static_cast<std::size_t>(widths_.back());
  const std::int64_t most = parts ? kRowsAtOnce : std::max<std::int64_t>(rows, 1);
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t now = std::min(most, rows - first);
    run->begin(static_cast<int>(now), parts ? std::vector<std::int64_t>() : ends);
    run->work(member, [&](int row) {
      for (int input = 0; input < inputs_; ++input) {
        const auto& from = given[static_cast<std::size_t>(input)];
        const auto columns = widths_[static_cast<std::size_t>(input)];
        if (columns == 0)
          run->ids(input)[row] = from.ids[first + row];
        else
          std::memcpy(run->input(input, row), from.numbers + (first + row) * columns,
                      static_cast<std::size_t>(columns) * sizeof(float));
      }
    });
    for (std::int64_t row = 0; row < now; ++row)
      std::memcpy(out + (first + row) * widths_.back(), run->result(static_cast<int>(row)),
                  width * sizeof(float));
  }
  if (rows <= kRowsAtOnce) give_run(std::move(run));
}

bool Network::rows_are_apart() const {
  return std::none_of(steps_.begin(), steps_.end(),
                      [](const NetworkStep& step) { return reads_rows(step.kind); });
}

std::unique_ptr<NetworkRun> Network::take_run() const {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<NetworkRun>(*this, 1);
  auto run = std::move(idle_.back());
  idle_.pop_back();
  return run;
}

void Network::give_run(std::unique_ptr<NetworkRun> run) const {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(run));
}

}  // namespace paradecode
