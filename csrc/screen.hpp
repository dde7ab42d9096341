// A cheaper look at the head, for rows of which nothing but the best token is asked.
//
// `about` is the head in fewer bits. The logit of a token differs from what `about` gives by the
// product of the inputs with what the bits left out, which is at most errors[token] * reach(input)
// by Cauchy and Schwarz. Both sides divide the groups of 32 inputs by weights that make the
// inputs' groups about equally long, which keeps the bound small. The errors also cover the
// rounding of both sums, so a token whose bound is below another's logit cannot be the best.
#pragma once

#include <memory>
#include <vector>

#include "memory.hpp"
#include "team.hpp"
#include "types.hpp"

namespace paradecode {

// More rows would leave too little of the head unread.
constexpr int kScreenedRows = 2;

class Screen {
 public:
  // Null for a head that is not of 8 bits: fewer leave too little to save (docs/native.md).
  // `norms`: of each group of the head's inputs, about how long it is.
  static std::unique_ptr<Screen> of(const Matrix& head, const std::vector<double>& norms,
                                    Team& team);

  const Matrix& about() const { return about_; }
  // Of each output of whole panels; not a number where a weight is none.
  const float* errors() const { return errors_.data(); }
  // Not a number if the row's inputs are none, or so large or small that the bound may not hold.
  float reach(const Activations& input, int row) const;

 private:
  Screen(const Matrix& head, Format format, const std::vector<double>& norms);
  void bound(const Matrix& head, int output);

  Arena arena_;
  Matrix about_;
  std::vector<double> weights_;  // of each group: squares of factors
  std::vector<float> errors_;
};

}  // namespace paradecode
