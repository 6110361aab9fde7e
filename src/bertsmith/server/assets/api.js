// Asks the server: JSON there and back, the key where one is needed, every failure in words.
const KEY = "bertsmith key"; // in the storage of this tab alone

export class Trouble extends Error {
  constructor(words, status = 0) {
    super(words);
    this.status = status;
  }
}

export const key = () => sessionStorage.getItem(KEY) ?? "";
export function keepKey(words) {
  if (words) sessionStorage.setItem(KEY, words); else sessionStorage.removeItem(KEY);
}

// The answer to one question, `{ result, headers, milliseconds }`; without a body it is a GET.
export async function ask(path, body, { signal } = {}) {
  const headers = key() ? { Authorization: `Bearer ${key()}` } : {};
  const how = body === undefined ? { headers } : { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const began = performance.now();
  let response, text;
  try {
    response = await fetch(path, { ...how, signal, cache: "no-cache", credentials: "same-origin" });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server does not answer: is it still running?");
  }
  let result = null;
  try {
    result = JSON.parse(text);
  } catch {
    throw new Trouble(`The server's answer is no JSON (status ${response.status}).`, response.status);
  }
  if (!response.ok) throw new Trouble(result.error ?? `The server answered with status ${response.status}.`, response.status);
  return { result, headers: response.headers, milliseconds: performance.now() - began };
}

// Runs one thing at a time: beginning anew drops what is under way, and so does `cancel`.
export function latest(work) {
  let current = null;
  const run = async (...given) => {
    current?.abort();
    const mine = (current = new AbortController());
    try {
      return await work(mine.signal, ...given);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  };
  run.cancel = () => current?.abort();
  return run;
}
