#include "costs.hpp"

#include <algorithm>

namespace paradecode {
namespace {

// STEP of engine/cost.py: contexts are rounded down to a multiple of it.
constexpr std::int64_t kStep = 32;

// Interpolates linearly between points. Beyond the last point the last slope goes on, and the
// result is never below the first value.
double line(double x, const std::vector<double>& xs, const std::vector<double>& ys) {
  if (x <= xs.front() || xs.size() == 1) return ys.front();
  const auto found = std::lower_bound(xs.begin(), xs.end(), x) - xs.begin();
  const std::size_t end = std::min(static_cast<std::size_t>(found), xs.size() - 1);
  const double slope = std::max(0.0, (ys[end] - ys[end - 1]) / (xs[end] - xs[end - 1]));
  return ys[end - 1] + slope * (x - xs[end - 1]);
}

}  // namespace

double CostCurve::at(std::int64_t count, std::int64_t context) const {
  std::vector<double> columns;
  columns.reserve(seconds.size());
  for (const auto& column : seconds)
    columns.push_back(line(static_cast<double>(count), rows, column));
  return line(static_cast<double>(context / kStep * kStep), contexts, columns);
}

}  // namespace paradecode
