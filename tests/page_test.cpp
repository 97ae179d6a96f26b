// The page as a browser sees it: well-formed, closed, escaped, and every mark where its number is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <regex>
#include <set>

#include "core/file.h"
#include "report/page.h"
#include "report/svg.h"
#include "report/text.h"
#include "support/png.h"
#include "support/run_folders.h"

namespace carope::test {
namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

/// Half of the last digit that coordinates are written with, and that of a tick.
constexpr double kPixel = 0.11;

std::string made_page(const std::filesystem::path& folder) {
  write_experiment(folder);
  const RunCollection collection = load_runs({folder});
  return report_page(collection.title, group_runs(collection.runs));
}

std::string made_page() {
  const TemporaryFolder folder;
  return made_page(folder.path());
}

/// The part of a page from a title to the end of its figure.
std::string figure_of(const std::string& page, const std::string& title) {
  const std::size_t begin = page.find("<h2>" + title + "</h2>");
  EXPECT_NE(begin, std::string::npos) << title;
  return begin == std::string::npos ? ""
                                    : page.substr(begin, page.find("</figure>", begin) - begin);
}

/// The groups of every match.
std::vector<std::vector<std::string>> matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::vector<std::string>> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    found.emplace_back();
    for (std::size_t i = 1; i < it->size(); ++i) {
      found.back().push_back((*it)[i]);
    }
  }
  return found;
}

/// From numbers to places, as the first and the last tick of a chart say.
struct Ruler {
  double from, to, from_place, to_place;
  bool log;

  double place(double number) const {
    const auto at = [&](double value) { return log ? std::log(value) : value; };
    return from_place + (to_place - from_place) * (at(number) - at(from)) / (at(to) - at(from));
  }
};

/// Reads one axis. `kind` is "x" or "y".
Ruler ruler(const std::string& figure, const std::string& kind, bool log) {
  const std::string coordinates = R"re(x="([-.\d]+)" y="([-.\d]+)")re";
  const auto ticks = matches(figure, "class=\"tick " + kind + "\" " + coordinates +
                                         R"re((?: dy="4")?>([-.\d]+)([kM]?)<)re");
  EXPECT_GE(ticks.size(), 2U) << figure;
  const auto number = [](const auto& tick) {
    return std::stod(tick[2]) * (tick[3] == "k" ? 1e3 : tick[3] == "M" ? 1e6 : 1.0);
  };
  const std::size_t axis = kind == "x" ? 0 : 1;
  return {number(ticks.front()), number(ticks.back()), std::stod(ticks.front()[axis]),
          std::stod(ticks.back()[axis]), log};
}

/// Where the marks of a slot are, in the chart and not in the legend.
std::vector<Point> marks(const std::string& figure, int slot) {
  std::vector<Point> points;
  for (const auto& found :
       matches(figure, fmt::format("class=\"mark s{}\" d=\"[^\"]*\" "
                                   "transform=\"translate\\(([-.\\d]+) ([-.\\d]+)\\)",
                                   slot))) {
    points.push_back({std::stod(found[0]), std::stod(found[1])});
  }
  return points;
}

void expect_at(const Point& point, const Ruler& x, double x_number, const Ruler& y,
               double y_number) {
  EXPECT_THAT(point.x, DoubleNear(x.place(x_number), kPixel)) << x_number;
  EXPECT_THAT(point.y, DoubleNear(y.place(y_number), kPixel)) << y_number;
}

