// Python's side of head.hpp.
#pragma once

#include <nanobind/nanobind.h>

namespace paradecode {

// The classes HeadMemory and DraftHead.
void define_head(nanobind::module_& module);

}  // namespace paradecode
