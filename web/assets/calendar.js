// A time is drawn over the free nodes of a type: the form for a new cluster begins with it. Without
// this script each bar of free nodes leads there with its own start.
"use strict";

const QUARTER = 900; // seconds that times are rounded to
const LEAST = 6; // pixels: less is a click

document.addEventListener("pointerdown", (event) => {
  const link = event.target.closest?.('[data-edges] a[href^="/vclusters/new"]');
  if (!link || event.button || event.pointerType === "touch") return; // a touch scrolls
  const figure = link.closest("[data-edges]"), chart = link.ownerSVGElement;
  const [left, right] = figure.dataset.edges.split(" ").map(Number);
  const { since, until } = figure.dataset;
  const bar = link.querySelector("rect, path").getBBox();
  const mark = document.createElementNS(chart.namespaceURI, "rect");
  const from = event.clientX;
  let drawn = false;
  event.preventDefault(); // the link is not dragged away

  const place = (x) => Math.min(right, Math.max(left,
    new DOMPoint(x, 0).matrixTransform(chart.getScreenCTM().inverse()).x));
  const moment = (x) => Math.round((Number(since) + (place(x) - left) / (right - left) *
    (until - since)) / QUARTER) * QUARTER;

  function move({ clientX }) {
    drawn ||= Math.abs(clientX - from) > LEAST;
    if (!drawn) return;
    const [a, b] = [place(from), place(clientX)].sort((one, other) => one - other);
    for (const [name, value] of Object.entries({ x: a, y: bar.y, width: b - a,
      height: bar.height, class: "drawing" })) mark.setAttribute(name, value);
    chart.append(mark);
  }

  function end({ type, clientX }) {
    for (const name of ["pointerup", "pointercancel"]) removeEventListener(name, end);
    removeEventListener("pointermove", move);
    mark.remove();
    if (!drawn || type === "pointercancel") return;
    // what ends over the same bar would be a click on it, too
    addEventListener("click", (click) => click.preventDefault(), { capture: true, once: true });
    setTimeout(() => {
      const target = new URL(link.href.baseVal, location.href);
      const [starts, ends] = [moment(from), moment(clientX)].sort((one, other) => one - other);
      const soonest = Math.ceil(Date.now() / 1000 / QUARTER) * QUARTER;
      target.searchParams.set("starts_at", Math.max(starts, soonest));
      if (ends > Math.max(starts, soonest)) target.searchParams.set("ends_at", ends);
      location.assign(target);
    });
  }

  addEventListener("pointermove", move);
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, end);
});
