#include "isa.hpp"

#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(PARADECODE_TILES)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "errors.hpp"

namespace paradecode {
namespace {

struct Candidate {
  const Kernels& (*kernels)();
  bool (*runs_here)();
  const char* needs;
  bool only_named = false;  // never chosen unasked
};

#if defined(__x86_64__)
// By hand, because clang knows the name only since version 18.
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1U) != 0;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool has_avxvnni() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1U) != 0;
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

#if defined(PARADECODE_TILES) && !defined(PARADECODE_EMULATED_TILES)
// Also asks the system to keep tiles for this process, which it does for nobody unasked.
bool has_amx() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned tiles_and_bytes = 3U << 24;
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;
  return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
         (d & tiles_and_bytes) == tiles_and_bytes &&
         syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif
#elif defined(__aarch64__)
bool has_neon_dots() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // Every Mac with such a processor has them.
#endif
}
#endif

constexpr Candidate kCandidates[] = {
#if defined(PARADECODE_EMULATED_TILES)
    {amx_kernels, [] { return true; }, "nothing", true},
#elif defined(PARADECODE_TILES)
    {amx_kernels, has_amx, "AVX512 with VNNI, AMX tiles of bytes, and Linux 5.16", true},
#endif
#if defined(__x86_64__)
    {avx512_kernels, has_avx512, "AVX512 F, BW, DQ, VL and VNNI"},
    {avxvnni_kernels, has_avxvnni, "AVX2, FMA, F16C and AVX-VNNI"},
    {avx2_kernels, has_avx2, "AVX2, FMA and F16C"},
#elif defined(__aarch64__)
    {neon_kernels, has_neon_dots, "NEON with dot products"},
#endif
    {portable_kernels, [] { return true; }, "nothing"},
};

std::string names() {
  std::string out;
  for (const Candidate& candidate : kCandidates)
    out += (out.empty() ? "" : ", ") + std::string(candidate.kernels().name);
  return out;
}

}  // namespace

IsaChoice choose_isa() {
  const char* wanted = std::getenv("PARADECODE_ISA");
  const bool named = wanted != nullptr && *wanted != '\0';
  for (const Candidate& candidate : kCandidates) {
    const Kernels& kernels = candidate.kernels();
    if (named) {
      if (std::string(wanted) != kernels.name) continue;
      if (!candidate.runs_here())
        throw InvalidInput(
            "PARADECODE_ISA", std::string(wanted),
            std::string("this processor lacks ") + candidate.needs + "; unset the variable");
      return {&kernels, "PARADECODE_ISA names it"};
    }
    if (!candidate.only_named && candidate.runs_here())
      return {&kernels, std::string("the first of ") + names() +
                            " that this processor has; needs " + candidate.needs};
  }
  throw InvalidInput("PARADECODE_ISA", std::string(wanted == nullptr ? "" : wanted),
                     "use one of " + names());
}

std::vector<std::string> available_isas() {
  std::vector<std::string> out;
  for (const Candidate& candidate : kCandidates)
    if (candidate.runs_here()) out.emplace_back(candidate.kernels().name);
  return out;
}

}  // namespace paradecode
