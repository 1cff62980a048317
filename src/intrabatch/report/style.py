"""The page's style and its one small script, as texts inside the page: a report is one file."""

from __future__ import annotations

from .palette import NEUTRAL, RIGHT, SERIES, WRONG

_COLOURS = """
:root {{ color-scheme: light dark; --paper: #fbfaf7; --raised: #ffffff; --ink: #1c2026; --soft: #5f656e;
  --rule: #e2dfd8;
  --track: #ebe8e1; --right: {right}; --wrong: {wrong}; --neutral: {neutral}; {light} }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: #131519; --raised: #1b1e24; --ink: #e8e6e1; --soft: #a0a5ae;
  --rule: #2b2f37; --track: #262a31; --right: #3fb573; --wrong: #f0685d; {dark} }} }}
"""

_SERIES = ".s{i} {{ --series: var(--s{i}); --dashes: {dashes}; }}"

_PAGE = """
* { box-sizing: border-box; }
body { margin: 0; overflow-wrap: anywhere; background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: clamp(28px, 6vw, 72px) clamp(20px, 5vw, 56px); }
h1, .lede { font-family: "Iowan Old Style", "Palatino Linotype", Palatino, Charter, Georgia, "DejaVu Serif", serif; }
h1 { font-size: clamp(29px, 4.6vw, 46px); line-height: 1.15; font-weight: 600; letter-spacing: -.015em;
  margin: 0 0 22px; text-wrap: balance; }
h2 { font-size: 17px; line-height: 1.35; font-weight: 650; margin: 0 0 8px; }
p { margin: 0 0 12px; max-width: 68ch; text-wrap: pretty; }
code { font: .88em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  background: var(--track); padding: .12em .38em; border-radius: 4px; }
code span { display: inline-block; max-width: 100%; }
figure { margin: 0; }
.eyebrow { font-size: 12px; letter-spacing: .09em; text-transform: uppercase; color: var(--soft); margin: 0 0 14px; }
.lede { font-size: clamp(19px, 2.2vw, 22px); line-height: 1.5; margin-bottom: 18px; }
header { padding-bottom: clamp(28px, 4vw, 48px); }
section { border-top: 1px solid var(--rule); padding: 30px 0 clamp(40px, 5vw, 60px); }
section > div { min-width: 0; }
aside { color: var(--soft); font-size: 14px; line-height: 1.5; margin-bottom: 22px; }
aside h2 { color: var(--ink); }
@media (min-width: 900px) { section { display: grid; grid-template-columns: 204px minmax(0, 1fr); gap: 52px; }
  aside { margin: 0; } }
.soft { color: var(--soft); font-size: 14px; }

.bars { display: grid; grid-template-columns: fit-content(40%) minmax(0, 1fr) max-content; gap: 10px 16px;
  grid-auto-flow: row dense; align-items: center; margin: 0 0 30px; }
.bars > * { min-width: 0; }
.bars .track { position: relative; height: 16px; background: var(--track); border-radius: 3px; }
.bars .fill { position: absolute; inset: 0 auto 0 0; min-width: 2px; background: var(--series, var(--neutral));
  border-radius: 3px; }
.bars .range { position: absolute; top: 50%; height: 2px; margin-top: -1px; background: var(--ink); }
.bars .range::before, .bars .range::after { content: ""; position: absolute; top: -4px; height: 10px; width: 2px;
  background: var(--ink); }
.bars .range::after { right: 0; }
.bars .name { grid-column: 1; } .bars .track { grid-column: 2; } .bars .figure { grid-column: 3; }
.bars .figure { font-variant-numeric: tabular-nums; text-align: right; font-weight: 600; }
.bars .caption { grid-column: 1 / -1; margin: 0; }
.thin .track { height: 8px; } .thin .figure { font-weight: 400; } .thin { gap: 5px 16px; margin-bottom: 12px; }
@media (max-width: 560px) { .bars { grid-template-columns: minmax(0, 1fr) max-content; gap: 2px 12px; }
  .bars .track { grid-column: 1 / -1; margin-bottom: 8px; } .bars .figure { grid-column: 2; }
  th:first-child { position: sticky; left: 0; background: var(--paper); } }

.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin-bottom: 8px; }
th, td { padding: 11px 0 11px 22px; text-align: right; vertical-align: top; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th:first-child { padding-left: 0; text-align: left; white-space: normal; min-width: 150px; font-weight: 500; }
thead th { color: var(--soft); font-size: 13px; font-weight: 500; padding-top: 0; vertical-align: bottom; }
td small, th small { display: block; color: var(--soft); font-size: 12.5px; font-weight: 400; line-height: 1.45; }
th small { max-width: 32ch; }
td strong { font-weight: 700; }
@media (max-width: 560px) { table { font-size: 14px; } th, td { padding-left: 10px; }
  th:first-child { min-width: 92px; max-width: 44vw; } thead th { font-size: 12px; } }
.key::before { content: ""; display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 8px;
  background: var(--series, var(--neutral)); }
dl { display: grid; grid-template-columns: minmax(0, 11em) minmax(0, 1fr); gap: 6px 22px; margin: 26px 0 0;
  font-size: 14px; line-height: 1.5; }
dt { color: var(--soft); } dd { margin: 0; }
@media (max-width: 560px) { dl { grid-template-columns: minmax(0, 1fr); gap: 0; } dd { margin-bottom: 10px; } }

.query { display: grid; grid-template-columns: 74px minmax(0, 1fr); gap: 20px; padding: 14px 0;
  border-bottom: 1px solid var(--rule); }
.query:first-child { padding-top: 0; } .query:last-of-type { border: 0; }
.hits { display: flex; flex-wrap: wrap; gap: 12px 8px; }
.image { width: 74px; font-size: 12px; line-height: 1.35; color: var(--soft); }
.image span { display: block; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; padding-top: 3px;
  text-align: center; }
.image div { position: relative; }
.image img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: var(--track);
  border-radius: 5px; border: 3px solid var(--rule); }
.right img { border-color: var(--right); } .wrong img { border: 3px dashed var(--wrong); }
.right div::after, .wrong div::after { position: absolute; right: -4px; bottom: -4px; width: 18px; height: 18px;
  border-radius: 50%;
  font: 700 11px/18px system-ui, "DejaVu Sans", sans-serif; text-align: center; color: var(--paper); }
.right div::after { content: "\\2713"; background: var(--right); } .wrong div::after { content: "\\2715";
  background: var(--wrong); }
@media (max-width: 560px) {
  .query { grid-template-columns: 58px minmax(0, 1fr); gap: 14px; }
  .image { width: 58px; }
  .hits { gap: 10px 7px; }
}

.legend { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 0 0 18px; font-size: 14px; }
.legend svg { width: 30px; height: 10px; margin-right: 8px; vertical-align: 1px; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); gap: 30px 28px; }
.panel figcaption { display: flex; flex-wrap: wrap; gap: 0 12px; font-size: 14px; margin-bottom: 4px; }
.panel b { font-weight: 600; margin-right: auto; }
.last { color: var(--series); font-variant-numeric: tabular-nums; font-weight: 600; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.legend svg { display: inline-block; }
svg text { font-size: 11.5px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg line { stroke: var(--rule); }
polyline { fill: none; stroke: var(--series); stroke-width: 2; stroke-dasharray: var(--dashes);
  stroke-linejoin: round; }
circle.s0, circle.s1, circle.s2, circle.s3, circle.s4, circle.s5 { fill: var(--series); }

.space { position: relative; background: var(--raised); border: 1px solid var(--rule); border-radius: 10px;
  overflow: hidden; margin-bottom: 12px; }
.map { touch-action: manipulation; cursor: crosshair; }
.map circle { fill-opacity: .8; }
.exemplar { pointer-events: none; } .exemplar line { stroke: var(--soft); }
.map.focused > g { opacity: .13; } .map.focused > g.chosen { opacity: 1; }
.chosen circle { r: 4.6px; fill-opacity: 1; }
@media (max-width: 560px) { .map circle { r: 4.6px; } .chosen circle { r: 8px; } }
.tip { position: absolute; left: 0; top: 0; pointer-events: none; visibility: hidden; background: var(--raised);
  color: var(--ink);
  border: 1px solid var(--rule); border-radius: 8px; box-shadow: 0 4px 18px rgb(0 0 0 / .18); padding: 6px;
  font-size: 13px; line-height: 1.35; max-width: 180px; text-align: center; }
.thumb { width: 96px; height: 96px; margin: 0 auto 4px; border-radius: 4px;
  background-size: calc(96px * var(--columns)) auto; }
.steps { margin: 0; padding-left: 1.3em; } .steps li { margin-bottom: 10px; max-width: 68ch;
  padding-left: 4px; }
.steps li::marker { color: var(--soft); }
"""

