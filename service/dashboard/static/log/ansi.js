// Text with SGR colours as elements. Only colours and weights are known; every other escape is left out, and text
// only ever becomes text nodes. Addresses of web pages become links.

const ESCAPE = /\x1b\[([0-9;:]*)m|\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?|[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;
// Characters that reorder the text around them: shown as visible escapes.
const REORDERING = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
// Without the punctuation that ends the sentence around an address.
const ADDRESS = /\bhttps?:\/\/[^\s<>"'`\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]*[^\s<>"'`.,;:!?)\]}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const LEVELS = [0, 95, 135, 175, 215, 255];

export function showReordering(text) {
  return text.replace(REORDERING, (c) => `<U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);
}

export function plainStyle() {
  return { fg: null, bg: null, bold: false, dim: false, italic: false, underline: false, strike: false, inverse: false };
}

// Puts `text` into `element`; `style` is updated to the style after it.
export function writeAnsi(element, text, style) {
  let from = 0;
  for (const match of text.matchAll(ESCAPE)) {
    append(element, text.slice(from, match.index), style);
    if (match[1] !== undefined) apply(style, match[1]);
    from = match.index + match[0].length;
  }
  append(element, text.slice(from), style);
}

function append(element, text, style) {
  if (!text) return;
  const names = ["bold", "dim", "italic", "underline", "strike", "inverse"].filter((name) => style[name]);
  if (!names.length && style.fg === null && style.bg === null) {
    appendLinked(element, text);
    return;
  }
  const span = document.createElement("span");
  span.className = names.join(" ");
  paint(span, "fg", "color", style.fg);
  // An inverse text has its colour as background, by the style sheet.
  if (!style.inverse) paint(span, "bg", "backgroundColor", style.bg);
  appendLinked(span, text);
  element.append(span);
}

function appendLinked(element, text) {
  let from = 0;
  for (const match of text.matchAll(ADDRESS)) {
    const link = document.createElement("a");
    link.href = match[0];
    link.rel = "noreferrer";
    link.target = "_blank";
    link.append(match[0]);
    element.append(showReordering(text.slice(from, match.index)), link);
    from = match.index + match[0].length;
  }
  element.append(showReordering(text.slice(from)));
}

function paint(span, prefix, property, colour) {
  if (typeof colour === "number") span.classList.add(`${prefix}${colour}`);
  else if (colour !== null) span.style[property] = `rgb(${colour.join(",")})`;
}

function apply(style, parameters) {
  const codes = parameters.split(/[;:]/).map((code) => Number(code || 0));
  while (codes.length) {
    const code = codes.shift();
    if (code === 0) Object.assign(style, plainStyle());
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.underline = true;
    else if (code === 7) style.inverse = true;
    else if (code === 9) style.strike = true;
    else if (code === 22) style.bold = style.dim = false;
    else if (code === 23) style.italic = false;
    else if (code === 24) style.underline = false;
    else if (code === 27) style.inverse = false;
    else if (code === 29) style.strike = false;
    else if (code >= 30 && code <= 37) style.fg = code - 30;
    else if (code === 38) style.fg = extended(codes);
    else if (code === 39) style.fg = null;
    else if (code >= 40 && code <= 47) style.bg = code - 40;
    else if (code === 48) style.bg = extended(codes);
    else if (code === 49) style.bg = null;
    else if (code >= 90 && code <= 97) style.fg = code - 82;
    else if (code >= 100 && code <= 107) style.bg = code - 92;
  }
}

function extended(codes) {
  const kind = codes.shift();
  if (kind === 2) {
    const rgb = codes.splice(0, 3);
    return rgb.length === 3 && rgb.every((part) => part <= 255) ? rgb : null;
  }
  const index = kind === 5 ? codes.shift() : undefined;
  if (!(index >= 0 && index <= 255)) return null;
  if (index < 16) return index;
  if (index >= 232) return Array(3).fill((index - 232) * 10 + 8);
  const cube = index - 16;
  return [LEVELS[Math.floor(cube / 36)], LEVELS[Math.floor(cube / 6) % 6], LEVELS[cube % 6]];
}
