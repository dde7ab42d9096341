// Steps of parts whose records are states, over `Simd`, the sixteen lanes of the translation unit.
#pragma once

#include <cmath>

#include "elementwise.hpp"
#include "types.hpp"

namespace paradecode {
namespace {

inline Simd::F sigmoid(Simd::F x) { return gated(Simd::all(1.0F), x); }

inline Simd::F tanh_lanes(Simd::F x) {
  const Simd::F e = exp_lanes(Simd::add(x, x));
  return Simd::div(Simd::sub(e, Simd::all(1.0F)), Simd::add(e, Simd::all(1.0F)));
}

// log(1 + e^x) = max(x, 0) + 2 artanh(s), with s = u / (2 + u) of u = e^-|x|.
inline Simd::F softplus(Simd::F x) {
  const Simd::F size = Simd::from_bits(Simd::int_and(Simd::bits(x), Simd::int_all(0x7FFFFFFF)));
  const Simd::F u = exp_lanes(Simd::sub(Simd::zero(), size));
  const Simd::F s = Simd::div(u, Simd::add(u, Simd::all(2.0F)));
  const Simd::F z = Simd::mul(s, s);
  Simd::F series = Simd::all(2.0F / 15.0F);
  for (int k = 13; k >= 1; k -= 2)
    series = Simd::fma(series, z, Simd::all(2.0F / static_cast<float>(k)));
  return Simd::fma(series, s, Simd::max(x, Simd::zero()));
}

// Computes e^x - 1, to about 1 ulp near 0, too.
inline Simd::F exp_less_one(Simd::F x) {
  const ExpParts e = exp_parts(x);
  const Simd::F near = Simd::fma(Simd::mul(e.tail, e.r), e.r, e.r);
  return Simd::fma(near, e.power, Simd::sub(e.power, Simd::all(1.0F)));
}

// What a row brings to a gate, and what the state before it does.
inline Simd::F in_of(const CellStep& step, int gate, int i) {
  return Simd::load(step.in + gate * step.in_stride + i);
}
inline Simd::F inner_of(const CellStep& step, int gate, int i) {
  return Simd::load(step.inner + gate * step.inner_stride + i);
}
inline Simd::F gate_of(const CellStep& step, int gate, int i) {
  return Simd::add(in_of(step, gate, i), inner_of(step, gate, i));
}

// Gates r, z, n.
inline void gru(const CellStep& step) {
  for (int i = 0; i < step.count; i += kLanes) {
    const Simd::F r = sigmoid(gate_of(step, 0, i));
    const Simd::F n = tanh_lanes(Simd::fma(r, inner_of(step, 2, i), in_of(step, 2, i)));
    const Simd::F more = Simd::sub(Simd::load(step.before + i), n);
    Simd::store(step.after + i, Simd::fma(sigmoid(gate_of(step, 1, i)), more, n));
  }
}

// Gates i, f, g, o; states h, c.
inline void lstm(const CellStep& step) {
  for (int i = 0; i < step.count; i += kLanes) {
    const Simd::F more = Simd::mul(sigmoid(gate_of(step, 0, i)), tanh_lanes(gate_of(step, 2, i)));
    const Simd::F old = Simd::load(step.before + step.state_stride + i);
    const Simd::F c = Simd::fma(sigmoid(gate_of(step, 1, i)), old, more);
    Simd::store(step.after + step.state_stride + i, c);
    Simd::store(step.after + i, Simd::mul(sigmoid(gate_of(step, 3, i)), tanh_lanes(c)));
  }
}

// Gates i, f, z, o; states h, c, n, m. n is 0 before the first row and at least 1 behind it, where
// the largest exponent is that of the input gate.
inline void slstm(const CellStep& step) {
  const Simd::F one = Simd::all(1.0F);
  for (int i = 0; i < step.count; i += kLanes) {
    const auto old = [&](int number) {
      return Simd::load(step.before + number * step.state_stride + i);
    };
    const auto keep = [&](int number, Simd::F value) {
      Simd::store(step.after + number * step.state_stride + i, value);
    };
    const Simd::F n = old(2);
    const Simd::F entering = gate_of(step, 0, i);
    const Simd::F loss = softplus(Simd::sub(Simd::zero(), gate_of(step, 1, i)));
    const Simd::F nothing = Simd::max(Simd::zero(), Simd::sub(one, n));
    const Simd::F fall = Simd::fma(nothing, Simd::all(-1e30F), Simd::sub(old(3), loss));
    const Simd::F most = Simd::max(entering, fall);
    const Simd::F stay = exp_lanes(Simd::sub(fall, most));
    const Simd::F add = exp_lanes(Simd::sub(entering, most));
    const Simd::F more = Simd::mul(add, tanh_lanes(gate_of(step, 2, i)));
    const Simd::F c = Simd::fma(stay, old(1), more);
    const Simd::F norm = Simd::fma(stay, n, add);
    keep(0, Simd::mul(sigmoid(gate_of(step, 3, i)), Simd::div(c, norm)));
    keep(1, c);
    keep(2, norm);
    keep(3, most);
  }
}

// Mamba-1. A state has a number of each unit, then the next one of each.
inline void scan(const CellStep& step) {
  for (int i = 0; i < step.count; i += kLanes) {
    const Simd::F u = Simd::load(step.in + i);
    const Simd::F d = softplus(Simd::load(step.inner + i));
    const Simd::F more = Simd::mul(d, u);
    Simd::F y = Simd::mul(u, Simd::load(step.weight + i));
    for (int n = 0; n < step.numbers; ++n) {
      const int at = n * step.state_stride + i;
      const Simd::F fall = exp_lanes(Simd::mul(d, Simd::load(step.decay + at)));
      const Simd::F h =
          Simd::fma(fall, Simd::load(step.before + at), Simd::mul(more, Simd::all(step.keys[n])));
      Simd::store(step.after + at, h);
      y = Simd::fma(h, Simd::all(step.queries[n]), y);
    }
    Simd::store(step.out + i, y);
  }
}

// RG-LRU: gates of the input and of the rate.
inline void linear_unit(const CellStep& step) {
  for (int i = 0; i < step.count; i += kLanes) {
    const Simd::F entering = Simd::mul(sigmoid(inner_of(step, 0, i)), Simd::load(step.in + i));
    if (step.before == nullptr) {
      Simd::store(step.after + i, entering);
      continue;
    }
    const Simd::F fall = Simd::mul(sigmoid(inner_of(step, 1, i)), Simd::load(step.weight + i));
    float share[kLanes];
    Simd::store(share, Simd::sub(Simd::zero(), exp_less_one(Simd::add(fall, fall))));
    for (float& each : share) each = std::sqrt(each);
    const Simd::F more = Simd::mul(Simd::load(share), entering);
    Simd::store(step.after + i, Simd::fma(exp_lanes(fall), Simd::load(step.before + i), more));
  }
}

}  // namespace
}  // namespace paradecode