SCRIPT = """
(() => {
  const map = document.querySelector(".map"), tip = document.querySelector(".tip");
  if (!map) return;
  const dots = [...map.querySelectorAll("circle")].map(dot => ({
    group: dot.parentNode, i: +dot.dataset.i, x: +dot.getAttribute("cx"), y: +dot.getAttribute("cy"),
    name: dot.parentNode.querySelector("title").textContent,
  }));
  map.querySelectorAll("title").forEach(title => title.remove());
  const [thumb, label] = [tip.querySelector(".thumb"), tip.querySelector(".name")];
  const columns = thumb ? +thumb.dataset.columns : 1;
  let chosen = null;
  const choose = group => {
    if (chosen) chosen.classList.remove("chosen");
    if (group) group.classList.add("chosen");
    map.classList.toggle("focused", !!group);
    tip.style.visibility = group ? "visible" : "hidden";
    chosen = group;
  };
  const point = event => {
    const scale = map.viewBox.baseVal.width / map.clientWidth, box = map.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    let best = null, least = 18;
    for (const dot of dots) {
      const distance = Math.hypot(dot.x / scale - x, dot.y / scale - y);
      if (distance < least) [best, least] = [dot, distance];
    }
    choose(best && best.group);
    if (!best) return;
    label.textContent = best.name;
    if (thumb) thumb.style.backgroundPosition = `${-96 * (best.i % columns)}px ${-96 * Math.floor(best.i / columns)}px`;
    const left = Math.max(4, Math.min(best.x / scale + 14, map.clientWidth - tip.offsetWidth - 4));
    const above = best.y / scale - tip.offsetHeight - 14;
    tip.style.transform = `translate(${left}px, ${above > 4 ? above : best.y / scale + 14}px)`;
  };
  map.addEventListener("pointermove", point);
  map.addEventListener("pointerdown", point);
  map.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") choose(null); });
})();
"""


def style() -> str:
    """The whole style sheet, with the colours that the pictures use as well."""
    light = " ".join(f"--s{i}: {on_light};" for i, (on_light, _, _) in enumerate(SERIES))
    dark = " ".join(f"--s{i}: {on_dark};" for i, (_, on_dark, _) in enumerate(SERIES))
    colours = _COLOURS.format(right=RIGHT, wrong=WRONG, neutral=NEUTRAL, light=light, dark=dark)
    series = [_SERIES.format(i=i, dashes=dashes or "none") for i, (_, _, dashes) in enumerate(SERIES)]
    return colours + "\n".join(series) + _PAGE
