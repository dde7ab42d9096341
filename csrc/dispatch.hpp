// Calls a template with a format that is known only when the program runs. The code is in an
// unnamed namespace, because files that are compiled for different processors must not share code.
#pragma once

#include "types.hpp"

namespace paradecode {
namespace {

template <Format Kind>
struct FormatIs {
  static constexpr Format value = Kind;
};

// Returns call(FormatIs<format>()).
template <int Number = 0, class Call>
inline void with_format(Format format, Call call) {
  if constexpr (Number < kFormats) {
    if (format == static_cast<Format>(Number)) return call(FormatIs<static_cast<Format>(Number)>());
    with_format<Number + 1>(format, call);
  }
}

}  // namespace
}  // namespace paradecode
