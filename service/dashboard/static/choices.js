// A field with a list of choices for what is typed in it: arrows mark one, Enter takes it.

const WAIT_MS = 120;

// `find` returns the choices, `item` draws one. `modal`: the list is all there is, so its first choice is marked.
export function offerChoices(field, list, { find, item, take, modal = false }) {
  list.setAttribute("role", "listbox");
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id })) field.setAttribute(name, value);
  let choices = [];
  let chosen = -1;
  let asked = 0;
  let timer = 0;

  function mark(at) {
    chosen = at;
    [...list.children].forEach((entry, place) => entry.setAttribute("aria-selected", String(place === at)));
    list.children[at]?.scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", list.children[at]?.id ?? "");
  }

  function show(found) {
    choices = found;
    list.replaceChildren(...found.map((choice, place) => {
      const entry = Object.assign(document.createElement("li"), { id: `${list.id}-${place}`, role: "option" });
      entry.append(...item(choice));
      return entry;
    }));
    list.hidden = found.length === 0;
    field.setAttribute("aria-expanded", String(!list.hidden));
    mark(modal && found.length ? 0 : -1);
  }

  async function update() {
    const number = ++asked;
    const found = await find();
    if (number === asked) show(found);
  }

  function accept(at) {
    take(choices[at]);
    if (!modal) update();
  }

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(update, WAIT_MS);
  });
  field.addEventListener("focus", update);
  if (!modal) field.addEventListener("blur", () => show([]));
  list.addEventListener("pointerdown", (event) => {
    event.preventDefault(); // the field keeps the focus
    const at = [...list.children].indexOf(event.target.closest("li"));
    if (at >= 0) accept(at);
  });
  field.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    const { length } = choices;
    if (event.key === "ArrowDown") mark((chosen + 1) % length);
    else if (event.key === "ArrowUp") mark(chosen <= 0 ? length - 1 : chosen - 1);
    else if ((event.key === "Enter" || (event.key === "Tab" && !modal)) && chosen >= 0) accept(chosen);
    else if (event.key === "Escape" && !modal) show([]);
    else return;
    event.preventDefault();
  });
}
