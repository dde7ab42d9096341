// From a format that is known when the program runs to one that a template can be made of. In an
// unnamed namespace: files that are compiled for different processors must not share code.
#pragma once

#include "types.hpp"

namespace paradecode {
namespace {

template <Format Kind>
struct FormatIs {
  static constexpr Format value = Kind;
};

// call(FormatIs<format>()).
template <int Number = 0, class Call>
inline void with_format(Format format, Call call) {
  if constexpr (Number < kFormats) {
    if (format == static_cast<Format>(Number)) return call(FormatIs<static_cast<Format>(Number)>());
    with_format<Number + 1>(format, call);
  }
}

}  // namespace
}  // namespace paradecode
