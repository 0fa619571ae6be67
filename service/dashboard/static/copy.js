// A copy button next to texts that people copy, if the browser lets pages write to the clipboard.

export function offerCopies(root) {
  if (!navigator.clipboard) return;
  for (const element of root.querySelectorAll("[data-copy], [data-copy-block]")) {
    if (element.nextElementSibling?.classList.contains("copy")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.setAttribute("aria-label", `Copy ${element.dataset.copy ?? "the command"}`);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(element.dataset.copy ?? element.textContent);
        button.textContent = "copied";
      } catch {
        button.textContent = "not allowed";
      }
      setTimeout(() => { button.textContent = "copy"; }, 2000);
    });
    element.after(button);
  }
}
