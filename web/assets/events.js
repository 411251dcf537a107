// The stream of events for the pages of this browser. A browser keeps six connections to a site:
// with a stream for each page the seventh page would never load, so the pages share one, in a
// worker. Where there are no shared workers a page has a stream of its own, by the same class.
"use strict";

const KINDS = ["transition", "progress", "notice"];
const QUICKLY = 2; // tries before the page says that it is not live

class Events {
  constructor() {
    this.listeners = new Set(); // functions that are given messages
    this.stream = null;
    this.open = false;
    this.timer = 0;
    this.failed = 0; // times in a row
  }

  // `after`: the last event that the listener's page knows of; undefined: it has to look at
  // everything again.
  join(listener, live, after) {
    this.listeners.add(listener);
    if (this.open) listener({ kind: "open", again: true });
    else if (!this.stream && !this.timer) this.begin(live, after, after === undefined ? null :
      listener);
  }

  leave(listener) {
    this.listeners.delete(listener);
    if (this.listeners.size) return;
    clearTimeout(this.timer);
    this.timer = 0;
    this.end();
  }

  // `first`: the listener that misses nothing, because the stream begins where it is
  begin(live, after, first) {
    const from = after === undefined ? live : `${live}?after=${after}`;
    const stream = this.stream = new EventSource(from);
    stream.onopen = () => {
      this.open = true;
      this.failed = 0;
      for (const each of this.listeners) each({ kind: "open", again: each !== first });
    };
    stream.onerror = () => {
      const refused = stream.readyState === EventSource.CLOSED; // signed out, or too many streams
      const opened = this.open;
      this.end();
      // a connection that was kept and is gone: nobody has to be told
      if (this.failed++ < QUICKLY) {
        this.timer = setTimeout(() => {
          this.timer = 0;
          if (this.listeners.size) this.begin(live, opened ? undefined : after, opened ? null :
            first);
        }, 300);
        return;
      }
      this.tell({ kind: "lost" });
      this.timer = setTimeout(() => {
        this.timer = 0;
        if (this.listeners.size) this.begin(live, undefined, null);
      }, (refused ? 15000 : 3000) * (1 + Math.random()));
    };
    for (const kind of KINDS) stream.addEventListener(kind, (event) => this.tell({ kind, value:
      JSON.parse(event.data) }));
  }

  end() {
    this.stream?.close();
    this.stream = null;
    this.open = false;
  }

  tell(message) {
    for (const each of this.listeners) each(message);
  }
}

if (typeof SharedWorkerGlobalScope !== "undefined") {
  const events = new Events();
  self.onconnect = ({ ports: [port] }) => {
    const listener = (message) => port.postMessage(message);
    port.onmessage = ({ data }) => {
      if (data.join) events.join(listener, data.live, data.after);
      else events.leave(listener);
    };
  };
}
