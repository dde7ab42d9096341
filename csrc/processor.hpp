// Defines for which processor this is compiled, with the same names for all compilers.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#define PARADECODE_X86
#elif defined(__aarch64__) || defined(_M_ARM64)
#define PARADECODE_ARM
#if defined(__GNUC__) || defined(__clang__)  // other compilers have other names for some of NEON
#define PARADECODE_NEON
#endif
#endif
