// Requests to the server: JSON bodies, the API key if there is one, and a message for every failure.
const STORAGE_KEY = "bertsmith key"; // in the session storage of this tab

export class RequestError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const apiKey = () => sessionStorage.getItem(STORAGE_KEY) ?? "";
export function storeKey(value) {
  if (value) sessionStorage.setItem(STORAGE_KEY, value); else sessionStorage.removeItem(STORAGE_KEY);
}

// The response `{ result, headers, milliseconds }`; a GET without a body.
export async function request(path, body, { signal } = {}) {
  const headers = apiKey() ? { Authorization: `Bearer ${apiKey()}` } : {};
  const options = body === undefined ? { headers } : { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const began = performance.now();
  let response, text;
  try {
    response = await fetch(path, { ...options, signal, cache: "no-cache", credentials: "same-origin" });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The server does not respond: is it still running?");
  }
  let result = null;
  try {
    result = JSON.parse(text);
  } catch {
    throw new RequestError(`The response is not JSON (status ${response.status}).`, response.status);
  }
  if (!response.ok) throw new RequestError(result.error?.message ?? result.error ?? `The server responded with status ${response.status}.`, response.status);
  return { result, headers: response.headers, milliseconds: performance.now() - began };
}

// Runs one call at a time: a new call aborts the previous one, and so does `cancel`.
export function latest(work) {
  let current = null;
  const run = async (...args) => {
    current?.abort();
    const own = (current = new AbortController());
    try {
      return await work(own.signal, ...args);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  };
  run.cancel = () => current?.abort();
  return run;
}
