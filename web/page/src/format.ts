// Numbers for people. Bytes are binary, as the command prints them.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

export function bytes(count: number): string {
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${count} B` : `${value.toFixed(2)} ${UNITS[unit]}`;
}

export function tokens(count: number): string {
  if (count >= 1 << 20 && count % (1 << 20) === 0) return `${count >> 20}m`;
  return count >= 1024 && count % 1024 === 0 ? `${count >> 10}k` : String(count);
}

export function count(value: number): string {
  return value.toLocaleString('en');
}

export function percent(part: number, whole: number): string {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : '';
}

/** `0-3, 5, 7-9`. */
export function ranges(layers: number[]): string {
  const parts: string[] = [];
  for (let at = 0; at < layers.length; ) {
    let end = at;
    while (end + 1 < layers.length && layers[end + 1] === layers[end]! + 1) end += 1;
    parts.push(end > at ? `${layers[at]}-${layers[end]}` : `${layers[at]}`);
    at = end + 1;
  }
  return parts.join(', ');
}
