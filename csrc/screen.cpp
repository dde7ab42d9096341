#include "screen.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pack.hpp"

namespace paradecode {
namespace {

// Outputs that are looked at to find how large the errors of a group are.
constexpr int kSamples = 512;

// Of each group of an output: the square of the error's length, and of the length of all terms
// that either product adds up. In a group one of the integers is 0, so that the minimum is at most
// as large as the largest value.
struct Lengths {
  std::vector<double> error, terms;
};

Lengths lengths(const Matrix& head, const Matrix& about, int output) {
  const auto groups = static_cast<std::size_t>(head.groups);
  std::vector<float> exact(groups * kGroup);
  std::vector<float> rough(groups * kGroup);
  unpack_row(head, output, exact.data());
  unpack_row(about, output, rough.data());
  Lengths out{std::vector<double>(groups), std::vector<double>(groups)};
  for (std::size_t g = 0; g < groups; ++g) {
    const float* a = exact.data() + g * kGroup;
    const float* b = rough.data() + g * kGroup;
    float largest = 0;
    for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::fabs(b[i]));
    double error = 0;
    double terms = 0;
    for (int i = 0; i < kGroup; ++i) {
      const double left = double{a[i]} - b[i];
      const double all = std::fabs(double{a[i]}) + std::fabs(double{b[i]}) + 2.0 * largest;
      error += left * left;
      terms += all * all;
    }
    out.error[g] = error;
    out.terms[g] = terms;
  }
  return out;
}

template <class Work>
void for_outputs(Member& member, const Matrix& matrix, Work work) {
  member.phase(matrix.panels, [&](int panel) {
    const int end = std::min(matrix.rows, (panel + 1) * kLanes);
    for (int output = panel * kLanes; output < end; ++output) work(output);
  });
}

void fill_row(const Matrix& head, const Matrix& about, int output) {
  std::vector<float> row(static_cast<std::size_t>(head.groups) * kGroup);
  unpack_row(head, output, row.data());
  pack_row(about, output, Source::F32, reinterpret_cast<const std::uint8_t*>(row.data()));
}

}  // namespace

Screen::Screen(const Matrix& head, Format format, const std::vector<double>& norms)
    : about_(make_matrix(arena_, format, head.rows, head.cols)),
      weights_(norms),
      errors_(static_cast<std::size_t>(about_.panels) * kLanes) {}

std::unique_ptr<Screen> Screen::of(const Matrix& head, const std::vector<double>& norms,
                                   Team& team) {
  if (head.format != Format::Q8) return nullptr;
  std::unique_ptr<Screen> out(new Screen(head, Format::Q5_0, norms));
  struct Job {
    const Matrix& head;
    Screen& screen;
  } job{head, *out};
  team.run(
      1,
      [](void* context, Member& member) {
        const auto& mine = *static_cast<Job*>(context);
        for_outputs(member, mine.head,
                    [&](int output) { fill_row(mine.head, mine.screen.about_, output); });
      },
      &job);
  std::vector<double> errors(norms.size());
  for (int output = 0; output < head.rows; output += std::max(1, head.rows / kSamples)) {
    const Lengths found = lengths(head, out->about_, output);
    for (std::size_t g = 0; g < errors.size(); ++g) errors[g] += std::sqrt(found.error[g]);
  }
  // The best factors make both sides' groups of one shape.
  for (std::size_t g = 0; g < errors.size(); ++g) {
    const double weight = norms[g] / errors[g];
    out->weights_[g] = weight > 1e-12 && weight < 1e12 ? weight : 1.0;
  }
  team.run(
      1,
      [](void* context, Member& member) {
        const auto& mine = *static_cast<Job*>(context);
        for_outputs(member, mine.head, [&](int output) { mine.screen.bound(mine.head, output); });
      },
      &job);
  return out;
}

void Screen::bound(const Matrix& head, int output) {
  const Lengths found = lengths(head, about_, output);
  double error = 0;
  double terms = 0;
  for (std::size_t g = 0; g < weights_.size(); ++g) {
    error += found.error[g] * weights_[g];
    terms += found.terms[g] * weights_[g];
  }
  // Each sum rounds two products and two additions a group; some more for what comes after.
  const double rounding = (4.0 * static_cast<double>(weights_.size()) + 32.0) * 0x1p-24;
  const double whole = std::sqrt(error) * (1.0 + 1e-5) + rounding * std::sqrt(terms);
  errors_[static_cast<std::size_t>(output)] = static_cast<float>(whole * (1.0 + 1e-6));
}

float Screen::reach(const Activations& input, int row) const {
  double sum = 0;
  for (std::size_t g = 0; g < weights_.size(); ++g) {
    const std::int64_t at = input.entry(row, static_cast<int>(g));
    std::int8_t values[kGroup];
    std::memcpy(values, input.words + 8 * at, kGroup);
    std::int32_t squares = 0;
    for (const std::int8_t value : values) squares += value * value;
    const double scale = input.scales[at];
    sum += scale * scale * squares / weights_[g];
  }
  const double reach = std::sqrt(sum) * (1.0 + 1e-6);
  return reach > 1e-15 && reach < 1e15 ? static_cast<float>(reach) : NAN;
}

}  // namespace paradecode
