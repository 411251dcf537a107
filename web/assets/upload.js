/* Sends a file piece by piece, by the tus protocol (docs/uploads): goes on by itself after a break,
   can be paused, and goes on after the page was loaded again if the same file is chosen. The form is
   of image-new.html. */
"use strict";

const PIECE = 16 * 1024 * 1024; // bytes
const TRIES = 6; // of one piece, with longer and longer pauses

class Refused extends Error {}

function shown(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  for (; bytes >= 1024 && place < units.length - 1; place++) bytes /= 1024;
  return `${bytes.toFixed(place ? 1 : 0)} ${units[place]}`;
}

/* What this browser calls an upload that it has begun: the same file for the same image. */
function mark(file, name, group) {
  return `upload ${JSON.stringify([name, group, file.name, file.size, file.lastModified])}`;
}

class Upload {
  constructor(form, file) {
    this.form = form;
    this.file = file;
    this.base = form.dataset.uploadTo;
    this.csrf = form.elements.csrf.value;
    this.name = form.elements.name.value.trim();
    this.group = form.elements.group.value;
    this.mark = mark(file, this.name, this.group);
    this.request = null;
    this.paused = false;
  }

  /* What the image is called: a group's has its group's name first. */
  full() {
    return this.group && !this.name.includes("/") ? `${this.group}/${this.name}` : this.name;
  }

  /* One request; the answer, or an error: Refused for what trying again does not help. */
  ask(method, path, headers = {}, body = null, told = null) {
    return new Promise((done, failed) => {
      const request = this.request = new XMLHttpRequest();
      request.open(method, path);
      const own = { "X-CSRF-Token": this.csrf, "Tus-Resumable": "1.0.0", ...headers };
      for (const [name, value] of Object.entries(own)) request.setRequestHeader(name, value);
      if (told) request.upload.onprogress = (event) => told(event.loaded);
      request.onload = () => {
        if (request.status < 300) return done(request);
        const retry = [409, 423, 429, 460, 500, 502, 503, 504].includes(request.status);
        failed(new (retry ? Error : Refused)(sentence(request)));
      };
      request.onerror = () => failed(new Error("the server cannot be reached"));
      request.onabort = () => failed(new Error("paused"));
      request.send(body);
    });
  }

  /* Where the server is, of an upload that was begun before; null: it knows of none. */
  async where(id) {
    try {
      const answer = await this.ask("HEAD", `${this.base}/${id}`);
      return Number(answer.getResponseHeader("Upload-Offset"));
    } catch (error) {
      if (error instanceof Refused) return null;
      throw error;
    }
  }

  async begin() {
    const field = this.form.elements;
    const wanted = { name: this.name, group: this.group, size: this.file.size, plain:
      field.plain.checked,
      raw: field.raw.checked };
    if (field.sha256.value.trim()) wanted.sha256 = field.sha256.value.trim().toLowerCase();
    const answer = await this.ask("POST", this.base, { "Content-Type": "application/json" },
      JSON.stringify(wanted));
    return JSON.parse(answer.responseText).id;
  }

  async run(show, id = localStorage.getItem(this.mark)) {
    this.paused = false;
    let offset = id ? await this.where(id) : null;
    if (offset === null) {
      id = await this.begin();
      offset = 0;
    }
    localStorage.setItem(this.mark, id);
    for (let tries = 0; offset < this.file.size;) {
      try {
        offset = await this.piece(id, offset, show);
        tries = 0;
      } catch (error) {
        if (this.paused || error instanceof Refused || ++tries === TRIES) throw error;
        show(offset, `${error.message}; it goes on in a moment`);
        await new Promise((done) => setTimeout(done, 500 * 2 ** tries));
        if (!this.paused) offset = (await this.where(id).catch(() => offset)) ?? offset;
        if (this.paused) throw error;
      }
    }
    localStorage.removeItem(this.mark);
  }

  async piece(id, offset, show) {
    show(offset);
    const answer = await this.ask("PATCH", `${this.base}/${id}`,
      { "Content-Type": "application/offset+octet-stream", "Upload-Offset": String(offset) },
      this.file.slice(offset, offset + PIECE), (sent) => show(offset + sent));
    return Number(answer.getResponseHeader("Upload-Offset"));
  }

  pause() {
    this.paused = true;
    this.request?.abort();
  }
}

function sentence(request) {
  try {
    return JSON.parse(request.responseText).detail;
  } catch {
    return `the server answers ${request.status}`;
  }
}

function dress(form) {
  const place = form.querySelector("[data-sending]");
  const [bar, status] = [place.querySelector("progress"), place.querySelector("[role=status]")];
  const [send, pause] = [form.querySelector("button:not([type])"),
    form.querySelector("[data-pause]")];
  let upload = null;

  function show(offset, words) {
    const percent = Math.floor((100 * offset) / upload.file.size);
    bar.value = percent;
    status.textContent = words ?? `${shown(offset)} of ${shown(upload.file.size)}, ${percent} %`;
  }

  async function go(id) {
    place.hidden = pause.hidden = false;
    send.disabled = true;
    pause.textContent = "Pause";
    try {
      await upload.run(show, id);
      show(upload.file.size, "All of it is there.");
      location.assign(form.dataset.then +
        upload.full().split("/").map(encodeURIComponent).join("/"));
    } catch (error) {
      status.textContent = upload.paused ?
        "Paused. Go on, now or after loading this page again, with the same file."
        : `It stopped: ${error.message}.`;
      pause.textContent = "Go on";
      pause.hidden = !upload.paused && error instanceof Refused;
      send.disabled = false;
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const file = form.elements.file.files[0];
    if (!file || !form.elements.name.value.trim()) return void (file || form.elements.file.focus());
    upload = new Upload(form, file);
    go();
  });
  pause.addEventListener("click", () => (send.disabled ? upload.pause() : go()));
  window.addEventListener("beforeunload", (event) => {
    if (upload && send.disabled && bar.value < 100) event.preventDefault();
  });
  form.elements.file.addEventListener("change", () => {
    const [file, name] = [form.elements.file.files[0], form.elements.name];
    if (file && !name.value) name.value = file.name.toLowerCase().replace(/\.(img|raw|qcow2|gz|zst|iso)(?=\.|$)/g, "")
      .replace(/[^a-z0-9._-]+/g, "-").slice(0, 63).replace(/^[^a-z0-9]+|[^a-z0-9]+$/g, "");
  });

  document.querySelectorAll("[data-upload]").forEach((row) => {
    const label = row.querySelector(".go-on");
    if (!label) return;
    label.hidden = false;
    label.querySelector("input").addEventListener("change", (event) => {
      const file = event.target.files[0];
      form.elements.name.value = row.dataset.name;
      upload = new Upload(form, file);
      place.hidden = false;
      if (file.size !== Number(row.dataset.size)) {
        status.textContent = `That file has ${shown(file.size)}, the one that was begun ${shown(Number(row.dataset.size))}.`;
      } else go(row.dataset.upload);
    });
  });
}

document.querySelectorAll("form[data-upload-to]").forEach(dress);
