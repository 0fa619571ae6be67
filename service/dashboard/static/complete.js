// Completion of the query field: terms that the last one could become, in a list below it.

import { offerChoices } from "./choices.js";

const LAST_TERM = /(?:"[^"]*"?|[^\s"])*$/;
const UNFINISHED = /[:<>=]$/;

export function completeQuery(field) {
  const list = Object.assign(document.createElement("ul"), { className: "completions", id: `${field.id}-completions`, hidden: true, ariaLabel: "Completions" });
  field.after(list);

  async function find() {
    if (document.activeElement !== field) return [];
    const [term] = field.value.slice(0, field.selectionStart).match(LAST_TERM);
    const answer = await fetch(`/ui/jobs/complete?text=${encodeURIComponent(term)}`).catch(() => null);
    return answer?.ok ? answer.json() : [];
  }

  function take(term) {
    const before = field.value.slice(0, field.selectionStart).replace(LAST_TERM, "") + term + (UNFINISHED.test(term) ? "" : " ");
    field.value = before + field.value.slice(field.selectionStart).trimStart();
    field.setSelectionRange(before.length, before.length);
    field.focus();
  }

  offerChoices(field, list, { find, take, item: (term) => [term] });
}
