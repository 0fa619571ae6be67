// Changes what is shown into what the server sends now. Nodes that are the same stay, and with them the focus, selections,
// what is typed, open or scrolled, and what scripts have set or added: only what the server has changed is changed.

const NAMES = ["id", "data-run", "data-key", "href", "action", "name", "aria-labelledby", "data-label"];
const served = new WeakMap();

export const serverOf = (shown) => served.get(shown);

// Remembers that a node is shown as the server sent it.
export function note(shown, fresh = shown.cloneNode(true)) {
  served.set(shown, fresh);
  shown.childNodes.forEach((child, place) => note(child, fresh.childNodes[place]));
  return shown;
}

// True if there was something to change.
export function update(shown, fresh) {
  const active = shown.contains(document.activeElement) ? document.activeElement : null;
  const changed = morph(shown, fresh);
  if (changed && active) holdFocus(active, shown);
  return changed;
}

// To what was moved, or has been made anew.
export function holdFocus(active, shown) {
  const name = identity(active);
  const element = active.isConnected ? active : name && [...shown.querySelectorAll(active.localName)].find((other) => identity(other) === name);
  if (element && element !== document.activeElement) element.focus({ preventScroll: true });
}

function morph(shown, fresh) {
  const was = served.get(shown);
  if (was.isEqualNode(fresh)) return false;
  served.set(shown, fresh);
  if (fresh.nodeType !== Node.ELEMENT_NODE) shown.nodeValue = fresh.nodeValue;
  else {
    for (const name of new Set([...was.getAttributeNames(), ...fresh.getAttributeNames()])) {
      const value = fresh.getAttribute(name);
      if (value === null) shown.removeAttribute(name);
      else if (value !== was.getAttribute(name)) shown.setAttribute(name, value);
    }
    morphChildren(shown, was, fresh);
  }
  return true;
}

function morphChildren(shown, was, fresh) {
  const old = new Set([...shown.childNodes].filter((node) => served.has(node)));
  // A script has written something else here.
  if (old.size !== was.childNodes.length) return shown.replaceChildren(...[...fresh.childNodes].map(make));
  const matches = new Map();
  for (const name of [key, kind]) {
    const waiting = new Map();
    for (const node of old) waiting.set(name(served.get(node)), [...(waiting.get(name(served.get(node))) ?? []), node]);
    for (const node of fresh.childNodes) {
      const match = !matches.has(node) && waiting.get(name(node))?.shift();
      if (match && old.delete(match)) matches.set(node, match);
    }
  }
  for (const node of old) withAdded(node).forEach((gone) => gone.remove());
  let next = fromServer(shown.firstChild);
  for (const node of fresh.childNodes) {
    const match = matches.get(node);
    // Spaces give way: elements that stay in their order are not moved.
    while (next?.nodeType === Node.TEXT_NODE && node.nodeType !== Node.TEXT_NODE) next = fromServer(next.nextSibling);
    if (!match) shown.insertBefore(make(node), next);
    else if (match === next) next = fromServer(next.nextSibling);
    else for (const moved of withAdded(match)) shown.insertBefore(moved, next);
    if (match) morph(match, node);
  }
}

const make = (fresh) => note(document.importNode(fresh, true), fresh);

function fromServer(node) {
  while (node && !served.has(node)) node = node.nextSibling;
  return node;
}

// A node and what scripts have put after it.
function withAdded(node) {
  const nodes = [node];
  for (let next = node.nextSibling; next && !served.has(next); next = next.nextSibling) nodes.push(next);
  return nodes;
}

// What tells an element from its siblings: a row is that of the first thing with a name in it.
function identity(node) {
  const element = node.matches?.("tr:not([data-run], [id]), li:not([id])") ? node.querySelector("[id], [href]") ?? node : node;
  if (element.localName === "button") return element.id || element.textContent;
  return NAMES.map((name) => element.getAttribute?.(name)).find(Boolean) ?? "";
}

const key = (node) => `${node.nodeName} ${identity(node) || node.className}`;

// No other row, link or button becomes the one that has the focus.
function kind(node) {
  if (node.localName === "a") return `a ${node.textContent}`;
  return node.matches?.("tr, li, button, form") ? key(node) : node.nodeName;
}
