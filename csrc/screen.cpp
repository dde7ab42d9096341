#include "screen.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "exact.hpp"
#include "pack.hpp"
#include "rounding.hpp"

namespace paradecode {
namespace {

// The number of panels from which the typical errors of a group are estimated.
constexpr int kSamples = 32;

}  // namespace

Screen::Screen(const Matrix& head)
    : about_(make_matrix(arena_, Format::Q5_0, head.rows, head.cols)),
      weights_(static_cast<std::size_t>(head.groups)),
      errors_(static_cast<std::size_t>(about_.panels) * kLanes) {}

std::unique_ptr<Screen> Screen::of(const Matrix& head, Team& team) {
  if (head.format != Format::Q8) return nullptr;
  std::unique_ptr<Screen> out(new Screen(head));
  out->weigh(head);
  struct Job {
    const Matrix& head;
    Screen& screen;
  } job{head, *out};
  team.run(
      1,
      [](void* context, Member& member) {
        const auto& mine = *static_cast<Job*>(context);
        member.phase(mine.head.panels, [&](int panel) { mine.screen.fill(mine.head, panel); });
      },
      &job);
  return out;
}

// The best weights make the groups of both sides have the same shape. How long the inputs of a
// group are would be known only after some forwards, so all groups count as equally long.
void Screen::weigh(const Matrix& head) {
  const FloatState state;
  std::vector<double> errors(weights_.size());
  std::vector<Narrowed> groups(weights_.size());
  for (int panel = 0; panel < head.panels; panel += std::max(1, head.panels / kSamples)) {
    narrow_panel(head, about_, panel, groups.data());
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (const float error : groups[g].error) errors[g] += std::sqrt(double{error});
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const double weight = 1.0 / errors[g];
    weights_[g] = weight > 1e-12 && weight < 1e12 ? weight : 1.0;
  }
}

void Screen::fill(const Matrix& head, int panel) {
  std::vector<Narrowed> groups(weights_.size());
  narrow_panel(head, about_, panel, groups.data());
  // Each sum rounds two products and two additions a group; some more for what comes after.
  const double rounding = (4.0 * static_cast<double>(weights_.size()) + 32.0) * 0x1p-24;
  for (int lane = 0; lane < kLanes; ++lane) {
    double error = 0;
    double terms = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      // This is an upper bound: one of a group's integers is 0, so the minimum is as large as any
      // value.
      const double term = double{groups[g].largest[lane]} + 3.0 * groups[g].least[lane];
      error += groups[g].error[lane] * weights_[g];
      terms += kGroup * term * term * weights_[g];
    }
    const double whole = std::sqrt(error) * (1.0 + 1e-5) + rounding * std::sqrt(terms);
    errors_[static_cast<std::size_t>(panel * kLanes + lane)] =
        static_cast<float>(whole * (1.0 + 1e-6));
  }
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
