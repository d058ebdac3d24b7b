// A socket that comes back, and looks by HTTP while it can't: what a page needs to stay true.
//
// connect({socket, poll, onFrame, after}): `onFrame(frame)` gets every frame; `after()` says from which history
// entry to go on (null: from a snapshot); `poll()` is called every few seconds while there is no socket, and
// resolves to false when nobody is logged in any more.

const FIRST = 500;
const LONGEST = 15000;
const POLL = 3000;
const ACK_EVERY = 25;
// A peer that vanished without a word (a laptop that slept) is noticed by the clock standing still.
const ASLEEP = 20000;

export function connect({ socket, poll, onFrame, after = () => null }) {
  const label = document.getElementById("connection");
  const url = new URL(socket, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  let current = null;
  let pause = FIRST;
  let next = 0;
  let timer = null;
  let taken = 0;
  let over = false;

  function say(text, kind) {
    label.hidden = false;
    if (label.textContent !== text) label.textContent = text;
    label.dataset.kind = kind;
    document.body.dataset.connection = kind;
  }

  function open() {
    clearTimeout(timer);
    if (over) return;
    const from = after();
    url.search = from === null ? "?flow=1" : `?flow=1&after=${from}`;
    const one = new WebSocket(url);
    current = one;
    taken = 0;
    one.addEventListener("open", () => {
      if (one !== current) return;
      pause = FIRST;
      say("Live", "live");
    });
    one.addEventListener("message", (event) => {
      if (one !== current) return;
      taken += 1;
      if (taken % ACK_EVERY === 0) one.send(JSON.stringify({ type: "ack", n: ACK_EVERY }));
      onFrame(JSON.parse(event.data));
    });
    one.addEventListener("close", (event) => {
      if (one === current) lost(event.code);
    });
  }

  function lost(code) {
    current = null;
    if (code === 4401) return end("You have been logged out. Load the page again to log in.");
    if (code === 4403) return end("You may not watch this any more.");
    if (code === 4404) return end("This run is gone.");
    next = Date.now() + pause;
    pause = Math.min(pause * 2, LONGEST);
    count();
    timer = setTimeout(open, next - Date.now());
    look();
  }

  function end(text) {
    over = true;
    clearTimeout(timer);
    say(text, "over");
  }

  function count() {
    if (current || over) return;
    const left = Math.max(Math.ceil((next - Date.now()) / 1000), 0);
    say(left > 0 ? `Disconnected, trying again in ${left} s` : "Disconnected, trying again…", "lost");
  }

  async function look() {
    if (current || over) return;
    try {
      if ((await poll()) === false) end("You have been logged out. Load the page again to log in.");
    } catch {
      // No server either: the next look, or the socket, will tell.
    }
  }

  function again() {
    if (over || (current && current.readyState <= WebSocket.OPEN)) return;
    pause = FIRST;
    open();
  }

  let ticked = Date.now();
  setInterval(() => {
    const now = Date.now();
    if (now - ticked > ASLEEP && current) current.close();
    ticked = now;
    count();
  }, 1000);
  setInterval(look, POLL);
  window.addEventListener("online", again);
  window.addEventListener("offline", () => {
    if (current) {
      const one = current;
      lost(1006);
      one.close();
    }
  });
  open();
  return {
    refresh() {
      if (current && current.readyState === WebSocket.OPEN) current.send(JSON.stringify({ type: "refresh" }));
    },
  };
}

// Fetches a part of a page of this site. Throws for what can't be had; `null` when nobody is logged in.
export async function part(url) {
  const response = await fetch(url, { headers: { "X-Requested-With": "fetch" }, redirect: "manual" });
  if (response.status === 401 || response.type === "opaqueredirect") return null;
  if (!response.ok) throw new Error(`${response.status}`);
  return response;
}

// HTML of this site, escaped by its templates, as nodes. Scripts in it would not run.
export function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

// Makes `old` look like `fresh`, touching only what differs: focus, selection and open details stay.
export function morph(old, fresh) {
  const keep = new Map();
  for (const child of old.children) if (child.id) keep.set(child.id, child);
  let at = old.firstChild;
  for (const node of [...fresh.childNodes]) {
    const known = node.id ? keep.get(node.id) : null;
    const match = known ?? (at && !at.id && !node.id && at.nodeName === node.nodeName ? at : null);
    if (!match) {
      old.insertBefore(node, at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else old.insertBefore(match, at);
    change(match, node);
  }
  while (at) {
    const following = at.nextSibling;
    at.remove();
    at = following;
  }
}

function change(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  if (!old.isEqualNode(fresh)) morph(old, fresh);
}

// Text of somebody's as text of ours: what would hide or reorder what stands around it is shown as an escape.
const UNPRINTABLE =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function printable(value, limit = 300) {
  let text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  text = text.slice(0, limit * 20).split(/\s+/).join(" ").trim();
  text = text.replace(UNPRINTABLE, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return text.length > limit ? `${text.slice(0, limit - 3)}...` : text;
}

// Seconds in two units at most, as the server writes them.
export function duration(seconds) {
  const value = Math.max(seconds, 0);
  if (value < 10) return value > 0 && value < 1 ? `${Number(value.toPrecision(2))}s` : `${value.toFixed(1)}s`;
  const whole = Math.round(value);
  for (const [unit, size, smaller, part] of [
    ["d", 86400, "h", 3600],
    ["h", 3600, "m", 60],
    ["m", 60, "s", 1],
  ]) {
    if (whole >= size) {
      const rest = Math.floor((whole % size) / part);
      return `${Math.floor(whole / size)}${unit} ${String(rest).padStart(2, "0")}${smaller}`;
    }
  }
  return `${whole}s`;
}

export function moment(text) {
  if (!text) return "";
  // The server's own time zone, as everywhere else on the page: the text says it.
  const found = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)/.exec(text);
  return found ? `${found[1]} ${found[2]}` : printable(text, 40);
}