/// What is wrong with the tags of a page; empty if nothing is.
std::string complaint_about(const std::string& page) {
  static const std::set<std::string> kVoid{"meta", "!DOCTYPE"};
  const std::regex attributes(R"re(( [-a-zA-Z]+="[^"<]*"| disabled| selected| html)*)re");
  std::vector<std::string> open;
  for (std::size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const std::size_t end = page.find('>', at);
    if (end == std::string::npos) {
      return "a tag without an end";
    }
    std::string tag = page.substr(at + 1, end - at - 1);
    const bool closes = tag.starts_with("/");
    const bool empty = tag.ends_with("/");
    tag = tag.substr(closes ? 1 : 0, tag.size() - (closes ? 1 : 0) - (empty ? 1 : 0));
    const std::string name = tag.substr(0, tag.find(' '));
    const std::string rest = tag.substr(name.size());
    if (closes) {
      if (open.empty() || open.back() != name) {
        return fmt::format("</{}> closes {}", name, open.empty() ? "nothing" : open.back());
      }
      open.pop_back();
    } else if (rest.size() < 4000 && !std::regex_match(rest, attributes)) {
      return fmt::format("<{}> has bad attributes", tag);
    } else if (!empty && !kVoid.contains(name)) {
      open.push_back(name);
      if (name == "script" || name == "style") {
        at = page.find("</" + name, at) - 1;
        continue;
      }
    }
    at = end - 1;
  }
  return open.empty() ? "" : open.back() + " is never closed";
}

TEST(Page, IsWellFormed) {
  EXPECT_EQ(complaint_about("<p><b>x</b></p>"), "");
  EXPECT_EQ(complaint_about("<p><b>x</p>"), "</p> closes b");
  EXPECT_EQ(complaint_about(made_page()), "");
}

TEST(Page, LoadsNothing) {
  const std::string page = made_page();
  for (const char* word :
       {"http:", "https:", "src=", "href", "url(", "@import", "fetch(", "<link"}) {
    EXPECT_THAT(page, Not(HasSubstr(word)));
  }
}

TEST(Page, TextsCannotBecomeTags) {
  const std::string page = made_page();
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, Not(HasSubstr("<first>")));
  EXPECT_THAT(page, Not(HasSubstr("\x01")));
  const std::string passage = figure_of(page, "What it sees in a text");
  EXPECT_THAT(passage,
              AllOf(HasSubstr("> &lt;b&gt;</span>"), HasSubstr("> &amp;amp;</span>"),
                    HasSubstr("> &quot;x&quot;</span>"), HasSubstr("> &#39;y&#39;</span>"),
                    HasSubstr(">&lt;/script&gt;</span>"), HasSubstr(">\uFFFD</span>"),
                    HasSubstr("> café</span>"), HasSubstr("><i>↵</i>\n<i>↵</i>\n</span>")));
  for (const char* title :
       {"Past the length it was trained at", "What it costs", "How training went"}) {
    EXPECT_THAT(figure_of(page, title), HasSubstr("&lt;script&gt;alert(&#39;|&#39;)"));
  }
}

TEST(Page, PerplexitiesStandAtTheirHeights) {
  const std::string figure = figure_of(made_page(), "Past the length it was trained at");
  const Ruler x = ruler(figure, "x", true);
  const Ruler y = ruler(figure, "y", true);
  const auto carope = marks(figure, 0);
  ASSERT_THAT(carope, SizeIs(2));
  expect_at(carope[0], x, 64, y, 11);  // the means of two seeds
  expect_at(carope[1], x, 128, y, 18);
  ASSERT_THAT(marks(figure, 1), SizeIs(2));
  expect_at(marks(figure, 1)[1], x, 128, y, 160);
  ASSERT_THAT(marks(figure, 2), SizeIs(1));  // learnable has no second length
  expect_at(marks(figure, 2)[0], x, 64, y, 14);
  EXPECT_THAT(marks(figure, 5), SizeIs(0));  // none was not evaluated

  // The band of carope covers the intervals of both seeds: 9 to 13.2 and 14.4 to 22.
  const auto band = matches(figure,
                            "class=\"band s0\" d=\"M([-.\\d]+) ([-.\\d]+)L([-.\\d]+) "
                            "([-.\\d]+)L([-.\\d]+) ([-.\\d]+)L([-.\\d]+) ([-.\\d]+)z\"");
  ASSERT_THAT(band, SizeIs(1));
  expect_at({std::stod(band[0][0]), std::stod(band[0][1])}, x, 64, y, 13.2);
  expect_at({std::stod(band[0][2]), std::stod(band[0][3])}, x, 128, y, 22);
  expect_at({std::stod(band[0][4]), std::stod(band[0][5])}, x, 128, y, 14.4);
  expect_at({std::stod(band[0][6]), std::stod(band[0][7])}, x, 64, y, 9);
  const auto trained = matches(figure, "class=\"reference\" d=\"M([-.\\d]+) ");
  ASSERT_THAT(trained, SizeIs(1));
  EXPECT_THAT(std::stod(trained[0][0]), DoubleNear(x.place(64), kPixel));
  EXPECT_THAT(figure, AllOf(HasSubstr("trained at 64"), HasSubstr(">18.00</text>")));
}

