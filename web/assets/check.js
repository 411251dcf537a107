/* The server checks a form with `data-check` while somebody types: the script posts the form to that
   address, and the answer, a part of the page, replaces the element whose `data-part` is
   `data-check-part`. Without this script a button of the form does the same. */
"use strict";

const PAUSE = 400; // milliseconds without typing
const AGAIN = 1500; // milliseconds after a check that was refused because too many were asked

function watch(form) {
  const place = document.querySelector(`[data-part="${form.dataset.checkPart}"]`);
  let timer = 0;
  let asking = null;

  async function look() {
    asking?.abort();
    asking = new AbortController();
    const body = new URLSearchParams(new FormData(form));
    try {
      const answer = await fetch(`${form.dataset.check}?part=${form.dataset.checkPart}`,
        { method: "POST", body, signal: asking.signal, headers: { Accept: "text/html" } });
      const text = await answer.text();
      // checks are rationed: the last one typed must be answered
      if (answer.status === 429) timer = setTimeout(look, AGAIN);
      else if ((answer.ok || answer.status === 409 || answer.status === 422) &&
        !text.includes("<html")) show(text);
    } catch (error) {
      if (error.name !== "AbortError") place.removeAttribute("aria-busy");
    }
  }

  function show(text) {
    const held = place.contains(document.activeElement);
    place.innerHTML = text;
    place.removeAttribute("aria-busy");
    if (held) place.querySelector("button, a")?.focus();
  }

  function soon() {
    clearTimeout(timer);
    place.setAttribute("aria-busy", "true");
    timer = setTimeout(look, PAUSE);
  }

  place.addEventListener("click", (event) => { // a remedy: "38 spread"
    const button = event.target.closest("button[name=remedy]");
    if (!button) return;
    event.preventDefault();
    const [count, spread] = button.value.split(" ");
    form.elements[form.dataset.checkCount].value = count;
    if (spread) form.elements.spread.checked = true;
    soon();
  });
  place.addEventListener("click", (event) => { // a proposal: "12 2026-12-14T08:00", and an end
    const button = event.target.closest("button[name=proposal]");
    if (!button) return;
    event.preventDefault();
    const [count, starts, ends] = button.value.split(" ");
    form.elements[form.dataset.checkCount].value = count;
    form.elements.starts_at.value = starts;
    if (ends) form.elements.ends_at.value = ends;
    soon();
  });
  form.addEventListener("input", soon);
  form.addEventListener("change", soon);
  if (form.dataset.checkFirst !== undefined) look();
}

document.querySelectorAll("form[data-check]").forEach(watch);
