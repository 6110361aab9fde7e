// The state of a panel in the fragment of its URL: it can be shared, and is never sent to the server.
const PAUSE = 250; // milliseconds: browsers throttle URL changes at every key press
let pending = null, timer = 0;

function flush() {
  clearTimeout(timer);
  if (pending !== null) history.replaceState(null, "", pending);
  pending = null;
}

export function read() {
  flush();
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

// Writes the state to the URL; `step` adds a history entry for the back button.
export function write(state, { step = false } = {}) {
  const hash = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== "" && value !== null && value !== undefined)).toString();
  const url = `${location.pathname}${location.search}${hash ? `#${hash}` : ""}`;
  if (step) {
    flush();
    if (hash !== location.hash.slice(1)) history.pushState(null, "", url);
    return;
  }
  pending = url;
  clearTimeout(timer);
  timer = setTimeout(flush, PAUSE);
}

// Calls back on back and forward navigation, and when the URL is edited.
export function onChange(callback) {
  addEventListener("popstate", () => {
    pending = null;
    callback();
  });
  addEventListener("pagehide", flush);
}
