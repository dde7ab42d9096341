// A cheaper search for the best token, for rows of which only the best token is asked.
//
// `about` is the head in fewer bits. The logit of a token differs from that of `about` by the
// product of the inputs with the rounding errors. By Cauchy and Schwarz this is at most
// errors[token] * reach(input). Both sides weigh the groups of 32 inputs by how large a group's
// errors usually are; the bound holds with any weights. The errors also cover the rounding of both
// sums, so a token whose bound is below another's logit cannot be the best.
#pragma once

#include <memory>
#include <vector>

#include "memory.hpp"
#include "team.hpp"
#include "types.hpp"

namespace paradecode {

// With more rows too little of the head would stay unread.
constexpr int kScreenedRows = 2;

class Screen {
 public:
  // Returns null for a head that is not of 8 bits, because fewer bits leave too little to save
  // (docs/architecture.md). Throws std::bad_alloc.
  static std::unique_ptr<Screen> of(const Matrix& head, Team& team);

  const Matrix& about() const { return about_; }
  // The errors of each output of whole panels; NaN where a weight is NaN.
  const float* errors() const { return errors_.data(); }
  // Returns NaN if the row's inputs are NaN, or so large or small that the bound may not hold.
  float reach(const Activations& input, int row) const;

 private:
  explicit Screen(const Matrix& head);
  void weigh(const Matrix& head);
  void fill(const Matrix& head, int panel);

  Arena arena_;
  Matrix about_;
  std::vector<double> weights_;  // squares of the factor of each group
  std::vector<float> errors_;
};

}  // namespace paradecode
