// The record of a model's shape that Python passes; see backends/native/shape.py.
#pragma once

#include <nanobind/nanobind.h>

#include "shape.hpp"

namespace paradecode {

// Throws InvalidInput, naming the field, for what is missing, unknown or of another type.
ModelShape read_shape(nanobind::handle record);

}  // namespace paradecode