TEST(Page, LossesStandAtTheirHeights) {
  const std::string page = made_page();
  const std::string losses = figure_of(page, "How training went");
  const Ruler x = ruler(losses, "x", false);
  const Ruler y = ruler(losses, "y", false);
  ASSERT_THAT(marks(losses, 1), SizeIs(2));
  expect_at(marks(losses, 1)[0], x, 2000, y, 2.5);
  expect_at(marks(losses, 1)[1], x, 4000, y, 2.25);
  const auto line = matches(losses,
                            "class=\"line s1\" d=\"M([-.\\d]+) ([-.\\d]+)L([-.\\d]+) "
                            "([-.\\d]+)L[^\"]*L([-.\\d]+) ([-.\\d]+)\"");
  ASSERT_THAT(line, SizeIs(1));
  expect_at({std::stod(line[0][0]), std::stod(line[0][1])}, x, 1000, y, 5);
  expect_at({std::stod(line[0][4]), std::stod(line[0][5])}, x, 4000, y, 2);

  const std::string positions = figure_of(page, "Where in the window it fails");
  const Ruler place = ruler(positions, "x", false);
  const Ruler height = ruler(positions, "y", false);
  const auto found = marks(positions, 1);
  ASSERT_THAT(found, SizeIs(4));  // every eighth of 32
  // A point stands for four positions, in the middle of them.
  expect_at(found[0], place, 1.5, height, 4.0);
  expect_at(found[3], place, 97.5, height, 4.0 - 96.0 / 256.0);
  EXPECT_THAT(marks(positions, 2), SizeIs(2));  // learnable's windows are half as long
}

TEST(Page, BarsAreAsLongAsTheSpeeds) {
  const TemporaryFolder folder;
  write_run(folder / "rope", {.encoding = "rope"});
  write_run(folder / "carope", {.encoding = "carope"});
  write_bytes(folder / "carope" / "metrics.jsonl",
              R"({"step":1,"tokens":8,"loss":2.0,"tokens_per_second":57.5})");
  const RunCollection collection = load_runs({folder / "rope", folder / "carope"});
  const std::string figure =
      figure_of(report_page("t", group_runs(collection.runs)), "What it costs");
  const auto bars = matches(figure, "class=\"bar s(\\d)\"[^>]* width=\"([.\\d]+)\"");
  ASSERT_THAT(bars, SizeIs(2));
  EXPECT_THAT(bars[0], ElementsAre("1", "310.0"));
  EXPECT_THAT(bars[1], ElementsAre("0", "155.0"));
  EXPECT_THAT(figure,
              AllOf(HasSubstr(">115 tokens/s</text>"), HasSubstr(">58 tokens/s · 50 %</text>")));
}

