#include "selftest.hpp"

#include <cmath>
#include <random>

#include "exact.hpp"

namespace paradecode {

// Own functions against the C library's, which are good to about 1 ulp as well.
void check_functions() {
  std::mt19937_64 random(1);
  const auto close = [](double a, double b) {
    return std::fabs(a - b) <= 2 * std::fabs(std::nextafter(b, INFINITY) - b);
  };
  for (int i = 0; i < 100'000; ++i) {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    const double x = std::ldexp(1.0 + unit, static_cast<int>(random() % 2000) - 1000);
    require(close(exact_log(x), std::log(x)), "logarithms");
    const double y = 1400 * (unit - 0.5);
    require(close(exact_exp(y), std::exp(y)), "exponentials");
    const auto angle = static_cast<float>(unit * 131072);
    float cosine = 0;
    float sine = 0;
    exact_turn(angle, cosine, sine);
    require(std::fabs(cosine - std::cos(double{angle})) < 1e-7, "cosines");
    require(std::fabs(sine - std::sin(double{angle})) < 1e-7, "sines");
  }
  require(exact_log(0) == -INFINITY && exact_exp(-800) == 0, "ends");
  require(exact_log(1) == 0 && exact_exp(0) == 1, "units");
  require(std::isnan(exact_log(-1)) && std::isnan(exact_exp(NAN)), "what is no number");
}

}  // namespace paradecode
