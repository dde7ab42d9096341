#include "selftest.hpp"

#include <cstdio>

#include "isa.hpp"

using namespace paradecode;

// With an argument it measures, and checks nothing.
int main(int count, char**) {
  if (count > 1) return measure_rows(), 0;
  check_team();
  check_functions();
  check_blocks();
  check_logits();
  check_forward();
  check_screen();
  check_gemma();
  check_states();
  check_steps();
  check_networks();
  check_heads();
  for (const std::string& isa : available_isas()) std::printf("%s ", isa.c_str());
  std::puts("ok");
}