TEST(Page, TheGateStandsWhereItsNumbersAre) {
  const std::string page = made_page();
  EXPECT_THAT(page, HasSubstr("What the gate of carope learned, seed 1"));
  const std::string figure = figure_of(page, "The frequencies it gives to tokens");
  const std::string second = figure.substr(figure.find(">layer 1</text>"));
  const Ruler x = ruler(second, "x", false);
  const auto boxes = matches(second, "class=\"box\" d=\"M([.\\d]+) [.\\d]+H([.\\d]+)\"");
  ASSERT_THAT(boxes, SizeIs(2));
  EXPECT_THAT(std::stod(boxes[1][0]), DoubleNear(x.place(0.5), kPixel));  // layer 1, head 1: 0.6
  EXPECT_THAT(std::stod(boxes[1][1]), DoubleNear(x.place(0.7), kPixel));
  const auto start = matches(figure, "class=\"reference\" d=\"M([.\\d]+) ");
  ASSERT_THAT(start, SizeIs(2));
  EXPECT_THAT(std::stod(start[1][0]), DoubleNear(x.place(0.5), kPixel));  // 65536^(-1/16)
  EXPECT_THAT(figure, HasSubstr("RoPE 0.500"));

  const std::string bases = figure_of(page, "As if each head had a base of its own");
  const Ruler base = ruler(bases, "x", true);
  const auto discs = matches(bases, "class=\"disc\" cx=\"([.\\d]+)\"");
  ASSERT_THAT(discs, SizeIs(4));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_THAT(std::stod(discs[i][0]), DoubleNear(base.place(std::pow(10.0, 1 + i)), kPixel)) << i;
  }
}

TEST(Page, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  write_run(folder / "a", {});
  const RunCollection collection = load_runs({folder / "a"});
  const std::string page = report_page("t", group_runs(collection.runs));
  EXPECT_EQ(complaint_about(page), "");
  EXPECT_THAT(page, AllOf(HasSubstr("No run here has been evaluated"), HasSubstr("One seed each"),
                          Not(HasSubstr("Past the length")), Not(HasSubstr("What the gate"))));
}

TEST(Page, TicksAreRound) {
  const auto texts = [](const Axis& axis) {
    std::vector<std::string> found;
    for (const Tick& tick : number_ticks(axis, 5)) {
      found.push_back(tick.text);
    }
    return found;
  };
  EXPECT_THAT(texts(Axis::linear_exact({0, 1e9})),
              ElementsAre("0", "200M", "400M", "600M", "800M", "1B"));
  EXPECT_THAT(texts(Axis::linear_exact({3.31, 3.52})), ElementsAre("3.35", "3.4", "3.45", "3.5"));
  EXPECT_THAT(texts(Axis::log({21, 220})), ElementsAre("20", "50", "100", "200"));
  EXPECT_THAT(texts(Axis::log({28.5, 30.5})), ElementsAre("28.5", "29", "29.5", "30", "30.5"));
  EXPECT_THAT(texts(Axis::log({1e3, 1e33})), Not(SizeIs(testing::Gt(8))));
  EXPECT_EQ(tick_text(1e18), "10¹⁸");
  EXPECT_EQ(grouped(1234567), "1\u2009234\u2009567");
}

/// A command that is a browser of Chromium's family; empty if there is none.
std::string browser() {
  for (const std::string name : {"chromium", "chromium-browser", "google-chrome"}) {
    if (std::system(("command -v " + name + " >/dev/null 2>&1").c_str()) == 0) {
      return name;
    }
  }
  return "";
}

/// Opens a page in a window that nobody sees; returns what the browser prints.
std::string browse(const std::filesystem::path& page, int width, const std::string& options) {
  const std::string command = fmt::format(
      "timeout 60 {} --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage "
      "--hide-scrollbars --force-color-profile=srgb --virtual-time-budget=2000 "
      "--user-data-dir='{}' --window-size={},1600 {} 'file://{}' 2>/dev/null",
      browser(), (page.parent_path() / "browser").string(), width, options, page.string());
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer{};
  for (std::size_t count = 0; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    output.append(buffer.data(), count);
  }
  pclose(pipe);
  return output;
}

