// Times in the zone of the reader. Without this script they are in UTC, which the pages say.
//
// The server writes each moment as UTC: in a `time` element, or as "2026-12-14 08:00 UTC" within a
// sentence. Forms with a field `timezone` are read by the clock that it names.
"use strict";

(() => {
  const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const UTC = /\b(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d)(?::(\d\d))? UTC\b/;
  const parts = new Intl.DateTimeFormat("en-GB", { timeZone: ZONE, hourCycle: "h23",
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
    second: "2-digit", timeZoneName: "short" });
  const days = new Intl.DateTimeFormat("en-GB", { timeZone: ZONE, day: "2-digit", month: "short" });

  function read(at) {
    return Object.fromEntries(parts.formatToParts(at).map((one) => [one.type, one.value]));
  }

  function said(at, seconds) { // "2026-12-14 09:00 CET"
    const one = read(at);
    return `${one.year}-${one.month}-${one.day} ${one.hour}:${one.minute}` +
      `${seconds ? `:${one.second}` : ""} ${one.timeZoneName}`;
  }

  function typed(at) { // as a field has it
    const one = read(at);
    return `${one.year}-${one.month}-${one.day}T${one.hour}:${one.minute}`;
  }

  function moment(found) {
    const [, year, month, day, hour, minute, second] = found;
    return Date.UTC(year, month - 1, day, hour, minute, second || 0);
  }

  function timed(node) { // a text with times in it
    for (let found; (found = UTC.exec(node.data));) {
      const local = said(moment(found), found[6]);
      const inner = node.parentNode;
      if (inner instanceof SVGElement || inner.nodeName === "OPTION") { // no element fits there
        node.data = node.data.replace(found[0], local);
        continue;
      }
      const rest = node.splitText(found.index);
      node = rest.splitText(found[0].length);
      if (inner.nodeName === "TIME") {
        rest.data = local;
        inner.title ||= found[0];
        continue;
      }
      const time = document.createElement("time");
      time.dateTime = new Date(moment(found)).toISOString();
      time.title = found[0];
      time.textContent = local;
      rest.replaceWith(time);
    }
  }

  function all(root) {
    const texts = [];
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT, (node) =>
      node.data.includes(" UTC") && !node.parentNode.closest("textarea, script, pre, code")
        ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_REJECT);
    while (walk.nextNode()) texts.push(walk.currentNode);
    texts.forEach(timed);
    for (const text of root.querySelectorAll?.("text[data-at]") ?? []) tick(text);
    for (const name of root.querySelectorAll?.("[data-zone]") ?? []) name.textContent = ZONE;
    for (const clock of root.querySelectorAll?.("input[data-clock]") ?? []) form(clock);
  }

  function tick(text) { // a date below a chart
    const one = read(1000 * text.dataset.at);
    const hour = `${one.hour}:${one.minute}`, day = days.format(1000 * text.dataset.at);
    const dates = !text.textContent.includes(":");
    text.textContent = dates ? day : hour;
    if (dates && hour !== "00:00") { // below it: beside it there is no room
      const line = document.createElementNS(text.namespaceURI, "tspan");
      line.setAttribute("x", text.getAttribute("x"));
      line.setAttribute("dy", 14);
      line.textContent = hour;
      text.append(line);
    }
    delete text.dataset.at;
  }

  function form(clock) {
    for (const field of clock.form.querySelectorAll("input[type=datetime-local]")) {
      if (field.value) field.value = field.defaultValue = typed(Date.parse(`${field.value}Z`));
    }
    for (const label of clock.form.querySelectorAll(".clock")) label.textContent = `(${ZONE})`;
    clock.value = ZONE;
    clock.removeAttribute("data-clock");
  }

  if (said(0).endsWith(" UTC")) return;
  all(document.body);
  new MutationObserver((changes) => {
    for (const change of changes) {
      for (const node of change.addedNodes) {
        if (node.nodeType === Node.ELEMENT_NODE) all(node);
        else if (node.nodeType === Node.TEXT_NODE && UTC.test(node.data) && node.parentNode &&
          !node.parentNode.closest("textarea, script, pre, code")) timed(node);
      }
    }
  }).observe(document.body, { childList: true, subtree: true });
})();
