// Computes what a step costs, as engine/cost.py defines it. All numbers are float64 and are
// computed in the same order, so that every decision is the same.
#pragma once

#include <cstdint>
#include <vector>

namespace paradecode {

// Holds the seconds of a forward by its rows and the tokens that they see. Both lists ascend.
struct CostCurve {
  std::vector<double> rows;
  std::vector<double> contexts;
  std::vector<std::vector<double>> seconds;  // [contexts][rows]

  double at(std::int64_t count, std::int64_t context) const;
};

// Computes the seconds of a step from the number of rows that one sequence has in it.
class StepSeconds {
 public:
  // others: rows of the other sequences; overhead: seconds beside the forward; draft: seconds of a
  // draft that is verified.
  StepSeconds(const CostCurve& curve, std::int64_t others, std::int64_t length, double overhead,
              double draft)
      : curve_(curve), others_(others), length_(length), overhead_(overhead), draft_(draft) {}

  double operator()(std::int64_t rows) const {
    return curve_.at(others_ + rows, length_) + overhead_ + (rows > 1 ? draft_ : 0.0);
  }

 private:
  const CostCurve& curve_;
  std::int64_t others_;
  std::int64_t length_;
  double overhead_;
  double draft_;
};

}  // namespace paradecode
