// Completion of the query field: terms that the last one could become, in a list below it.

const WAIT_MS = 120;
const LAST_TERM = /(?:"[^"]*"?|[^\s"])*$/;
const UNFINISHED = /[:<>=]$/;

export function completeQuery(field) {
  const list = Object.assign(document.createElement("ul"), { className: "completions", id: `${field.id}-completions`, hidden: true });
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Completions");
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id })) field.setAttribute(name, value);
  field.after(list);
  let chosen = -1;
  let asked = 0;
  let timer = 0;

  function show(terms) {
    list.replaceChildren(...terms.map((term, place) => {
      const item = Object.assign(document.createElement("li"), { id: `${list.id}-${place}`, textContent: term });
      item.setAttribute("role", "option");
      return item;
    }));
    list.hidden = terms.length === 0;
    field.setAttribute("aria-expanded", String(!list.hidden));
    mark(-1);
  }

  function mark(place) {
    chosen = place;
    [...list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === place)));
    list.children[place]?.scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", list.children[place]?.id ?? "");
  }

  async function update() {
    const number = ++asked;
    const [term] = field.value.slice(0, field.selectionStart).match(LAST_TERM);
    let terms = [];
    if (document.activeElement === field) {
      const answer = await fetch(`/ui/jobs/complete?text=${encodeURIComponent(term)}`).catch(() => null);
      if (answer?.ok) terms = await answer.json();
    }
    if (number === asked) show(terms);
  }

  function accept(term) {
    const before = field.value.slice(0, field.selectionStart).replace(LAST_TERM, "") + term + (UNFINISHED.test(term) ? "" : " ");
    field.value = before + field.value.slice(field.selectionStart).trimStart();
    field.setSelectionRange(before.length, before.length);
    field.focus();
    update();
  }

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(update, WAIT_MS);
  });
  field.addEventListener("focus", update);
  field.addEventListener("blur", () => show([]));
  list.addEventListener("pointerdown", (event) => {
    event.preventDefault(); // the field keeps the focus
    const item = event.target.closest("li");
    if (item) accept(item.textContent);
  });
  field.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    const { length } = list.children;
    if (event.key === "ArrowDown") mark((chosen + 1) % length);
    else if (event.key === "ArrowUp") mark(chosen <= 0 ? length - 1 : chosen - 1);
    else if ((event.key === "Enter" || event.key === "Tab") && chosen >= 0) accept(list.children[chosen].textContent);
    else if (event.key === "Escape") show([]);
    else return;
    event.preventDefault();
  });
}
