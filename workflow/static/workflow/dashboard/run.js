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

function show(node) {
  const element = elements.get(node.path);
  if (!element) return;
  setStatus(element, node.status);
  const link = own(element, "a.node");
  setText(link?.querySelector(".symbol"), SYMBOLS[node.status] ?? "?");
  setText(link?.querySelector(".state"), node.status);
  showTook(node, link);
  setText(own(element, ".attempt"), node.attempt > 1 ? `attempt ${node.attempt}` : "");
  const bar = own(element, "progress");
  if (bar) {
    bar.hidden = node.progress === null || node.progress === undefined || !LIVE_NODE.includes(node.status);
    bar.value = node.progress ?? 0;
  }
  const error = node.error;
  setText(own(element, ".error"), error ? printable(`${error.code}: ${error.message ?? ""}`.replace(/[: ]+$/, ""), 160) : "");
  const wait = own(element, ".note")?.querySelector(".for");
  if (wait) setText(wait, node.wait_event ? `for ${printable(node.wait_event, 120)}` : "");
}

function showTook(node, link = own(elements.get(node.path), "a.node")) {
  // A node that was undone "finished" when it was.
  const ran = node.started_at && node.status !== "compensated";
  setText(link?.querySelector(".took"), ran ? duration(seconds(node.started_at, node.finished_at)) : "");
}

function showRun() {
  const status = document.getElementById("status");
  setStatus(status, run.status);
  setText(status.querySelector(".symbol"), SYMBOLS[run.status] ?? "?");
  setText(status.querySelector(".text"), run.status);
  body.dataset.status = run.status;
  document.title = `${run.workflow} ${run.status}`;
  setText(document.getElementById("took"), run.started_at ? duration(seconds(run.started_at, run.finished_at)) : "–");
  setText(document.getElementById("started"), run.started_at ? `started ${moment(run.started_at)}` : "");
  setText(document.getElementById("finished"), run.finished_at ? `finished ${moment(run.finished_at)}` : "");
  const parents = new Set([...nodes.values()].map((node) => node.parent));
  const leaves = [...nodes.values()].filter((node) => !parents.has(node.path));
  const done = leaves.filter((node) => !LIVE_NODE.includes(node.status)).length;
  setText(document.getElementById("done"), `${done} of ${leaves.length}`);
  const undone = [...nodes.values()].some((node) => node.status === "compensated" || node.compensate_attempt);
  const back = undone || ["compensating", "compensated"].includes(run.status);
  document.getElementById("tree").classList.toggle("backwards", back);
  document.getElementById("backwards-note").hidden = !back;
  if (may) {
    const parked = [...nodes.values()].some((node) => node.wait_event && node.kind === "stage");
    offer("cancel", ["pending", "running", "waiting"].includes(run.status));
    offer("retry", run.status === "failed" && !undone);
    offer("resume", ["running", "waiting"].includes(run.status) && parked);
  }
}

function offer(name, possible) {
  document.querySelector(`#commands [data-command=${name}]`).hidden = !possible;
}

function addEntry(entry) {
  const row = document.createElement("tr");
  row.dataset.seq = entry.seq;
  const cells = [entry.seq, moment(entry.at), entry.name, entry.node ?? "", says(entry)].map((text, index) => {
    const cell = document.createElement("td");
    if (index === 0) cell.className = "num";
    if (index === 4) cell.className = "more";
    const inner = index === 3 ? document.createElement("code") : index === 4 ? document.createElement("bdi") : cell;
    inner.textContent = text;
    if (inner !== cell) cell.append(inner);
    return cell;
  });
  row.append(...cells);
  row.classList.add("new");
  history.prepend(row);
  while (history.rows.length > KEPT) history.lastElementChild.remove();
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

function takeSnapshot(frame) {
  ahead = new Date(frame.now) - Date.now();
  run = frame.run;
  for (const node of frame.nodes) nodes.set(node.path, node);
  const known = Math.max(Number(history.firstElementChild?.dataset.seq ?? 0), 0);
  if (frame.seq > known) fillHistory(known, frame.seq);
  seq = frame.seq;
  for (const node of nodes.values()) show(node);
  showRun();
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
      show(up);
    }
  },
  "action.progress": (node, entry) => Object.assign(node, { progress: entry.progress }),
  "action.completed": (node, entry) => Object.assign(node, { status: "completed", finished_at: entry.at, error: null }),
  "action.retrying": (node, entry) => Object.assign(node, { status: "pending", error: entry.error ?? null }),
  "action.failed": (node, entry) => Object.assign(node, { status: "failed", finished_at: entry.at, error: entry.error ?? null }),
  "action.skipped": (node, entry) => Object.assign(node, { status: "skipped", finished_at: entry.at }),
  "action.compensated": (node) => Object.assign(node, { status: "compensated" }),
  "stage.completed": (node, entry) => Object.assign(node, { status: "completed", finished_at: entry.at, wait_event: null }),
  "stage.failed": (node, entry) => Object.assign(node, { status: "failed", finished_at: entry.at }),
};
const SAYS_ALL = new Set([...Object.keys(MEANS), "log", "started"]);

function takeEntry(entry) {
  seq = entry.seq;
  addEntry(entry);
  const node = nodes.get(entry.node);
  if (node && MEANS[entry.name]) {
    MEANS[entry.name](node, entry);
    show(node);
  }
  if (entry.name === "started" && run) Object.assign(run, { status: "running", started_at: run.started_at ?? entry.at });
  if (run) showRun();
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

function drawTimeline() {
  if (timeline) draw(document.getElementById("timeline"), timeline, Date.now() / 1000 + timeline.ahead);
}
setInterval(() => {
  if (run && !OVER.includes(run.status) && !document.hidden) drawTimeline();
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