TEST(Page, ABrowserPaintsItsColours) {
  if (browser().empty()) {
    GTEST_SKIP() << "no chromium here to look at the page with";
  }
  const TemporaryFolder folder;
  const auto page = write_bytes(folder / "report.html", made_page(folder.path()));
  for (const auto& [width, dark, carope] : {std::tuple{1400, 1, 0xd14e00U}, {400, 0, 0xff8a47U}}) {
    const auto picture = folder / "page.png";
    browse(page, width,
           fmt::format("--screenshot='{}' --blink-settings=preferredColorScheme={}",
                       picture.string(), dark));
    const Image image = read_png(read_file(picture));
    EXPECT_EQ(image.width, static_cast<std::uint32_t>(width));
    EXPECT_EQ(image.height, 1600U);
    EXPECT_GT(std::set(image.pixels.begin(), image.pixels.end()).size(), 200U);
    EXPECT_GT(std::count(image.pixels.begin(), image.pixels.end(), carope),
              80);  // at least the swatch
    std::filesystem::remove(picture);
  }
}

/// Shows a page in a frame of a width, and leaves what it finds on the root element.
constexpr const char* kFrame =
    "<!DOCTYPE html><html><head></head><body><script>onmessage = event => "
    "document.documentElement.setAttribute('data-found', event.data);</script>"
    "<iframe width=\"{}\" height=\"1600\" style=\"border: 0\" "
    "srcdoc=\"{}\"></iframe></body></html>";

/// Looks at the page from within and tells the window around it.
constexpr const char* kProbe = R"js(<script>
let found = "";
const say = (name, value) => { found += name + "=" + value + ";"; };
say("overflow", document.documentElement.scrollWidth -
    document.documentElement.clientWidth);
say("width", innerWidth);
const trouble = [];
for (const svg of document.querySelectorAll("figure svg")) {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
  texts.forEach(([text, box], i) => {
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1) {
      trouble.push("clipped " + text);
    }
    for (const [other, at] of texts.slice(i + 1)) {
      const wide = Math.min(box.right, at.right) - Math.max(box.left, at.left);
      const high = Math.min(box.bottom, at.bottom) - Math.max(box.top, at.top);
      if (wide > 1 && high > 4) trouble.push(text + " touches " + other);
    }
  });
}
say("trouble", trouble.join(", ") || "none");
const colours = () => [...document.querySelectorAll(".passage span")]
    .map(token => getComputedStyle(token).backgroundColor + token.title).join(" ");
const before = colours();
const [layer, head] = document.querySelectorAll(".tokens select");
const choose = (select, value) => { select.value = value; select.dispatchEvent(new Event("change")); };
choose(head, "1");
const second = colours();
choose(layer, "1");
say("changed", [before !== second, second !== colours()].join());
say("title", document.querySelector(".passage span").title);
choose(layer, "0");
choose(head, "0");
say("back", before === colours());
parent.postMessage(found, "*");
</script></body>)js";

TEST(Page, FitsScreensAndAnswersChoices) {
  if (browser().empty()) {
    GTEST_SKIP() << "no chromium here to look at the page with";
  }
  const TemporaryFolder folder;
  std::string html = made_page(folder.path());
  html.replace(html.find("</body>"), 7, kProbe);
  for (const int width : {1400, 400}) {
    // A window is never narrower than 500 pixels, a frame in it may be.
    const auto page =
        write_bytes(folder / "frame.html", fmt::format(kFrame, width, escape_html(html)));
    const std::string dom = browse(page, 1600, "--dump-dom");
    EXPECT_THAT(dom.substr(0, dom.find("<head>")),
                AllOf(HasSubstr(fmt::format("width={};", width)), HasSubstr("overflow=0;"),
                      HasSubstr("trouble=none;"), HasSubstr("changed=true,true;"),
                      HasSubstr("title=f = 0.4500;"),  // layer 1, head 1, token 0
                      HasSubstr("back=true;")));
  }
}

}  // namespace
}  // namespace carope::test
