// A file of which slices can be had, on this machine or far away.

export interface Piece {
  name: string;
  length: number;
  slice(offset: number, length: number): Promise<BlobPart>;
}

export function hasEnding(name: string, ending: string): boolean {
  return name.toLowerCase().endsWith(ending);
}
