// Number formatting and round axis ticks.
export function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  for (const [unit, sign] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= unit && (sign !== "k" || size >= 1e4)) return `${+(value / unit).toPrecision(4)}${sign}`;
  return size < 1e-3 ? value.toExponential().replace(/(\.\d{2})\d+/, "$1") : `${+value.toPrecision(4)}`;
}
export const rounded = (value) => Math.round(value).toLocaleString("en");
export function exactly(value) {
  if (value === null) return "not finite";
  return Math.abs(value) >= 1e4 ? rounded(value) : Math.abs(value) < 1e-3 && value ? value.toExponential(2) : `${+value.toPrecision(5)}`;
}
export function ticks(low, high, most, log) {
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    if (last - first >= 1) {
      const stride = Math.max(1, Math.ceil((last - first + 1) / most));
      return Array.from({ length: Math.floor((last - first) / stride) + 1 }, (_, i) => 10 ** (first + i * stride));
    }
  }
  const raw = (high - low) / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((times) => power * times).find((size) => size >= raw * (1 - 1e-9));
  const values = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) values.push(+(index * step).toPrecision(12));
  return values;
}
