// Light, dark, or as the system has it: remembered in this browser. Not a module: it runs before the page is drawn.

(() => {
  const root = document.documentElement;
  const shown = { system: "◐", light: "☀", dark: "☾" };
  const names = Object.keys(shown);

  function remembered() {
    try {
      const name = localStorage.getItem("theme");
      return names.includes(name) ? name : "system";
    } catch {
      return "system";
    }
  }

  function apply(name) {
    root.dataset.theme = name;
    for (const button of document.querySelectorAll("[data-theme-switch]")) {
      button.textContent = shown[name];
      button.title = `Theme: ${name}`;
      button.setAttribute("aria-label", button.title);
    }
  }

  apply(remembered());
  document.addEventListener("DOMContentLoaded", () => {
    apply(remembered());
    for (const button of document.querySelectorAll("[data-theme-switch]")) {
      button.addEventListener("click", () => {
        const next = names[(names.indexOf(root.dataset.theme) + 1) % names.length];
        try {
          localStorage.setItem("theme", next);
        } catch {
          // It is applied, and forgotten with the page.
        }
        apply(next);
      });
    }
  });
})();
