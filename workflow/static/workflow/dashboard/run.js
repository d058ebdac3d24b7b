// One run, live: its tree, its timeline, its history and its buttons.
import { connect, duration, moment, morph, parse, part, printable } from "./live.js";
import { draw } from "./timeline.js";

const SYMBOLS = {
  pending: "·",
  running: "▸",
  waiting: "◷",
  skipped: "↷",
  completed: "✓",
  failed: "✗",
  compensated: "↶",
  compensating: "↶",
  cancelled: "⊘",
};
const OVER = ["completed", "compensated", "failed", "cancelled"];
const LIVE_NODE = ["pending", "running", "waiting"];
const KEPT = 200; // history entries on the page
const TIMELINE_PACE = 2000;

const body = document.body;
const base = body.dataset.base;
const elements = new Map(); // path -> its element in the tree
for (const element of document.querySelectorAll("#tree [data-path]")) elements.set(element.dataset.path, element);
const nodes = new Map(); // path -> what is known of it
const history = document.getElementById("history");
const detail = document.getElementById("detail");
const may = document.getElementById("commands") !== null;

let run = null;
let seq = null; // the last entry that is in what we show
let ahead = 0; // the server's clock less ours, in milliseconds

// --- what is shown -------------------------------------------------------------------------------

function seconds(from, to) {
  return (new Date(to ?? Date.now() + ahead) - new Date(from)) / 1000;
}

