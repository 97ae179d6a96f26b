#include "core/random.h"

#include <cmath>
#include <numbers>

namespace carope {
namespace {

constexpr double kTwoToMinus64 = 0x1p-64;

std::uint64_t join(std::uint32_t high, std::uint32_t low) {
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

}  // namespace

std::array<std::uint32_t, 4> Philox::operator()(std::uint64_t counter) const {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10;

  std::array<std::uint32_t, 4> x{
      static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
      static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)};
  auto key0 = static_cast<std::uint32_t>(seed_);
  auto key1 = static_cast<std::uint32_t>(seed_ >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * x[0];
    const std::uint64_t product1 = kMultiplier1 * x[2];
    x = {static_cast<std::uint32_t>(product1 >> 32) ^ x[1] ^ key0,
         static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ x[3] ^ key1,
         static_cast<std::uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return x;
}

double Philox::uniform(std::uint64_t i) const {
  const auto x = (*this)(i);
  return static_cast<double>(join(x[0], x[1]) >> 11) * 0x1p-53;
}

double Philox::normal(std::uint64_t i) const {
  const auto x = (*this)(i);
  const double radius_seed = (static_cast<double>(join(x[0], x[1])) + 0.5) * kTwoToMinus64;
  const double turn = static_cast<double>(join(x[2], x[3])) * kTwoToMinus64;
  return std::sqrt(-2.0 * std::log(radius_seed)) * std::cos(2.0 * std::numbers::pi * turn);
}

std::uint32_t Philox::below(std::uint32_t n, std::uint64_t i) const {
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>((*this)(i)[0]) * n) >> 32);
}

}  // namespace carope
