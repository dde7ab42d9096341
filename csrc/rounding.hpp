// Rounds weights to fewer bits: floats to blocks of integers, and 8 bits to 5.
#pragma once

#include <cstdint>

#include "blocks.hpp"
#include "types.hpp"

namespace paradecode {

// Rounds kGroup values to a block of so many bits, with a minimum (4 bits) or around zero (5 and
// 8).
Block round_to_4(const float* values);
Block round_to_5(const float* values);
Block round_to_8(const float* values);

// How a group of 32 inputs changes from 8 bits to 5, for each output of a panel: the square of the
// error's length, the largest magnitude in 8 bits, and that of the minimum in 5.
struct Narrowed {
  float error[kLanes];
  float largest[kLanes];
  float least[kLanes];
};

// Rounds a panel of a Q8 matrix to a Q5_0 matrix of the same shape, and fills out[groups]. Weights
// that are not finite give errors that are not finite.
void narrow_panel(const Matrix& from, const Matrix& to, int panel, Narrowed* out);

}  // namespace paradecode
