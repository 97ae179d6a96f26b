#pragma once

// What CARoPE's gate makes of a logit z, for every type of number: a frequency
//   f(z) = 1 / (softplus(z) + 1), in (0, 1), with df/dz = -f² σ(z).
// `Math` has abs(), max(), divide(), log1p() and exp_of_negative() for the number. Each device has
// its own, since a frequency's last bits depend on them.

#ifdef __CUDACC__
#define CAROPE_HOST_DEVICE __host__ __device__
#else
#define CAROPE_HOST_DEVICE
#endif

namespace carope::gate {

/// e^-|z|, from which the other functions follow.
template <class Math, class Number>
CAROPE_HOST_DEVICE inline Number decayed(Number z) {
  return Math::exp_of_negative(-Math::abs(z));
}

/// log(1 + e^z), given e^-|z|.
template <class Math, class Number>
CAROPE_HOST_DEVICE inline Number softplus(Number z, Number decayed) {
  return Math::max(z, Number(0)) + Math::log1p(decayed);
}

/// f(z) in units of `one`, given e^-|z|.
template <class Math, class Number>
CAROPE_HOST_DEVICE inline Number frequency(Number z, Number decayed, Number one = Number(1)) {
  return Math::divide(one, softplus<Math>(z, decayed) + Number(1));
}

/// σ(z), given e^-|z|.
template <class Math, class Number>
CAROPE_HOST_DEVICE inline Number sigmoid(Number z, Number decayed) {
  return Math::divide(z < Number(0) ? decayed : Number(1), Number(1) + decayed);
}

}  // namespace carope::gate
