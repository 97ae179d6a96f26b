#include "report/page.h"

namespace carope {

std::string_view page_style() {
  return R"css(:root {
  --paper: #fdfdfc; --panel: #ffffff; --ink: #1b1f24; --soft: #5b6470; --faint: #e7e9ec;
  --rule: #b9bfc7; --beyond: #f3f1ea; --slow: 0 114 178; --fast: 230 130 0;
  --c0: #d14e00; --c1: #0069a8; --c2: #008a63; --c3: #ad4a8b; --c4: #b58500; --c5: #68717d;
  --c6: #5a4fcf; --c7: #2f95c4; --c8: #7c4d1f; --c9: #37604b; --c10: #b3243f; --c11: #8a8f1d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --panel: #1a1e23; --ink: #e8eaed; --soft: #9aa4b0; --faint: #2b3138;
    --rule: #56606b; --beyond: #20242b; --slow: 64 150 220; --fast: 240 140 30;
    --c0: #ff8a47; --c1: #5fb2f0; --c2: #35cc9f; --c3: #e69bcf; --c4: #efc04f; --c5: #a9b3bf;
    --c6: #a199ff; --c7: #93d6f5; --c8: #cf9f6f; --c9: #8fbfa3; --c10: #ff8095; --c11: #d3d86a;
  }
}
.s0 { --c: var(--c0); } .s1 { --c: var(--c1); } .s2 { --c: var(--c2); } .s3 { --c: var(--c3); }
.s4 { --c: var(--c4); } .s5 { --c: var(--c5); } .s6 { --c: var(--c6); } .s7 { --c: var(--c7); }
.s8 { --c: var(--c8); } .s9 { --c: var(--c9); } .s10 { --c: var(--c10); } .s11 { --c: var(--c11); }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; }
main { max-width: 1120px; margin: 0 auto; padding: 48px 24px 64px; }
h1, h2 { line-height: 1.25; letter-spacing: -0.01em; margin: 0; overflow-wrap: anywhere; }
header h1 { font-size: 32px; }
section > h1 { font-size: 22px; margin: 0 0 20px; padding-top: 28px; border-top: 1px solid var(--faint); }
h2 { font-size: 16px; font-weight: 650; margin-bottom: 10px; }
.kicker { margin: 0 0 4px; color: var(--soft); font-size: 13px; letter-spacing: 0.02em; }
.facts { display: flex; flex-wrap: wrap; gap: 10px 36px; margin: 20px 0 36px; }
.facts dt { color: var(--soft); font-size: 12px; }
.facts dd { margin: 0; font-size: 14px; overflow-wrap: anywhere; }
.lead { margin: 0; color: var(--soft); font-size: 13px; }
.findings { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 32px; margin: 2px 0 28px; padding: 0; font-size: 17px; }
.findings li { overflow-wrap: anywhere; }
.findings span { color: var(--soft); }
.findings em { font-style: normal; font-size: 13px; color: var(--soft); }
.scroll { overflow-x: auto; }
table.results { border-collapse: collapse; border-top: 2px solid var(--ink); border-bottom: 2px solid var(--ink); min-width: min(100%, 720px); }
.results th, .results td { padding: 7px 14px; text-align: right; font-weight: 400; white-space: nowrap; }
.results .name { text-align: left; padding-left: 2px; position: sticky; left: 0; background: var(--paper);
  max-width: min(45vw, 280px); overflow: hidden; text-overflow: ellipsis; }