function setText(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

function setStatus(element, status) {
  for (const name of [...element.classList]) if (name.startsWith("s-")) element.classList.remove(name);
  element.classList.add(`s-${status}`);
}

// Of the node itself, not of those inside it.
function own(element, selector) {
  return element.querySelector(`:scope > ${selector}, :scope > h3 > ${selector}, :scope > h4 > ${selector}`);
}

// The places of a node's facts, looked up once: a run may have thousands of nodes.
const found = new Map();
function placesOf(path) {
  if (!found.has(path)) {
    const element = elements.get(path);
    const link = element && own(element, "a.node");
    found.set(path, element && {
      element,
      symbol: link?.querySelector(".symbol"),
      state: link?.querySelector(".state"),
      took: link?.querySelector(".took"),
      attempt: own(element, ".attempt"),
      bar: own(element, "progress"),
      error: own(element, ".error"),
      wait: own(element, ".note")?.querySelector(".for"),
    });
  }
  return found.get(path);
}

function show(node) {
  const at = placesOf(node.path);
  if (!at) return;
  setStatus(at.element, node.status);
  setText(at.symbol, SYMBOLS[node.status] ?? "?");
  setText(at.state, node.status);
  showTook(node);
  setText(at.attempt, node.attempt > 1 ? `attempt ${node.attempt}` : "");
  if (at.bar) {
    at.bar.hidden = node.progress === null || node.progress === undefined || !LIVE_NODE.includes(node.status);
    at.bar.value = node.progress ?? 0;
  }
  const error = node.error;
  setText(at.error, error ? printable(`${error.code}: ${error.message ?? ""}`.replace(/[: ]+$/, ""), 160) : "");
  setText(at.wait, node.wait_event ? `for ${printable(node.wait_event, 120)}` : "");
}

function showTook(node) {
  // A node that was undone "finished" when it was.
  const ran = node.started_at && node.status !== "compensated";
  setText(placesOf(node.path)?.took, ran ? duration(seconds(node.started_at, node.finished_at)) : "");
}

const parents = new Set(); // paths of nodes that have others beneath them
const changed = new Set(); // paths of nodes that are to be shown
const arrived = []; // history entries that are to be shown
let rendering = false;

// Whatever came since the last picture is shown at once, before the next one.
function render() {
  if (rendering) return;
  rendering = true;
  const draw = () => {
    rendering = false;
    for (const path of changed) show(nodes.get(path));
    changed.clear();
    if (arrived.length) addEntries(arrived.splice(0));
    if (run) showRun();
  };
  if (document.hidden) setTimeout(draw, 200);
  else requestAnimationFrame(draw);
}

function showRun() {
  const status = document.getElementById("status");
  setStatus(status, run.status);
  setText(status.querySelector(".symbol"), SYMBOLS[run.status] ?? "?");
  setText(status.querySelector(".text"), run.status);
  body.dataset.status = run.status;
  setText(document.querySelector("title"), `${run.workflow} ${run.status}`);
  setText(document.getElementById("took"), run.started_at ? duration(seconds(run.started_at, run.finished_at)) : "–");
  setText(document.getElementById("started"), run.started_at ? `started ${moment(run.started_at)}` : "");
  setText(document.getElementById("finished"), run.finished_at ? `finished ${moment(run.finished_at)}` : "");
  let leaves = 0;
  let done = 0;
  let undone = false;
  let parked = false;
  for (const node of nodes.values()) {
    if (!parents.has(node.path)) {
      leaves += 1;
      if (!LIVE_NODE.includes(node.status)) done += 1;
    }
    undone ||= node.status === "compensated" || Boolean(node.compensate_attempt);
    parked ||= isParked(node);
  }
  setText(document.getElementById("done"), `${done} of ${leaves}`);
  const back = undone || ["compensating", "compensated"].includes(run.status);
  document.getElementById("tree").classList.toggle("backwards", back);
  document.getElementById("backwards-note").hidden = !back;
  if (may) {
    offer("cancel", ["pending", "running", "waiting"].includes(run.status));
    offer("retry", run.status === "failed" && !undone);
    offer("resume", ["running", "waiting", "compensating"].includes(run.status) && parked);
  }
}

// A stage that waits, or a handler that is suspended in a step; a node that is completed, if its compensation is. The
// snapshot said so, and what came since may have changed the node's status.
function isParked(node) {
  return Boolean(node.parked) && ["waiting", "completed"].includes(node.status);
}

function offer(name, possible) {
  document.querySelector(`#commands [data-command=${name}]`).hidden = !possible;
}

// What filled a gap was read later than it was asked for, and may have brought some of these already.
function addEntries(entries) {
  const shown = new Set([...history.rows].map((row) => row.dataset.seq));
  const rows = entries.filter((entry) => !shown.has(String(entry.seq))).slice(-KEPT).reverse().map(rowOf);
  history.prepend(...rows);
  while (history.rows.length > KEPT) history.lastElementChild.remove();
}

function rowOf(entry) {
  const row = document.createElement("tr");
  row.dataset.seq = entry.seq;
  row.className = "new";
  [String(entry.seq), moment(entry.at), entry.name, entry.node ?? "", says(entry)].forEach((text, index) => {
    const cell = row.insertCell();
    if (index === 0) cell.className = "num";
    if (index === 4) cell.className = "more";
    const inner = index === 3 ? document.createElement("code") : index === 4 ? document.createElement("bdi") : cell;
    inner.textContent = text;
    if (inner !== cell) cell.append(inner);
  });
  return row;
}

const UNSAID = ["type", "name", "run_id", "seq", "node", "at", "message", "error", "fields", "delay"];
const WORDS = { due_at: "next at", from_node: "from", event_id: "event" };

// What an entry's data say, in a few words; the server says the same.
function says(entry) {
  const parts = [];
  if (entry.message) parts.push(printable(entry.message));
  if (entry.error) parts.push(printable(`${entry.error.code ?? "ERROR"}: ${entry.error.message ?? ""}`.replace(/[: ]+$/, "")));
  const fields = entry.fields && typeof entry.fields === "object" ? entry.fields : {};
  for (const [name, value] of Object.entries({ ...entry, ...fields })) {
    if (UNSAID.includes(name) || value === null) continue;
    let text = value === true ? "" : printable(value, 120);
    if (name === "due_at") text = moment(value);
    if (name === "progress") text = `${value} %`;
    parts.push(`${printable(WORDS[name] ?? name, 40)} ${text}`.trim());
  }
  return parts.join(" · ");
}

// --- what happens --------------------------------------------------------------------------------

// Something has happened to the run, so somebody works at it.
function moved() {
  document.getElementById("unserved")?.remove();
  document.getElementById("paused")?.remove();
}

function takeSnapshot(frame) {
  if (frame.seq > seq) moved();
  ahead = new Date(frame.now) - Date.now();
  run = frame.run;
  for (const node of frame.nodes) {
    const known = nodes.get(node.path);
    if (node.parent) parents.add(node.parent);
    if (known && JSON.stringify(known) === JSON.stringify(node)) continue;
    nodes.set(node.path, node);
    changed.add(node.path);
  }
  const shown = arrived.length ? arrived.at(-1).seq : Number(history.firstElementChild?.dataset.seq ?? 0);
  if (frame.seq > shown) fillHistory(shown, frame.seq);
  seq = frame.seq;
  render();
  stale();
}

// Entries that came while nobody listened; their page has them as rows.
let filling = false;
async function fillHistory(known, to) {
  if (filling) return;
  filling = true;
  try {
    const after = Math.max(known, to - KEPT);
    const response = await part(`${base}history/?after=${after}`);
    if (!response) return;
    const rows = new DOMParser().parseFromString(await response.text(), "text/html").querySelectorAll("#history tr");
    const shown = new Set([...history.rows].map((row) => row.dataset.seq));
    for (const row of rows) if (!shown.has(row.dataset.seq)) history.append(document.adoptNode(row));
    const sorted = [...history.rows].sort((a, b) => b.dataset.seq - a.dataset.seq).slice(0, KEPT);
    history.replaceChildren(...sorted);
  } catch {
    // The next snapshot tries again.
  } finally {
    filling = false;
  }
}

// What an entry says of its node. What it does not say for certain is asked for.
const MEANS = {
  "action.started": (node, entry) => {
    Object.assign(node, { status: "running", attempt: entry.attempt ?? node.attempt, error: null, finished_at: null });
    node.started_at ??= entry.at;
    for (let up = nodes.get(node.parent); up; up = nodes.get(up.parent)) {
      if (up.status === "pending") up.status = "running";
      up.started_at ??= entry.at;
      changed.add(up.path);
    }
  },
  "action.progress": (node, entry) => Object.assign(node, { progress: entry.progress }),
  "action.completed": (node, entry) => Object.assign(node, { status: "completed", finished_at: entry.at, error: null }),
  "action.retrying": (node, entry) => {
    if (!entry.compensation) Object.assign(node, { status: "pending", error: entry.error ?? null });
  },
  "action.failed": (node, entry) => Object.assign(node, { status: "failed", finished_at: entry.at, error: entry.error ?? null }),
  "action.skipped": (node, entry) => Object.assign(node, { status: "skipped", finished_at: entry.at }),
  "action.compensated": (node) => Object.assign(node, { status: "compensated" }),
  "stage.completed": (node, entry) => Object.assign(node, { status: "completed", finished_at: entry.at, wait_event: null }),
  "stage.failed": (node, entry) => Object.assign(node, { status: "failed", finished_at: entry.at }),
};
const SAYS_ALL = new Set([...Object.keys(MEANS), "log", "started"]);

function takeEntry(entry) {
  moved();
  seq = entry.seq;
  arrived.push(entry);
  const node = nodes.get(entry.node);
  if (node && MEANS[entry.name]) {
    MEANS[entry.name](node, entry);
    changed.add(node.path);
  }
  if (entry.name === "started" && run) Object.assign(run, { status: "running", started_at: run.started_at ?? entry.at });
  render();
  if (entry.name !== "action.progress" && entry.name !== "log") stale();
  if (!SAYS_ALL.has(entry.name)) live.refresh();
  settle();
}

// A while after the last entry the page is compared with the truth once.
let settling = null;
function settle() {
  clearTimeout(settling);
  settling = setTimeout(() => live.refresh(), 3000);
}

async function poll() {
  const response = await part(`${base}state/`);
  if (!response) return false;
  takeSnapshot(await response.json());
  return true;
}

const live = connect({
  socket: body.dataset.socket,
  poll,
  after: () => (run ? seq : null),
  onFrame(frame) {
    if (frame.type === "snapshot") takeSnapshot(frame);
    else if (frame.type === "workflow.event") takeEntry(frame);
  },
});

setInterval(() => {
  if (!run || document.hidden) return;
  if (!OVER.includes(run.status) && run.started_at) {
    setText(document.getElementById("took"), duration(seconds(run.started_at)));
  }
  for (const node of nodes.values()) {
    if (node.started_at && !node.finished_at && LIVE_NODE.includes(node.status) && elements.has(node.path)) showTook(node);
  }
}, 1000);

// A compensation that suspends itself adds nothing to the history, however late it does.
setInterval(() => {
  if (may && run?.status === "compensating" && !document.hidden && ![...nodes.values()].some(isParked)) live.refresh();
}, 10_000);

// --- timeline, data and details ------------------------------------------------------------------

let timelineDue = null;
let timelineAt = 0;
let timeline = null;

// What was fetched is no longer the latest.
function stale() {
  if (timelineDue === null) {
    timelineDue = setTimeout(fetchTimeline, Math.max(timelineAt + TIMELINE_PACE - Date.now(), 0));
  }
  if (data.open) loadData();
  const open = detail.querySelector("[data-detail]");
  if (open) loadDetail(open.dataset.detail, false);
}

async function fetchTimeline() {
  timelineDue = null;
  timelineAt = Date.now();
  try {
    const response = await part(`${base}timeline/`);
    if (!response) return;
    timeline = await response.json();
    timeline.ahead = timeline.now - Date.now() / 1000;
    drawTimeline();
  } catch {
    // The next entry, or the next connection, tries again.
  }
}

let drawnAt = 0;
let drawingTook = 0;
function drawTimeline() {
  if (!timeline) return;
  const begun = performance.now();
  draw(document.getElementById("timeline"), timeline, Date.now() / 1000 + timeline.ahead);
  drawnAt = performance.now();
  drawingTook = drawnAt - begun;
}
setInterval(() => {
  if (!run || OVER.includes(run.status) || document.hidden) return;
  // Growing bars are worth a twentieth of the time.
  if (performance.now() - drawnAt > 20 * drawingTook) drawTimeline();
}, 1000);
addEventListener("resize", drawTimeline);

const data = document.getElementById("data");
data.addEventListener("toggle", () => data.open && loadData());

const loading = new Map(); // what is being fetched -> what is to be fetched after it, or null
async function load(key, url, take) {
  if (loading.has(key)) {
    loading.set(key, [url, take]);
    return;
  }
  loading.set(key, null);
  try {
    const response = await part(url);
    if (response) take(await response.text());
  } catch {
    // It stays as it was.
  } finally {
    const next = loading.get(key);
    loading.delete(key);
    if (next) load(key, ...next);
  }
}

function loadData() {
  load("data", `${base}data/`, (html) => morph(document.getElementById("data-values"), parse(html)));
}

function loadDetail(path, fresh) {
  load("detail", `${base}node/?path=${encodeURIComponent(path)}`, (html) => {
    if (fresh || detail.querySelector("[data-detail]")?.dataset.detail === path) {
      if (fresh) detail.replaceChildren(parse(html));
      else morph(detail, parse(html));
      mark(path);
      if (fresh) {
        detail.scrollIntoView({ block: "nearest" });
        detail.focus({ preventScroll: true });
      }
    }
  });
}

function mark(path) {
  for (const link of document.querySelectorAll("#tree a[aria-current]")) link.removeAttribute("aria-current");
  if (path) own(elements.get(path), "a.node")?.setAttribute("aria-current", "true");
}

document.addEventListener("click", (event) => {
  if (event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const link = event.target.closest("a[data-node], a[data-close], a[data-command], a[data-dismiss]");
  if (!link) return;
  if (link.dataset.node !== undefined) {
    event.preventDefault();
    loadDetail(link.dataset.node, true);
  } else if (link.hasAttribute("data-close")) {
    event.preventDefault();
    const path = detail.querySelector("[data-detail]")?.dataset.detail;
    detail.replaceChildren();
    mark(null);
    if (path) own(elements.get(path), "a.node")?.focus();
  } else if (link.dataset.command) {
    event.preventDefault();
    ask(link);
  } else if (dialog.open) {
    event.preventDefault();
    dialog.close();
  }
});

// --- commands: the form of their page, in a dialog -----------------------------------------------

const dialog = document.getElementById("dialog");

async function ask(link) {
  try {
    const response = await part(link.href);
    if (!response) throw new Error("logged out");
    const form = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("command");
    dialog.replaceChildren(document.adoptNode(form));
    dialog.showModal();
    dialog.querySelector("input:not([type=hidden]), textarea, button")?.focus();
  } catch {
    location.href = link.href;
  }
}

// The address of a node's details, or of a notice, is not to be kept when the page is loaded again.
if (new URLSearchParams(location.search).has("notice")) window.history.replaceState(null, "", location.pathname);
