// The form of a new job: shows the fields of the chosen workspace alone, and checks the job while it is filled in.
// The server checks; here, its page is asked for again and the parts with what it says are changed.

import { update } from "./morph.js";

const PAUSE_MS = 700;

export function checkWhileTyping(form, onChange) {
  let timer = 0;
  let latest = 0;
  const checked = form.querySelector("#problems, #plan") !== null; // by a button, which leads here again

  async function check() {
    const number = ++latest;
    const fields = new FormData(form);
    const chosen = fields.getAll("files").some((file) => file.size > 0);
    fields.delete("files");
    if (chosen) fields.set("chosen", "1");
    fields.set("action", checked ? "check" : "typing");
    try {
      const answer = await fetch(form.getAttribute("action"), { method: "POST", body: fields });
      if (!answer.ok || number !== latest) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (number === latest) showFindings(fresh);
    } catch {
      // The button is there, and says what is wrong.
    }
  }

  function showFindings(fresh) {
    for (const part of fresh.querySelectorAll("main [data-part]")) {
      const shown = document.querySelector(`[data-part="${part.dataset.part}"]`);
      if (shown && update(shown, part)) onChange(shown);
    }
    for (const folded of form.querySelectorAll("details:has(.field-error, .conflict)")) folded.open = true;
    for (const field of fresh.querySelectorAll("[data-field]")) {
      form.querySelector(`[data-field="${field.dataset.field}"]`)?.classList.toggle("changed", field.classList.contains("changed"));
    }
  }

  function showSource() {
    const source = form.elements.source.value;
    for (const part of form.querySelectorAll("[data-source]")) {
      part.hidden = part.dataset.source !== source;
      for (const input of part.querySelectorAll("input")) input.disabled = part.hidden;
    }
  }

  form.addEventListener("input", ({ target }) => {
    clearTimeout(timer);
    if (!target.dataset.filter) timer = setTimeout(check, PAUSE_MS);
    else for (const row of form.querySelectorAll("#machine-types tbody tr")) row.hidden = !target.value.toLowerCase().split(/\s+/).every((word) => row.textContent.toLowerCase().includes(word));
  });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.target.dataset.filter) return;
    event.preventDefault(); // chooses the first row that is left
    [...form.querySelectorAll("#machine-types label")].find((label) => label.offsetParent)?.click();
  });
  form.addEventListener("click", ({ target }) => {
    const name = target.dataset.fill;
    if (!name) return;
    form.elements[name].value = target.value;
    form.elements[name].focus();
    form.elements[name].dispatchEvent(new Event("input", { bubbles: true }));
  });
  form.addEventListener("change", showSource);
  showSource();
  form.addEventListener("submit", () => sessionStorage.setItem("form-scroll", scrollY));
  if (checked) scrollTo({ top: sessionStorage.getItem("form-scroll"), behavior: "instant" });
}
