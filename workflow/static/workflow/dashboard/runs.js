// The list of runs: fetched again when something happens, at most every second and a half.
import { connect, morph, parse, part } from "./live.js";

const PACE = 1500;
const SLOW = 10000;

const live = document.getElementById("live");
let busy = false;
let due = null;
let last = 0;

async function fetchList() {
  const url = new URL(location.href);
  url.searchParams.set("fragment", "1");
  url.hash = "";
  const response = await part(url);
  if (!response) return false;
  morph(live, parse(await response.text()));
  last = Date.now();
  return true;
}

async function refresh() {
  due = null;
  if (busy) return soon();
  busy = true;
  try {
    return await fetchList();
  } finally {
    busy = false;
  }
}

function soon() {
  if (due !== null) return;
  const wait = Math.max(last + PACE - Date.now(), 0);
  due = setTimeout(() => refresh().catch(() => {}), wait);
}

connect({
  socket: document.body.dataset.socket,
  poll: refresh,
  onFrame(frame) {
    // What ran past while nobody listened is in the next list as well.
    if (frame.type === "workflow.event" || frame.type === "resync" || frame.type === "snapshot") soon();
  },
});

// Ages grow, workers come and go: those no socket tells of.
setInterval(() => {
  if (!document.hidden && Date.now() - last > SLOW) soon();
}, 1000);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) soon();
});
