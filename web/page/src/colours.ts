// One colour for each pool, which colour-blind readers tell apart (after Okabe and Ito); what is no cache is grey.

const POOLS = ['#56b4e9', '#e69f00', '#009e73', '#cc79a7', '#f0e442', '#d55e00', '#0072b2', '#a6761d'];
const OTHERS: Record<string, string> = {
  weights: '#a8a8a8',
  'draft weights': '#8f8f8f',
  activations: '#c4c4c4',
  context: '#d6d6d6',
  nccl: '#cfcfcf',
  graphs: '#bdbdbd',
  unused: '#f4f4f4',
  'left to others': '#ffffff',
};

/** The colour of a pool by its place in the plan; after the first eight the same lighter, then darker. */
export function poolColour(place: number): string {
  const fill = POOLS[place % POOLS.length]!;
  const round = Math.floor(place / POOLS.length) % 3;
  const mixed = (at: number) => {
    const part = parseInt(fill.slice(at, at + 2), 16);
    return Math.round(round === 0 ? part : round === 1 ? (part + 255) / 2 : part * 0.6);
  };
  return `#${[1, 3, 5].map((at) => mixed(at).toString(16).padStart(2, '0')).join('')}`;
}

export function otherColour(name: string): string {
  return OTHERS[name] ?? '#dddddd';
}

/** Black or white, whichever reads better on a fill. */
export function onColour(fill: string): string {
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const part = parseInt(fill.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? '#000000' : '#ffffff';
}

/** Lines of a chart, told apart by dashes too. */
export const LINES = [
  { colour: 'var(--line-1)', dash: '' },
  { colour: 'var(--line-2)', dash: '8 3' },
  { colour: 'var(--line-3)', dash: '2 3' },
  { colour: 'var(--line-4)', dash: '10 3 2 3' },
  { colour: 'var(--line-5)', dash: '4 2' },
];