.results thead th { color: var(--soft); font-size: 13px; }
.results thead tr:first-child th { text-align: center; padding-bottom: 0; }
.results thead tr:last-child > * { border-bottom: 1px solid var(--rule); }
.results tbody td { font-size: 15px; }
.results .paper { color: var(--soft); }
.results th.paper:nth-last-child(2), .results td.paper:nth-last-child(2) { padding-left: 36px; }
.results tbody tr:hover > * { background: var(--faint); }
.results strong { font-weight: 700; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px; background: var(--c); margin-right: 9px; }
.note, figcaption { color: var(--soft); font-size: 13px; line-height: 1.5; }
.note { margin: 10px 0 0; max-width: 80ch; }
.figures { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 44px 48px; margin: 44px 0 48px; }
section > .figures { margin-top: 0; }
figure { margin: 0; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
figcaption { margin-top: 8px; max-width: 90ch; }
figure > svg { display: block; width: 100%; height: auto; max-width: 620px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(240px, 100%), 1fr)); gap: 20px 24px; }
@media (min-width: 861px) { .panels.thirds { grid-template-columns: repeat(3, 1fr); gap: 20px 32px; } }
.panels svg { display: block; width: 100%; height: auto; max-width: 360px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; list-style: none; margin: 0 0 8px; padding: 0; font-size: 13px; }
.legend li { overflow-wrap: anywhere; }
.legend svg { width: 24px; height: 12px; margin-right: 6px; vertical-align: -1px; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .tick, svg .label, svg .note { fill: var(--soft); font-size: 11px; }
svg .x, svg .middle { text-anchor: middle; }
svg .y, svg .end { text-anchor: end; }
svg .panel { font-weight: 650; }
svg .token { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
svg .value { fill: var(--c, var(--soft)); font-size: 11.5px; font-weight: 600; }
svg .tick.value { fill: var(--ink); font-size: 11px; font-weight: 400; }
.axis { stroke: var(--rule); fill: none; }
.grid { stroke: var(--faint); fill: none; }
.beyond { fill: var(--beyond); }
.reference { stroke: var(--soft); stroke-dasharray: 4 3; fill: none; }
.line { stroke: var(--c); stroke-width: 1.8; fill: none; stroke-linejoin: round; stroke-linecap: round; }
.thin { stroke-width: 1.1; opacity: 0.75; }
.band { fill: var(--c); opacity: 0.16; }
.leader { stroke: var(--c); fill: none; opacity: 0.6; }
.mark { fill: var(--c); stroke: var(--paper); stroke-width: 1; }
.bar { fill: var(--c); }
.part { stroke: var(--ink); stroke-width: 1.4; }
svg .name { font-weight: 600; }
.ridge { fill: var(--c); opacity: 0.4; }
.whisker { stroke: var(--c); stroke-width: 1; }
.box { stroke: var(--c); stroke-width: 3.4; }
.median { stroke: var(--ink); stroke-width: 1.6; }
.disc { fill: var(--c); }
svg .in-disc { fill: var(--paper); font-size: 9px; font-weight: 700; text-anchor: middle; }
.choices { display: flex; flex-wrap: wrap; align-items: center; gap: 8px 18px; margin: 0 0 12px; font-size: 14px; }
select { font: inherit; color: var(--ink); background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: 3px 8px; }
.scale { display: inline-flex; flex-wrap: wrap; align-items: center; gap: 2px 8px; color: var(--soft); font-size: 13px; }
.scale b { font-weight: 600; color: var(--ink); }
.ramp { width: 120px; height: 12px; border-radius: 3px; background: linear-gradient(90deg, rgb(var(--slow) / 0.65), rgb(var(--slow) / 0), rgb(var(--fast) / 0.65)); }
.passage { margin: 0; padding: 16px 18px; border: 1px solid var(--faint); border-radius: 8px; background: var(--panel);
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: 16px; line-height: 1.9; max-height: 460px; overflow-y: auto; }
.passage span { padding: 2px 0; border-radius: 3px; }
.passage i { color: var(--soft); font-style: normal; }
.slow { background: rgb(var(--slow) / calc(var(--a) * 0.65)); }
.fast { background: rgb(var(--fast) / calc(var(--a) * 0.65)); }
details { border-bottom: 1px solid var(--faint); }
summary { padding: 8px 2px; cursor: pointer; overflow-wrap: anywhere; }
pre { margin: 0 0 14px; padding: 12px 16px; overflow-x: auto; background: var(--panel); border: 1px solid var(--faint); border-radius: 8px; font-size: 12.5px; line-height: 1.5; }
footer { margin-top: 36px; color: var(--soft); font-size: 13px; }
@media (max-width: 860px) {
  main { padding: 28px 16px 48px; }
  header h1 { font-size: 25px; }
  .figures { grid-template-columns: minmax(0, 1fr); gap: 40px; }
  .results th, .results td { padding: 6px 10px; }
}
@media (max-width: 520px) {
  figure > svg .tick, figure > svg .label, figure > svg .note { font-size: 13.5px; }
  figure > svg .value, figure > svg .name, figure > svg .number { font-size: 13px; }
  .panels svg { max-width: 300px; }
}
@media print { details { display: none; } .passage { max-height: none; } }
)css";
}

std::string_view page_script() {
  return R"js(for (const figure of document.querySelectorAll(".tokens")) {
  const all = JSON.parse(figure.querySelector("script").textContent);
  const [layer, head] = figure.querySelectorAll("select");
  const tokens = figure.querySelectorAll(".passage span");
  const quantile = (values, part) => [...values].sort((a, b) => a - b)[Math.round(part * (values.length - 1))];
  const write = (name, value) => { figure.querySelector(name).textContent = value.toFixed(3); };
  const paint = () => {
    const shown = all[layer.value][head.value].map(f => f / 1e4);
    const median = quantile(shown, 0.5);
    const spread = Math.max(quantile(shown.map(f => Math.abs(f - median)), 0.95), 0.005);
    write(".low", median - spread);
    write(".mid", median);
    write(".high", median + spread);
    tokens.forEach((token, i) => {
      const at = Math.max(-1, Math.min(1, (shown[i] - median) / spread));
      token.className = at < 0 ? "slow" : "fast";
      token.style.setProperty("--a", Math.abs(at).toFixed(2));
      token.title = "f = " + shown[i].toFixed(4);
    });
  };
  for (const select of [layer, head]) {
    select.disabled = false;
    select.addEventListener("change", paint);
  }
  paint();
}
)js";
}

}  // namespace carope
