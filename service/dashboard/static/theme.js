// What this browser remembers of the look of pages, the first value being the default. Not a module: it runs before the
// page is drawn.

(() => {
  const root = document.documentElement;
  const values = { theme: ["system", "light", "dark"], density: ["comfortable", "compact"], times: ["ages", "dates"] };

  function remembered(kind) {
    try {
      const value = localStorage.getItem(kind);
      if (values[kind].includes(value)) return value;
    } catch {
      // Nothing is remembered here.
    }
    return values[kind][0];
  }

  function apply(kind, value) {
    root.dataset[kind] = value;
    for (const shown of document.querySelectorAll(`[data-switch="${kind}"] b`)) shown.textContent = value;
  }

  for (const kind of Object.keys(values)) apply(kind, remembered(kind));
  document.addEventListener("DOMContentLoaded", () => {
    for (const kind of Object.keys(values)) apply(kind, root.dataset[kind]);
    for (const button of document.querySelectorAll("[data-switch]")) {
      button.addEventListener("click", () => {
        const kind = button.dataset.switch;
        const next = values[kind][(values[kind].indexOf(root.dataset[kind]) + 1) % values[kind].length];
        try {
          localStorage.setItem(kind, next);
        } catch {
          // It is applied, and forgotten with the page.
        }
        apply(kind, next);
      });
    }
  });
})();
