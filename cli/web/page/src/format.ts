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

/** Tokens as people say them: `32k` of 1,024 each. */
export function short(tokens: number): string {
  for (const [letter, size] of [['m', 1 << 20], ['k', 1 << 10]] as const) if (tokens >= size && tokens % size === 0) return `${tokens / size}${letter}`;
  return count(tokens);
}

/** What `32k` says; null where the planner must read it. */
export function tokensOf(text: string): number | null {
  const [, digits, letter] = /^([\d,]+)\s*([km]?)$/i.exec(text.trim()) ?? [];
  if (!digits) return null;
  return Number(digits.replaceAll(',', '')) * ({ k: 1 << 10, m: 1 << 20 }[letter!.toLowerCase()] ?? 1);
}

/** Three digits, or all of those before the point. */
export function rate(value: number): string {
  return value.toLocaleString('en', value >= 100 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 });
}

/** `1 sequence`, `2 sequences`. */
export function counted(value: number, what: string): string {
  return `${count(value)} ${what}${value === 1 ? '' : 's'}`;
}

/** A number that is only known to lie between two. */
export function range({ low, high }: { low: number; high: number }): string {
  return high === 0 ? 'none' : low === high ? count(low) : `${count(low)} to ${count(high)}`;
}

/** An amount, behind the sign of its currency where one is stated. */
export function price(value: number, currency = ''): string {
  return currency + value.toLocaleString('en', value >= 0.1 ? { minimumFractionDigits: 2, maximumFractionDigits: 2 } : { maximumSignificantDigits: 3 });
}

/** How many devices, and which: `8xh100` is eight of `h100`. */
export function devices(text: string): { count: number; name: string } {
  const [, number, name] = /^(\d+)\s*[x×]\s*(.+)$/i.exec(text.trim()) ?? [];
  return number && name ? { count: Number(number), name } : { count: 1, name: text.trim() };
}

export function devicesText(count: number, name: string): string {
  return count > 1 && name !== '' ? `${count}x${name}` : name;
}

/** A value as it stands in TOML, without quotes. */
export function plain(value: string): string {
  return value.startsWith('"') ? (JSON.parse(value) as string) : value;
}
