// The live parts of pages. Everything is right without this script; it only saves the reload.
//
// The browser's pages follow one stream of events (events.js), each while somebody looks at it.
// States and progress bars are changed in place; a part (an element with data-part and data-on) is
// fetched again when an event of its kind comes, at most every few seconds.
"use strict";

(() => {
  const SOON = 400; // milliseconds until the first fetch
  const body = document.body;
  // of nodes: what people call them, and the badge's colour
  const STATES = JSON.parse(body.dataset.states);
  const PHASES = JSON.parse(body.dataset.phases); // what people call the steps of an order
  const every = (selector, root = document) => root.querySelectorAll(selector);
  const named = (attribute, name) => every(`[${attribute}="${CSS.escape(name)}"]`);

  // ------------------------------------------------ times

  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  // the server's clock and this one
  const ahead = Number(body.dataset.now || 0) - Date.now() / 1000;

  function duration(seconds) {
    let left = Math.max(0, Math.round(seconds));
    const parts = [];
    for (const [unit, size] of UNITS) {
      if (left >= size && parts.length < 2) {
        parts.push(`${Math.floor(left / size)} ${unit}`);
        left = unit === "min" && left >= 600 ? 0 : left % size;
      } else if (parts.length) break;
    }
    return parts.join(" ") || "0 s";
  }

  function bytes(count) { // as the server writes them
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let place = 0;
    for (; count >= 1024 && place < units.length - 1; place++) count /= 1024;
    return `${count.toFixed(place ? 1 : 0)} ${units[place]}`;
  }

  function tick() {
    const now = Date.now() / 1000 + ahead;
    for (const time of every("time[data-at]")) {
      const off = Number(time.dataset.at) - now;
      const words = off > 1 ? `in ${duration(off)}` : off > -1 ? "now" : `${duration(-off)} ago`;
      if (time.textContent !== words) time.textContent = words;
    }
  }

  // ------------------------------------------------ parts

  const waiting = new Set(); // names of parts that are to be fetched
  let timer = 0, fetched = 0; // the next fetch; when the last one was
  const tags = new Map(); // of parts as they are shown, by name
  let leaving = 0; // forms that were sent: the browser is about to go on
  // milliseconds between two; the server says it with each: the more watch, the more
  let apart = 8000;

  const changed = (field) => field.type === "checkbox" || field.type === "radio" ?
    field.checked !== field.defaultChecked
    : field.matches("select") ? field.selectedIndex !== Math.max(0,
      [...field.options].findIndex((one) => one.defaultSelected))
    : field.type !== "hidden" && field.value !== field.defaultValue;

  // somebody types, decides or reads in it, or has typed something that was not sent yet
  function busy(part) {
    const at = document.activeElement, marked = getSelection();
    return part.querySelector("details.confirm[open], form[data-typed], [data-zoomed]") ||
      [...every("form[method=post] :is(input, textarea, select)", part)].some(changed) ||
      [...every(".console", part)].some((text) => text.scrollTop < -9 || // 0 is its end
        (!marked.isCollapsed && text.contains(marked.anchorNode))) ||
      (part.contains(at) && at.matches("input:not([type=hidden]), textarea, select"));
  }

  function goHome() { // unless what somebody types would be lost
    if (!busy(document.getElementById("main"))) location.assign(body.dataset.home);
  }

  // all that wait, in one request: their page is loaded once for all of them
  async function fetchParts() {
    timer = 0;
    const names = [...waiting].filter((name) => named("data-part", name).length);
    waiting.clear();
    if (document.hidden || leaving || !names.length) return;
    const free = names.filter((name) => !busy(named("data-part", name)[0]));
    if (free.length < names.length) names.filter((name) => !free.includes(name)).forEach((name) =>
      soon(name));
    if (!free.length) return;
    fetched = Date.now();
    // after a form that was wrong, not the form's address
    const where = new URL(body.dataset.home, location.href);
    where.searchParams.set("part", free.join(","));
    try {
      const known = free.map((name) => tags.get(name)).filter(Boolean).join(", ");
      const reply = await fetch(where, { redirect: "manual", headers: { "X-Requested-With":
        "live", "X-Live-Heard": latest, ...(known && { "If-None-Match": known }) } });
      if (leaving) return; // the form may have changed the page's address
      // signed out meanwhile, or the thing has another name
      if (reply.type === "opaqueredirect") return goHome();
      apart = 1000 * (reply.headers.get("X-Live-Apart") || apart / 1000);
      // what the page is about is gone: the server says what became of it
      if (reply.status === 404) return goHome();
      // what the server has read for all who watch may be older than the last event
      if (reply.headers.has("X-Live-Again")) free.forEach((name) => soon(name));
      if (!reply.ok) return; // 304: all is shown already
      const text = await reply.text();
      const since = Number(reply.headers.get("X-Live-After"));
      if (free.length === 1) {
        put(named("data-part", free[0])[0], text, reply.headers.get("ETag"), since);
      } else putEach(text, since);
    } catch { /* the stream says that the server is away */ } finally { again(); }
  }

  function putEach(text, since) {
    const made = document.createElement("template");
    made.innerHTML = text;
    for (const one of every("template[data-of]", made.content)) {
      const part = named("data-part", one.dataset.of)[0];
      if (part) put(part, one.innerHTML, `"${one.dataset.tag}"`, since);
    }
  }

  // what is under way and sends no events of its own is looked at anew after so many seconds
  function again() {
    for (const sign of every("[data-part] [data-again]")) {
      soon(sign.closest("[data-part]").dataset.part, 1000 * sign.dataset.again);
    }
  }

  // `since`: the last event that the text knows of; the page may have heard of later ones
  function put(part, text, tag, since) {
    if (busy(part)) return;
    tags.set(part.dataset.part, tag);
    const made = document.createElement("template");
    made.innerHTML = text;
    const open = [...every("details[open] > summary", part)].map((each) => each.textContent);
    const at = part.contains(document.activeElement) ? document.activeElement : null;
    const link = at && at.getAttribute("href");
    const path = at && (at.id ? `#${CSS.escape(at.id)}` : link && `a[href="${CSS.escape(link)}"]`);
    part.replaceChildren(made.content);
    for (const summary of every("details > summary", part)) {
      if (open.includes(summary.textContent)) summary.parentElement.open = true;
    }
    if (path) part.querySelector(path)?.focus();
    for (const badge of every("[data-node]", part)) {
      const last = moved.get(badge.dataset.node);
      if (last?.id > since) showState(badge, last);
    }
    if (part.dataset.part === "counts") showCounts(JSON.parse(part.textContent));
    tick();
  }

  // the numbers of the navigation, by the pages that they are of
  function showCounts(counts) {
    for (const [path, number] of Object.entries(counts)) {
      for (const badge of named("data-counted", path)) {
        badge.hidden = !number;
        badge.firstChild.textContent = number;
      }
    }
  }

  // of an element that is changed in place: its part no longer shows what was fetched
  function changing(element) {
    tags.delete(element.closest("[data-part]")?.dataset.part);
  }

  function soon(name, least = 0) {
    waiting.add(name);
    const since = Date.now() - fetched;
    const pause = since > apart ? SOON + Math.random() * SOON : (apart - since) +
      Math.random() * apart / 2;
    timer ||= setTimeout(fetchParts, Math.max(least, pause));
  }

  function refresh(kind, value) {
    for (const part of every("[data-part][data-on]")) {
      const { on, vcluster } = part.dataset;
      const concerns = !vcluster || !value || !("vcluster" in value) ||
        value.vcluster === vcluster ||
        (value.node && part.querySelector(`[data-node="${CSS.escape(value.node)}"]`));
      if ((!kind || on.split(" ").includes(kind)) && concerns) soon(part.dataset.part);
    }
  }

  // ------------------------------------------------ events

  const moved = new Map(); // the last transition of each node
  let latest = 0; // the last transition of all

  function showState(badge, value) {
    const [word, tone] = STATES[value.to_state] || [value.to_state, "busy"];
    badge.textContent = word;
    badge.title = value.to_state;
    badge.className = `badge ${tone}`;
    changing(badge);
  }

  const told = {
    transition(value) {
      moved.set(value.node, value);
      latest = Math.max(latest, value.id);
      for (const badge of named("data-node", value.node)) showState(badge, value);
      say(`${value.node} is ${(STATES[value.to_state] || [value.to_state])[0]}`);
    },
    progress(value) {
      const part = value.total ? Math.max(0, Math.min(100,
        Math.floor(100 * value.done / value.total))) : 0;
      for (const shown of named("data-progress", value.node)) {
        changing(shown);
        shown.querySelector("progress").value = part;
        shown.querySelector(".percent").textContent = `${part} %`;
        const phase = shown.querySelector(".phase"), rate = shown.querySelector(".rate");
        if (phase) phase.textContent = PHASES[value.phase] || value.phase || "";
        if (rate) rate.textContent = value.rate ? `${bytes(value.rate)}/s` : "";
      }
    },
    notice(value) {
      if (value.subject) say(value.subject);
    },
  };

  const state = document.getElementById("live");

  function show(text) {
    if (!state) return;
    state.hidden = !text;
    state.textContent = text;
  }

  function heard({ kind, again: anew, value }) {
    if (kind === "open") {
      body.dataset.following = "";
      show("");
      if (anew) refresh();
    } else if (kind === "lost") {
      delete body.dataset.following;
      show("Not live: the server does not answer");
    } else {
      told[kind](value);
      refresh(kind, value);
      document.dispatchEvent(new CustomEvent(`cod:${kind}`, { detail: value }));
    }
  }

  const { live, worker, session } = body.dataset;
  const port = live && window.SharedWorker
    ? new SharedWorker(worker, { name: `events ${session}` }).port : null;
  const own = live && !port ? new Events() : null;
  if (port) port.onmessage = (event) => heard(event.data);
  // the last event that the page knows of, as long as it is fresh
  let follows = false, after = body.dataset.after;

  function follow() {
    if (follows || document.hidden) return;
    follows = true;
    port ? port.postMessage({ join: true, live, after }) : own.join(heard, live, after);
    after = undefined;
  }

  function leave() {
    follows = false;
    delete body.dataset.following;
    port ? port.postMessage({ join: false }) : own.leave(heard);
  }

  // ------------------------------------------------ for those who hear pages: a few words now and
  // then

  const said = document.getElementById("said");
  let words = [], pause = null;

  function say(text) {
    if (!said || !document.querySelector("[data-part]:not([hidden])")) return;
    words.push(text);
    pause ||= setTimeout(() => {
      said.textContent = words.length > 3
        ? `${words.length} changes; the last: ${words.at(-1)}` : words.join("; ");
      words = [];
      pause = null;
    }, 4000);
  }

  // ------------------------------------------------ small things

  // a link's secret: never sent in an address, nor kept in one
  for (const field of every("input[data-fragment]")) {
    const secret = decodeURIComponent(location.hash.slice(1));
    if (!secret) continue;
    field.value = secret;
    history.replaceState(null, "", location.pathname + location.search);
    field.form.requestSubmit();
  }

  addEventListener("keydown", (event) => { // to the search, from anywhere but where one types
    const typing = event.target.matches?.("input, textarea, select, [contenteditable]");
    const slash = event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey;
    const find = document.getElementById("find");
    if (!find || !(slash || (event.key === "k" && (event.ctrlKey || event.metaKey)))) return;
    event.preventDefault();
    find.select();
    find.focus();
  });

  // a form that a link is about
  document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", "");

  document.addEventListener("click", async (event) => {
    const text = event.target.closest?.("[data-copy]");
    if (!text) return;
    try {
      await navigator.clipboard.writeText(text.dataset.copy || text.textContent);
      words.unshift("Copied");
      say("");
      text.classList.add("fresh");
      setTimeout(() => text.classList.remove("fresh"), 1700);
    } catch { /* it is selected; the keyboard copies it */ }
  });

  document.addEventListener("submit", (event) => { // twice does nothing twice, but looks as if
    const form = event.target;
    if (form.method !== "post") return;
    if (form.dataset.sent) return event.preventDefault();
    form.dataset.sent = "1";
    leaving++;
    setTimeout(() => {
      delete form.dataset.sent;
      leaving--;
      refresh();
    }, 5000);
  });

  if (live) {
    follow();
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) leave();
      else follow();
    });
    addEventListener("pagehide", leave);
    addEventListener("pageshow", (event) => { if (event.persisted) follow(); });
    again();
    setInterval(tick, 15000);
  }
})();
