// The timeline as an SVG: a row for each node, its bars where it ran and where it waited.

const SVG = "http://www.w3.org/2000/svg";
const ROW = 22;
const BAR = 12;
const FOOT = 22;
const MOST = 1500; // rows that are drawn

function make(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// A step that gives four to eight marks over so many seconds.
function stepOf(span) {
  const steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800];
  return steps.find((step) => span / step <= 8) ?? span / 6;
}

function label(seconds) {
  if (seconds < 1) return `${Number(seconds.toFixed(2))} s`;
  if (seconds < 120) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 7200) return `${Number((seconds / 60).toFixed(1))} min`;
  if (seconds < 172800) return `${Number((seconds / 3600).toFixed(1))} h`;
  return `${Number((seconds / 86400).toFixed(1))} d`;
}

export function draw(place, timeline, now) {
  const rows = timeline.rows.slice(0, MOST);
  const starts = rows.flatMap(([, , segments]) => segments.map((segment) => segment[1]));
  if (!starts.length) return;
  const begin = starts.reduce((a, b) => Math.min(a, b));
  let end = begin;
  for (const [, , segments] of rows) for (const [, from, to] of segments) end = Math.max(end, to ?? now, from);
  const span = Math.max(end - begin, 0.001) * 1.02;

  const width = Math.max(place.clientWidth, 280);
  const names = Math.min(Math.max(width * 0.28, 90), 260);
  const scale = (width - names - 8) / span;
  const x = (at) => names + (at - begin) * scale;
  const height = rows.length * ROW + FOOT;
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });

  const step = stepOf(span);
  for (let at = 0; at <= span; at += step) {
    const place = x(begin + at).toFixed(1);
    svg.append(make("line", { class: "mark", x1: place, x2: place, y1: 0, y2: height - FOOT + 4 }));
    if (x(begin + at) < width - 30) svg.append(make("text", { class: "tick", x: place, y: height - 6 }, label(at)));
  }
  rows.forEach(([path, kind, segments], index) => {
    const y = index * ROW;
    const depth = path === "" ? 0 : path.split(".").length;
    const name = path === "" ? "the run" : path.slice(path.lastIndexOf(".") + 1).replace("#run", "");
    const room = Math.floor((names - 12 - depth * 8) / 6.6);
    const short = name.length > room ? `${name.slice(0, Math.max(room - 1, 1))}…` : name;
    const text = make("text", { class: `name depth-${depth}`, x: 4 + depth * 8, y: y + ROW - 7 }, short);
    text.append(make("title", {}, path || "the run"));
    svg.append(text);
    for (const [what, from, to] of segments) {
      const left = x(from);
      const long = Math.max(((to ?? now) - from) * scale, 3);
      const thin = kind === "pipeline" || kind === "stage";
      const tall = thin && what !== "wait" ? 4 : BAR;
      const bar = make("rect", {
        class: `bar k-${what}${to === null ? " open" : ""}`,
        x: left.toFixed(1),
        y: (y + (ROW - tall) / 2).toFixed(1),
        width: long.toFixed(1),
        height: tall,
        rx: 2,
      });
      bar.append(make("title", {}, `${path || "the run"}: ${what}, ${label((to ?? now) - from)}`));
      svg.append(bar);
    }
  });
  place.replaceChildren(svg);
}
