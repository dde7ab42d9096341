#include "isa.hpp"

#include <cstdlib>

#include "processor.hpp"

#if defined(_MSC_VER) && !defined(__clang__)
#define PARADECODE_MSVC
#endif
#if defined(PARADECODE_X86) && defined(PARADECODE_MSVC)
#include <intrin.h>
#elif defined(PARADECODE_X86)
#include <cpuid.h>
#elif defined(PARADECODE_NEON) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(PARADECODE_NEON) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(PARADECODE_HAS_AMX) && !defined(PARADECODE_EMULATED_TILES)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "errors.hpp"

namespace paradecode {
namespace {

struct Candidate {
  const Kernels* kernels;
  bool (*runs_here)();
  const char* needs;
  bool only_named = false;  // chosen only by name
};

#if defined(PARADECODE_X86)
struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

// Reads CPUID with own code, because compilers have different names for it. All registers are zero
// where the processor has no such leaf.
Registers cpuid(unsigned leaf, unsigned part) {
  Registers out;
#if defined(PARADECODE_MSVC)
  int raw[4];
  __cpuid(raw, 0);
  if (static_cast<unsigned>(raw[0]) < leaf) return out;
  __cpuidex(raw, static_cast<int>(leaf), static_cast<int>(part));
  out = {static_cast<unsigned>(raw[0]), static_cast<unsigned>(raw[1]),
         static_cast<unsigned>(raw[2]), static_cast<unsigned>(raw[3])};
#else
  __get_cpuid_count(leaf, part, &out.a, &out.b, &out.c, &out.d);
#endif
  return out;
}

constexpr bool has_bits(unsigned value, unsigned bits) { return (value & bits) == bits; }

// Returns whether the system saves these registers. Ask only for registers that CPUID reports.
bool system_keeps(unsigned wanted) {
  if (!has_bits(cpuid(1, 0).c, 1U << 27)) return false;  // OSXSAVE
#if defined(PARADECODE_MSVC)
  return has_bits(static_cast<unsigned>(_xgetbv(0)), wanted);
#else
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return has_bits(low, wanted);
#endif
}

[[maybe_unused]] bool has_avx2() {
  constexpr unsigned fma_avx_f16c = 1U << 12 | 1U << 28 | 1U << 29;
  constexpr unsigned avx2 = 1U << 5;
  return has_bits(cpuid(1, 0).c, fma_avx_f16c) && has_bits(cpuid(7, 0).b, avx2) &&
         system_keeps(0x6);
}

[[maybe_unused]] bool has_avxvnni() { return has_avx2() && has_bits(cpuid(7, 1).a, 1U << 4); }

[[maybe_unused]] bool has_avx512() {
  constexpr unsigned f_dq_bw_vl = 1U << 16 | 1U << 17 | 1U << 30 | 1U << 31;
  constexpr unsigned vnni = 1U << 11;
  return has_avx2() && has_bits(cpuid(7, 0).b, f_dq_bw_vl) && has_bits(cpuid(7, 0).c, vnni) &&
         system_keeps(0xE6);
}

#if defined(PARADECODE_HAS_AMX) && !defined(PARADECODE_EMULATED_TILES)
// Also asks the system to keep tile registers for this process, which it does only on request.
bool has_amx() {
  constexpr unsigned tiles_and_bytes = 3U << 24;
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;
  return has_avx512() && has_bits(cpuid(7, 0).d, tiles_and_bytes) &&
         syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif
#elif defined(PARADECODE_NEON)
[[maybe_unused]] bool has_neon_dots() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__)
  return true;  // Every Mac with such a processor has them.
#else
  return false;
#endif
}

[[maybe_unused]] bool has_int8_matrices() {
#if defined(__linux__)
  constexpr unsigned long i8mm = 1UL << 13;  // HWCAP2_I8MM, which older headers lack
  return has_neon_dots() && (getauxval(AT_HWCAP2) & i8mm) != 0;
#elif defined(__APPLE__)
  int has = 0;
  std::size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, nullptr, 0) == 0 && has == 1;
#else
  return false;
#endif
}
#endif

constexpr Candidate kCandidates[] = {
#if defined(PARADECODE_EMULATED_TILES)
    {&amx::kernels, [] { return true; }, "nothing", true},
#elif defined(PARADECODE_HAS_AMX)
    {&amx::kernels, has_amx, "AVX512 with VNNI, AMX tiles of bytes, and Linux 5.16", true},
#endif
#if defined(PARADECODE_HAS_AVX512)
    {&avx512::kernels, has_avx512, "AVX512 F, BW, DQ, VL and VNNI"},
#endif
#if defined(PARADECODE_HAS_AVXVNNI)
    {&avxvnni::kernels, has_avxvnni, "AVX2, FMA, F16C and AVX-VNNI"},
#endif
#if defined(PARADECODE_HAS_AVX2)
    {&avx2::kernels, has_avx2, "AVX2, FMA and F16C"},
#endif
#if defined(PARADECODE_HAS_I8MM)
    {&i8mm::kernels, has_int8_matrices, "NEON with dot products and int8 matrices"},
#endif
#if defined(PARADECODE_HAS_NEON)
    {&neon::kernels, has_neon_dots, "NEON with dot products"},
#endif
#if defined(PARADECODE_HAS_PORTABLE)
    {&portable::kernels, [] { return true; }, "nothing"},
#endif
};

std::string names() {
  std::string out;
  for (const Candidate& candidate : kCandidates)
    out += (out.empty() ? "" : ", ") + std::string(candidate.kernels->name);
  return out;
}

}  // namespace

IsaChoice choose_isa() {
  const char* wanted = std::getenv("PARADECODE_ISA");
  const bool named = wanted != nullptr && *wanted != '\0';
  for (const Candidate& candidate : kCandidates) {
    if (named) {
      if (std::string(wanted) != candidate.kernels->name) continue;
      if (!candidate.runs_here())
        throw InvalidInput(
            "PARADECODE_ISA", std::string(wanted),
            std::string("this processor lacks ") + candidate.needs + "; unset the variable");
      return {candidate.kernels, "PARADECODE_ISA names it"};
    }
    if (!candidate.only_named && candidate.runs_here())
      return {candidate.kernels, std::string("the first of ") + names() +
                                     " that this processor has; needs " + candidate.needs};
  }
  throw InvalidInput("PARADECODE_ISA", std::string(named ? wanted : "unset"),
                     "this build has the kernel sets " + names() +
                         (named ? "; name one of them, or unset the variable"
                                : ", none of which this processor can run; compile the core here, "
                                  "with -DPARADECODE_KERNELS=all for every processor"));
}

std::vector<std::string> available_isas() {
  std::vector<std::string> out;
  for (const Candidate& candidate : kCandidates)
    if (candidate.runs_here()) out.emplace_back(candidate.kernels->name);
  return out;
}

}  // namespace paradecode
