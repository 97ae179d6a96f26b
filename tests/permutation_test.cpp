// A shuffled epoch's order: every number once, and nothing else to be said about it.
#include "data/loader/permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

namespace carope::test {
namespace {

std::vector<std::int64_t> all_of(std::int64_t size, std::uint64_t seed, std::uint64_t stream) {
  const Permutation permutation(size, seed, stream);
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < size; ++i) {
    numbers.push_back(permutation(i));
  }
  return numbers;
}

/// Sum of (found - expected)^2 / expected.
double chi_square(const std::vector<double>& found, double expected) {
  double sum = 0.0;
  for (const double count : found) {
    sum += (count - expected) * (count - expected) / expected;
  }
  return sum;
}

/// How far a chi-square lies from its mean, in standard deviations.
double deviations(double value, double freedom) {
  return (value - freedom) / std::sqrt(2.0 * freedom);
}

TEST(Permutation, HasEveryNumberOnce) {
  std::vector<std::int64_t> sizes{127,  128,  129,  255,   256,   257,   1023,
                                  1024, 1025, 4095, 65535, 65536, 65537, 1000003};
  for (std::int64_t size = 1; size <= 70; ++size) {
    sizes.push_back(size);
  }
  for (const std::int64_t size : sizes) {
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (const std::int64_t number : all_of(size, 1, 2)) {
      ASSERT_TRUE(0 <= number && number < size) << size;
      ASSERT_FALSE(seen[static_cast<std::size_t>(number)]) << number << " twice of " << size;
      seen[static_cast<std::size_t>(number)] = true;
    }
  }
}

// A run that resumes under another version of the program must go on with the same data. These
// numbers come from a separate program, written from the description.
TEST(Permutation, IsTheSameForever) {
  EXPECT_THAT(all_of(10, 1, 0), testing::ElementsAre(0, 1, 3, 4, 5, 8, 9, 6, 2, 7));
  EXPECT_THAT(all_of(10, 1, 1), testing::ElementsAre(1, 2, 8, 9, 5, 3, 6, 0, 7, 4));
  const Permutation large(1'000'000'000'000, 7, 3);
  EXPECT_EQ(large(0), 857379399448);
  EXPECT_EQ(large(1), 880690635671);
  EXPECT_EQ(large(999'999'999'999), 692565116590);
}

TEST(Permutation, OfFewNumbersTakesEveryOrderEquallyOften) {
  for (const auto& [size, orders] :
       std::map<std::int64_t, double>{{2, 2}, {3, 6}, {4, 24}, {5, 120}}) {
    std::map<std::vector<std::int64_t>, double> counts;
    const double expected = 200.0;
    for (std::uint64_t stream = 0; stream < static_cast<std::uint64_t>(orders * expected);
         ++stream) {
      ++counts[all_of(size, 9, stream)];
    }
    ASSERT_EQ(static_cast<double>(counts.size()), orders);
    std::vector<double> found;
    for (const auto& [order, count] : counts) {
      found.push_back(count);
    }
    EXPECT_LT(deviations(chi_square(found, expected), orders - 1.0), 4.0) << size;
  }
}

TEST(Permutation, LeavesNoTraceOfTheOldOrder) {
  constexpr std::int64_t kSize = 64 * 1001;
  constexpr std::int64_t kBoxes = 64;
  for (const std::uint64_t seed : {0U, 1U, 2U}) {
    for (const std::uint64_t stream : {0U, 1U}) {
      const std::vector<std::int64_t> numbers = all_of(kSize, seed, stream);
      std::vector<double> boxes(kBoxes * kBoxes);  // where a number was, and where it is
      std::vector<double> distances(kBoxes);       // from a number to the next, around the end
      int neighbours = 0;
      for (std::int64_t i = 0; i < kSize; ++i) {
        const std::int64_t number = numbers[static_cast<std::size_t>(i)];
        const std::int64_t next = numbers[static_cast<std::size_t>((i + 1) % kSize)];
        ++boxes[static_cast<std::size_t>(i * kBoxes / kSize * kBoxes + number * kBoxes / kSize)];
        const std::int64_t distance = (next - number + kSize) % kSize;
        ++distances[static_cast<std::size_t>(distance * kBoxes / kSize)];
        neighbours += distance == 1 ? 1 : 0;
      }
      EXPECT_LT(std::abs(deviations(chi_square(boxes, 1.0 * kSize / (kBoxes * kBoxes)),
                                    (kBoxes - 1) * (kBoxes - 1))),
                4.0);
      EXPECT_LT(std::abs(deviations(chi_square(distances, 1.0 * kSize / kBoxes), kBoxes - 1)), 4.0);
      EXPECT_LT(neighbours, 8) << "one is to be expected";
    }
  }
}

TEST(Permutation, MovesANumberAnyDistance) {
  // |i - p(i)| / size has mean 1/3 and variance 1/18 if every place is equally likely.
  for (const std::int64_t size : {1000, 4096, 30011}) {
    double sum = 0.0;
    for (std::int64_t i = 0; const std::int64_t number : all_of(size, 3, 4)) {
      sum += std::abs(static_cast<double>(number - i++)) / static_cast<double>(size);
    }
    const double n = static_cast<double>(size);
    EXPECT_NEAR(sum / n, 1.0 / 3.0, 4.0 * std::sqrt(1.0 / 18.0 / n)) << size;
  }
}

TEST(Permutation, OfOtherSeedsAndStreamsAgreesByChanceOnly) {
  const std::vector<std::int64_t> first = all_of(20011, 1, 1);
  int kept = 0;  // places where two orders agree: one for each pair, on average
  for (std::uint64_t i = 0; i < 10; ++i) {
    const std::vector<std::int64_t> other =
        i < 5 ? all_of(20011, 1, 2 + i) : all_of(20011, 2 + i, 1);
    for (std::size_t place = 0; place < first.size(); ++place) {
      kept += first[place] == other[place] ? 1 : 0;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 24);
}

}  // namespace
}  // namespace carope::test
