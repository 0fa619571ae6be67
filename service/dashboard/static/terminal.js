// A terminal in the page, over the WebSocket of exec sessions.

const SHELL = ["/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"];
const MOST_BYTES = 16_384;

const box = document.querySelector("[data-terminal]");
const state = document.querySelector("[data-terminal-state]");
const again = document.querySelector("[data-terminal-again]");
const style = getComputedStyle(document.documentElement);
const colour = (name) => style.getPropertyValue(name).trim();
const names = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const bright = names.map((name) => `bright${name[0].toUpperCase()}${name.slice(1)}`);
const colours = Object.fromEntries([...names, ...bright].map((name, number) => [name, colour(`--fg${number}`)]));

const terminal = new Terminal({
  fontFamily: colour("--mono"),
  fontSize: 13,
  scrollback: 10_000,
  minimumContrastRatio: 4.5,
  theme: { ...colours, background: colour("--term"), foreground: colour("--term-text"), cursor: colour("--term-mark") },
});
const fit = new FitAddon.FitAddon();
terminal.loadAddon(fit);
terminal.open(box);
new ResizeObserver(() => fit.fit()).observe(box);

let socket;

function send(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(message);
}

function end(text) {
  state.textContent = text;
  again.hidden = false;
}

function tell(message) {
  if (message.started) {
    state.textContent = "Connected. The session is recorded in the job's events, and ends with this page.";
    terminal.focus();
  } else if ("exit" in message) end(`The shell ended with exit code ${message.exit}.`);
  else end(message.refused ?? message.ended ?? "The session ended.");
}

function open() {
  again.hidden = true;
  state.textContent = "Connecting…";
  terminal.reset();
  fit.fit();
  let told = false;
  const opened = new WebSocket(new URL(box.dataset.terminal, location.href.replace(/^http/, "ws")));
  socket = opened;
  opened.binaryType = "arraybuffer";
  opened.addEventListener("open", () => {
    send(JSON.stringify({ command: SHELL, terminal: { rows: terminal.rows, columns: terminal.cols, term: "xterm-256color" } }));
  });
  opened.addEventListener("message", ({ data }) => {
    if (typeof data !== "string") return terminal.write(new Uint8Array(data, 1)); // after the number of the stream
    const message = JSON.parse(data);
    told ||= !message.started;
    tell(message);
  });
  opened.addEventListener("close", () => {
    if (!told) end("The connection was lost or refused: the job may have ended, or you may not enter it.");
  });
}

function type(bytes) {
  for (let from = 0; from < bytes.length; from += MOST_BYTES) send(bytes.slice(from, from + MOST_BYTES));
}

terminal.onData((text) => type(new TextEncoder().encode(text)));
terminal.onBinary((text) => type(Uint8Array.from(text, (character) => character.charCodeAt(0))));
terminal.onResize(({ rows, cols }) => send(JSON.stringify({ resize: [rows, cols] })));
again.addEventListener("click", open);
open();
