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

export function count(value: number): string {
  return value.toLocaleString('en');
}
