#include <algorithm>
#include <chrono>
#include <cstdio>

#include "isa.hpp"
#include "pack.hpp"
#include "selftest.hpp"

namespace paradecode {

namespace {

constexpr int kRows[] = {1, 2, 4, 8, 16};
constexpr int kRounds = 40;

template <class Work>
double seconds_of(Work work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The matrix of a source, of random bits and small enough for the second-level cache.
Matrix random_matrix(Arena& arena, Source source, int rows, int cols) {
  std::mt19937 random(static_cast<unsigned>(source));
  std::vector<std::uint8_t> row(source_row_bytes(source, cols));
  const Matrix out = make_matrix(arena, own_format(source), rows, cols);
  for (int i = 0; i < rows; ++i) {
    for (auto& byte : row) byte = static_cast<std::uint8_t>(random() & 0x3FU);
    if (source == Source::MXFP4)
      for (std::size_t at = 0; at < row.size(); at += 17) row[at] = 120;
    pack_row(out, i, source, row.data());
  }
  return out;
}

}  // namespace

// Prints how long a row and group of 512 products (32 inputs, 16 outputs) takes on one thread with
// cached weights. The unit is the time of one dot of 64 products at the processor's peak, which is
// a cycle on Zen 4; the dots alone take 8. The least of many rounds hardly depends on other
// programs, because the peak is measured in the same rounds.
void measure_rows() {
  constexpr int outputs = 96;
  constexpr int cols = 1536;
  constexpr std::int64_t steps = 4096;
  const Kernels& kernels = *choose_isa().kernels;
  InputBuffer buffer;
  const Activations& input = buffer.shape(16, cols);
  std::mt19937 random(1);
  for (int row = 0; row < 16; ++row) {
    const std::vector<float> values = random_values(random, cols, 1.0F);
    kernels.quantise(values.data(), 0, cols / kGroup, row, input);
    kernels.quantise_wide(values.data(), 0, cols / kSuperBlock, row, input);
  }
  std::printf("%s: time of a row and group, in dots of 64\nsource   ", kernels.name);
  for (const int rows : kRows) std::printf("%8d", rows);
  std::puts("");
  std::vector<float> out(16 * outputs);
  for (int i = 0; i < kSources; ++i) {
    const auto source = static_cast<Source>(i);
    if (is_float(source)) continue;
    Arena arena;
    const Matrix weight = random_matrix(arena, source, outputs, cols);
    std::printf("%-9d", i);
    for (const int rows : kRows) {
      double dot = 1.0;
      double least = 1.0;
      for (int round = 0; round < kRounds; ++round) {
        dot = std::min(dot, seconds_of([&] { kernels.multiply(steps); }));
        least = std::min(least, seconds_of([&] {
                           for (int again = 0; again < 4; ++again)
                             kernels.matmul(weight, 0, outputs / kLanes, input, 0, rows, out.data(),
                                            outputs, nullptr, false);
                         }));
      }
      dot /= static_cast<double>(steps * kernels.products_a_step / 64);
      const double groups = 4.0 * rows * (outputs / kLanes) * (cols / kGroup);
      std::printf("%8.2f", least / groups / dot);
    }
    std::puts("");
  }
}

}  // namespace paradecode
