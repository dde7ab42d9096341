// A cheaper look at the head, for rows of which nothing but the best token is asked.
//
// `about` is the head in fewer bits. The logit of a token differs from what `about` gives by the
// product of the inputs with what the bits left out, which is at most errors[token] * reach(input)
// by Cauchy and Schwarz. Both sides weigh the groups of 32 inputs by how large a group's errors
// usually are. With other weights the bound holds as well. The errors also cover the rounding of
// both sums, so a token whose bound is below another's logit cannot be the best.
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
  // Null for a head that is not of 8 bits: fewer leave too little to save (docs/architecture.md).
  // Throws std::bad_alloc.
  static std::unique_ptr<Screen> of(const Matrix& head, Team& team);

  const Matrix& about() const { return about_; }
  // Of each output of whole panels; not a number where a weight is none.
  const float* errors() const { return errors_.data(); }
  // Not a number if the row's inputs are none, or so large or small that the bound may not hold.
  float reach(const Activations& input, int row) const;

 private:
  explicit Screen(const Matrix& head);
  void weigh(const Matrix& head);
  void fill(const Matrix& head, int panel);

  Arena arena_;
  Matrix about_;
  std::vector<double> weights_;  // of each group: squares of factors
  std::vector<float> errors_;
};

}  // namespace paradecode
