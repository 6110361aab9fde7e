// What a panel shows, in the fragment of its address: it can be shared, and is never sent to the server.
const PAUSE = 250; // milliseconds: browsers refuse addresses that change with every key
let pending = null, timer = 0;

function put() {
  clearTimeout(timer);
  if (pending !== null) history.replaceState(null, "", pending);
  pending = null;
}

export function read() {
  put();
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

// Writes the state into the address; `step` makes it one that the back button returns to.
export function write(state, { step = false } = {}) {
  const hash = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== "" && value !== null && value !== undefined)).toString();
  const address = `${location.pathname}${location.search}${hash ? `#${hash}` : ""}`;
  if (step) {
    put();
    if (hash !== location.hash.slice(1)) history.pushState(null, "", address);
    return;
  }
  pending = address;
  clearTimeout(timer);
  timer = setTimeout(put, PAUSE);
}

// Going back, and addresses that are changed by hand.
export function whenChanged(act) {
  addEventListener("popstate", () => {
    pending = null;
    act();
  });
  addEventListener("pagehide", put);
}
