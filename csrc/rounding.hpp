// Weights in fewer bits: floats as blocks of integers, and 8 bits as 5.
#pragma once

#include <cstdint>

#include "blocks.hpp"
#include "types.hpp"

namespace paradecode {

// The block of kGroup values in as many bits, with a minimum (4) or around zero (5 and 8).
Block round_to_4(const float* values);
Block round_to_5(const float* values);
Block round_to_8(const float* values);

// What 5 bits make of a group of 32 inputs with 8 bits, for the outputs of a panel: the square of
// the error's length, the largest magnitude in 8 bits, and that of the minimum in 5.
struct Narrowed {
  float error[kLanes];
  float largest[kLanes];
  float least[kLanes];
};

// Rounds a panel of a Q8 matrix into a Q5_0 matrix of the same shape; fills out[groups]. Values
// that are no finite numbers leave errors that are none.
void narrow_panel(const Matrix& from, const Matrix& to, int panel, Narrowed* out);

}  // namespace paradecode
