// Charts that are drawn anew by uPlot, as wide as their card, with the numbers where the pointer
// is, and a part of them larger. Without this script, or where a server was built without uPlot,
// the drawing of the server stays.
//
// The numbers are the drawing's own (`data-plot`), and so are the colours, in both themes.
"use strict";

(() => {
  if (!window.uPlot) return;
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const LEAST = 3; // points that are shown at least
  const drawn = new Set(); // functions that draw a chart anew
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

  function draw(source) {
    const figure = source.closest("figure"), svg = source.ownerSVGElement;
    const { x, series, unit, least, stacked, moments } = JSON.parse(source.dataset.plot);
    source.removeAttribute("data-plot");
    if (!figure || x.length < LEAST) return;
    const clock = moments ? zone : "UTC";
    const time = new Intl.DateTimeFormat("en-GB", { timeZone: clock, day: "2-digit",
      month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23",
      timeZoneName: "short" });
    const shapes = [...svg.querySelectorAll("polygon, polyline")];
    const paint = (place) => {
      const shape = getComputedStyle(shapes[place]);
      return stacked ? shape.fill : shape.stroke;
    };
    // the topmost area first, because the next ones are drawn over it
    const order = series.map((_, place) => place);
    if (stacked) order.reverse();
    const sums = series.map((_, place) => x.map((_, i) => stacked
      ? series.slice(0, place + 1).reduce((sum, [, values]) => sum + (values[i] ?? 0), 0)
      : series[place][1][i]));
    // as the drawing has them: the time of the day where a day is longer than two of them are apart
    const day = new Intl.DateTimeFormat("en-GB", { timeZone: clock, day: "2-digit",
      month: "short" });
    const hour = new Intl.DateTimeFormat("en-GB", { timeZone: clock, hour: "2-digit",
      minute: "2-digit", hourCycle: "h23" });
    const dates = (_, splits, __, ___, apart) => splits.map((at, i) => {
      const said = day.format(1000 * at);
      if (apart >= 86400) return said;
      const again = i && said === day.format(1000 * splits[i - 1]);
      return hour.format(1000 * at) + (again ? "" : `\n${said}`);
    });
    const number = (value) => value == null ? "–" : `${+value.toFixed(2)}`;
    const axis = { stroke: () => style("--ink"), grid: { stroke: () => style("--line"), width: 1 },
      ticks: { stroke: () => style("--line"), width: 1 }, font: "12px system-ui, sans-serif" };

    const box = document.createElement("div"), tools = document.createElement("div");
    const said = document.createElement("p");
    box.className = "plot";
    tools.className = "row";
    said.className = "quiet range";
    said.setAttribute("role", "status");
    const wide = () => Math.max(200, box.clientWidth);
    const high = () => Math.round(Math.min(340, Math.max(200, 0.5 * wide())));
    svg.before(box, said, tools);
    svg.setAttribute("hidden", "");
    const whole = [x[0], x.at(-1)];

    const plot = new uPlot({
      width: wide(), height: high(),
      tzDate: (at) => uPlot.tzDate(new Date(1000 * at), clock),
      cursor: { drag: { x: true, y: false, dist: 6 } },
      scales: { y: { range: (_, low, high_) =>
        [Math.min(0, low), Math.max(least, high_ > 0 ? 1.05 * high_ : 1)] } },
      axes: [{ ...axis, space: 70, values: dates }, { ...axis, size: 60, label: unit, labelSize: 18,
        labelFont: "12px system-ui, sans-serif" }],
      series: [{ label: "At", value: (_, at) => at == null ? "–" : time.format(1000 * at) },
        ...order.map((place) => ({ label: series[place][0], width: stacked ? 1 : 2,
          stroke: () => stacked ? style("--face") : paint(place),
          fill: stacked ? () => paint(place) : undefined,
          points: { show: !stacked },
          value: (_, __, ___, i) => number(i == null ? null : series[place][1][i]) }))],
      hooks: { setScale: [(self, key) => { if (key === "x") ranged(self); }] },
    }, [x, ...order.map((place) => sums[place])], box);
    // the colours of the legend are borders, which the shapes' own would not be under a line of the
    // card's colour
    box.querySelectorAll(".u-series .u-marker").forEach((mark, i) => {
      if (i) mark.style.cssText = `background: ${paint(order[i - 1])}`;
    });

    function ranged(self) {
      const { min, max } = self.scales.x;
      if (min == null) return;
      const zoomed = min > whole[0] || max < whole[1];
      figure.toggleAttribute("data-zoomed", zoomed);
      said.textContent = zoomed ? `${time.format(1000 * min)} to ${time.format(1000 * max)}` : "";
      for (const [button, works] of buttons) button.disabled = !works(min, max);
    }

    function show(min, max) { // as far as there are numbers
      const least = (LEAST - 1) * (whole[1] - whole[0]) / (x.length - 1);
      const length = Math.min(whole[1] - whole[0], Math.max(least, max - min));
      const start = Math.min(Math.max(whole[0], (min + max - length) / 2), whole[1] - length);
      plot.setScale("x", { min: start, max: start + length });
    }

    const zoom = (factor) => () => {
      const { min, max } = plot.scales.x, at = plot.cursor.idx == null ? (min + max) / 2
        : x[plot.cursor.idx];
      const half = factor * (max - min) / 2;
      show(at - half, at + half);
    };
    const move = (part) => () => {
      const { min, max } = plot.scales.x, step = part * (max - min);
      show(min + step, max + step);
    };
    const all = () => plot.setScale("x", { min: whole[0], max: whole[1] });
    const buttons = [];
    for (const [text, act, works] of [
      ["Zoom in", zoom(0.5), (min, max) => max - min > 1.01 * (LEAST - 1) *
        (whole[1] - whole[0]) / (x.length - 1)],
      ["Zoom out", zoom(2), (min, max) => min > whole[0] || max < whole[1]],
      ["Earlier", move(-0.5), (min) => min > whole[0]],
      ["Later", move(0.5), (_, max) => max < whole[1]],
      ["All", all, (min, max) => min > whole[0] || max < whole[1]],
    ]) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "quiet";
      button.textContent = text;
      button.setAttribute("aria-label", `${text}: ${figure.getAttribute("aria-label")}`);
      button.addEventListener("click", act);
      buttons.push([button, works]);
      tools.append(button);
    }
    ranged(plot);

    // keys, where the figure has the focus: the numbers of the points one after the other
    figure.addEventListener("keydown", (event) => {
      if (event.target !== figure || event.ctrlKey || event.altKey || event.metaKey) return;
      const at = plot.cursor.idx ?? -1, { min, max } = plot.scales.x;
      const keys = { ArrowLeft: -1, ArrowRight: 1 };
      if (event.key in keys) {
        const seen = x.map((_, i) => i).filter((i) => x[i] >= min && x[i] <= max);
        const next = Math.min(seen.at(-1), Math.max(seen[0], at + keys[event.key]));
        plot.setCursor({ left: plot.valToPos(x[next], "x"), top: 0 });
        said.textContent = [time.format(1000 * x[next]), ...series.map(([label, values]) =>
          `${label}: ${number(values[next])}`)].join("; ");
      } else if (event.key === "+") zoom(0.5)();
      else if (event.key === "-") zoom(2)();
      else if (event.key === "Escape") all();
      else return;
      event.preventDefault();
    });

    const size = new ResizeObserver(() => {
      if (!box.isConnected) return gone();
      if (Math.abs(plot.width - wide()) > 1) plot.setSize({ width: wide(), height: high() });
    });
    const anew = () => box.isConnected ? plot.redraw(false, true) : gone();
    const gone = () => {
      size.disconnect();
      drawn.delete(anew);
      plot.destroy();
    };
    size.observe(figure);
    drawn.add(anew);
  }

  const every = (root) => root.querySelectorAll("[data-plot]").forEach(draw);
  every(document);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    drawn.forEach((anew) => anew()));
  new MutationObserver((changes) => { // parts of the page that were fetched again
    for (const { addedNodes } of changes) {
      for (const node of addedNodes) if (node.nodeType === Node.ELEMENT_NODE) every(node);
    }
  }).observe(document.body, { childList: true, subtree: true });
})();
