// The example of a new encoding in the guide and in the README: it is the code that is compiled
// here, it trains, and it is served by the kernels that serve RoPE.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "model/gpt.h"
#include "support/tokens.h"
#include "train/optimizer.h"

namespace carope::encodings {
Encoding even_rope(const ModelShape& shape, OptionReader& options);
}  // namespace carope::encodings

namespace carope::test {
namespace {

const std::filesystem::path kSource = CAROPE_SOURCE_DIR;

GptConfig small_model() {
  return {.layers = 2, .heads = 2, .width = 32, .vocabulary = 40, .length = 24, .encoding = "rope"};
}

Encoding example(const GptConfig& config) {
  OptionReader options("position", {});
  Encoding encoding = encodings::even_rope(config.shape(), options);
  options.finish();
  return encoding;
}

TEST(ExampleEncoding, IsThatOfTheDocuments) {
  const std::string code = read_file(kSource / "tests/examples/even_rope.cpp");
  const std::string function = code.substr(code.find("/// RoPE whose"),
                                           code.find("\n}\n") + 3 - code.find("/// RoPE whose"));
  EXPECT_THAT(read_file(kSource / "README.md"), testing::HasSubstr(function));
  EXPECT_THAT(read_file(kSource / "docs/adding-an-encoding.md"), testing::HasSubstr(code));
}

TEST(ExampleEncoding, Trains) {
  const GptConfig config = small_model();
  Gpt model(config, example(config));
  model.initialise(1);
  Optimizer optimizer(model.parameters(), {});
  Activations a = model.plan({.batch = 4, .length = 24});
  const RandomBatch data(4, 24, 40);
  Context ctx = Context::cpu(2);
  const auto step = [&] {
    const double loss =
        model.loss_and_gradients(ctx, RandomBatch(data).view(), a, Write::kOverwrite);
    optimizer.step(ctx, 1e-2);
    return loss;
  };
  const double first = step();
  double last = first;
  for (int i = 0; i < 20; ++i) {
    last = step();
  }
  EXPECT_LT(last, 0.5 * first);
}

TEST(ExampleEncoding, IsServedAsRopeIs) {
  const GptConfig config = small_model();
  const Encoding encoding = example(config);
  const Gpt rope(config);
  for (const Purpose purpose : {Purpose::kTraining, Purpose::kEvaluation, Purpose::kDecoding}) {
    const Pass pass{.purpose = purpose};
    EXPECT_EQ(describe(make_plan(config, encoding, {}, DType::kF32, pass)),
              describe(make_plan(config, rope.encoding(), {}, DType::kF32, pass)));
  }
  EXPECT_EQ(Gpt(config, encoding).plan({.length = 24}).bytes(), rope.plan({.length = 24}).bytes());
}

}  // namespace
}  // namespace carope::test
