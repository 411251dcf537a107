// A node's console as a terminal (xterm.js), in place of its text. Without this script, or where a
// server was built without xterm.js, the text and the form for a line stay.
//
// What the node wrote is asked for as it came (`raw`), from the last byte on: often while somebody
// types or something comes, seldom while nothing does. What is typed is sent in pieces, one after
// the other. The server decides about each of both whose the console is.
"use strict";

(() => {
  const root = document.getElementById("terminal");
  if (!root || !window.Terminal) return;
  const { path, csrf, node } = root.dataset, uses = root.dataset.uses === "1";
  const plain = document.getElementById("console"), form = document.querySelector("form.typing");
  const screen = root.querySelector(".screen"), status = root.querySelector("[role=status]");
  const OFTEN = 60, SELDOM = 2000; // milliseconds between two looks
  const LIVELY = 3000; // milliseconds after which a console counts as quiet
  const APART = 100; // milliseconds between two pieces: the server counts them
  const LINE = 0.96; // bytes that a line of 9600 baud takes in a millisecond
  const PIECE = 1000; // characters that the server takes at once
  const MANY = 500; // times that a machine has something repeated: it never ends otherwise
  const COLUMNS = 80; // at least: firmware draws its screens for so many

  // ------------------------------------------------ styles, which the page's policy lets nobody
  // write into a page: those of xterm.js become style sheets, which a script may make

  const make = document.createElement.bind(document);
  document.createElement = (name, options) => {
    if (name !== "style") return make(name, options);
    const sheet = new CSSStyleSheet(), stand = make("span");
    stand.hidden = true;
    document.adoptedStyleSheets.push(sheet);
    const text = { set: (rules) => sheet.replaceSync(rules), get: () => "" };
    Object.defineProperties(stand, { textContent: text, innerText: text, sheet: { value: sheet } });
    stand.remove = () => {
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
      Element.prototype.remove.call(stand);
    };
    return stand;
  };
  HTMLSpanElement.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else Element.prototype.setAttribute.call(this, name, value);
  };

  // ------------------------------------------------ the terminal

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const theme = () => ({ background: colour("--face"), foreground: colour("--ink"),
    cursor: colour("--ink"), cursorAccent: colour("--face"),
    selectionBackground: colour("--accent"), selectionForeground: colour("--on-accent") });
  const dark = matchMedia("(prefers-color-scheme: dark)");

  const term = new Terminal({
    cols: COLUMNS, rows: 24, scrollback: 5000, theme: theme(), disableStdin: true,
    screenReaderMode: true, minimumContrastRatio: 4.5, cursorBlink: false,
    fontFamily: getComputedStyle(document.querySelector(".console pre, code, pre") ||
      plain).fontFamily,
    fontSize: 14,
    linkHandler: { activate() {} }, // a node leads nobody to another page
  });
  const fit = new FitAddon.FitAddon();
  term.loadAddon(fit);
  // A terminal answers questions of the other side. Here everybody who looks would, also to what
  // was asked long ago: nobody does. Nor does a page report the pointer and the focus.
  const ignored = () => true;
  for (const id of [{ final: "c" }, { prefix: ">", final: "c" }, { prefix: "=", final: "c" },
    { final: "n" }, { prefix: "?", final: "n" }, { intermediates: "$", final: "p" },
    { prefix: "?", intermediates: "$", final: "p" }, { prefix: ">", final: "q" },
    { final: "t" }]) term.parser.registerCsiHandler(id, ignored);
  const REPORTS = new Set([9, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016]);
  term.parser.registerCsiHandler({ prefix: "?", final: "h" }, (modes) =>
    modes.some((mode) => REPORTS.has(mode)));
  term.parser.registerDcsHandler({ intermediates: "$", final: "q" }, ignored);
  for (const final of "ILMSTZb") term.parser.registerCsiHandler({ final }, ([many]) => many > MANY);
  for (const id of [4, 8, 10, 11, 12, 52]) term.parser.registerOscHandler(id, ignored);

  term.attachCustomKeyEventHandler((event) => {
    if (event.type === "keydown" && event.key === "F6") {
      event.preventDefault();
      const all = "a[href], button, summary, input, select, [tabindex='0']";
      [...document.querySelectorAll(all)].find((one) =>
        root.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING &&
          !root.contains(one) && one.checkVisibility())?.focus();
      return false;
    }
    if (event.type === "keydown" && event.ctrlKey && event.shiftKey && event.code === "KeyC") {
      event.preventDefault();
      navigator.clipboard.writeText(term.getSelection()).catch(() => {});
      return false;
    }
    return !(event.ctrlKey && event.shiftKey && event.code === "KeyV") && // the browser pastes
      !(term.options.disableStdin && event.key === "Tab");
  });

  root.hidden = false;
  plain.classList.add("drawn-below");
  delete plain.dataset.part; // its text is not fetched again
  for (const each of [form, document.querySelector(".untyped")]) if (each) each.hidden = true;
  term.open(screen);
  term.textarea.setAttribute("aria-label", `Console of ${node}`);
  dark.addEventListener("change", () => { term.options.theme = theme(); });

  function fitted() {
    const found = fit.proposeDimensions();
    if (!found?.rows) return;
    term.resize(Math.max(COLUMNS, found.cols), found.rows);
    size();
  }
  function size() { // who cannot type can tell no system
    root.querySelector(".size").textContent = `${term.cols} columns, ${term.rows} rows` +
      (term.options.disableStdin ? "." : "; a system does not learn it by itself: " +
        `stty cols ${term.cols} rows ${term.rows}.`);
  }
  new ResizeObserver(fitted).observe(screen);
  document.fonts.ready.then(fitted);

  function say(words) {
    if (status.textContent !== words) status.textContent = words;
  }

  // ------------------------------------------------ what comes

  let at = null; // the byte after the last that is shown; null: nothing is
  let lively = 0, pause = OFTEN, timer = 0, looking = false, again = false;

  function look(soon = OFTEN) {
    clearTimeout(timer);
    timer = document.hidden ? 0 : setTimeout(read, soon);
  }

  function hurry() { // somebody waits for an answer
    lively = performance.now() + LIVELY;
    pause = OFTEN;
    if (looking) again = true;
    else look(0);
  }

  async function read() {
    timer = 0;
    looking = true;
    try {
      const where = new URL(path, location.href);
      where.searchParams.set("raw", "true");
      if (at === null) where.searchParams.set("bytes", 2 ** 18);
      else where.searchParams.set("since", at);
      const reply = await fetch(where, { redirect: "manual" });
      if (!reply.ok) throw reply.status;
      const told = await reply.json();
      const came = Uint8Array.from(atob(told.data), (one) => one.charCodeAt(0));
      if (at !== null && told.start !== at) term.reset(); // another holder's, or too much came
      at = told.end;
      if (came.length) {
        lively = performance.now() + LIVELY;
        await new Promise((done) => { term.write(came, done); });
      }
      term.options.disableStdin = !uses || told.untyped !== "";
      size();
      say(told.state !== "recording" ? `Not recorded: ${told.about}.`
        : !uses ? "Those who may use the node type here; you read."
        : told.untyped ? `Nothing can be typed here: ${told.untyped}.` : refused);
      pause = performance.now() < lively ? OFTEN : Math.min(SELDOM, 1.5 * pause);
    } catch (wrong) {
      term.options.disableStdin = true;
      pause = SELDOM;
      say(wrong === 404 || wrong === 403 ? "This console is no longer yours to read."
        : wrong === 401 ? "You are not signed in any more." : "The server does not answer.");
    }
    looking = false;
    look(again ? 0 : pause);
    again = false;
  }

  // ------------------------------------------------ what is typed

  let typed = "", sending = false;
  let refused = ""; // why what was typed last was not taken

  async function send() {
    if (sending || !typed) return;
    sending = true;
    const piece = [...typed].slice(0, PIECE).join(""); // no character is cut
    typed = typed.slice(piece.length);
    const begun = performance.now();
    try {
      const reply = await fetch(path, { method: "POST", redirect: "manual",
        headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
        body: JSON.stringify({ typed: piece }) });
      if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).detail ||
        `the server answered ${reply.status}`);
      refused = "";
      hurry();
    } catch (wrong) {
      typed = "";
      say(refused = `Not typed: ${wrong.message}.`);
    }
    setTimeout(() => {
      sending = false;
      send();
    }, Math.max(APART, new Blob([piece]).size / LINE) - (performance.now() - begun));
  }

  term.onData((data) => {
    typed += data.replaceAll("\0", "");
    send();
  });

  document.addEventListener("visibilitychange", () => { if (!document.hidden) hurry(); });
  read();
})();
