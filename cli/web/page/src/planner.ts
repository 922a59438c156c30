// Asks the planner: one in this page, as WebAssembly beside it, or the command that serves it.

import type { Failure } from './types';

/** An answer that is an error, as the command would end with it. */
export class Refused extends Error {
  constructor(readonly failure: Failure) {
    super(failure.message);
  }
}

/** Carries a question's bytes to a planner and the text of its answer back. */
export type Carrier = (question: Blob) => Promise<string>;

/** Questions that must not wait for slow ones have a planner of their own. */
export interface Planners {
  quick: Planner;
  slow: Planner;
}

export class Planner {
  constructor(private readonly carry: Carrier) {}

  async ask<T>(question: object, bytes: BlobPart[] = []): Promise<T> {
    const answer = JSON.parse(await this.carry(encode(question, bytes))) as T & { error?: Failure };
    if (answer.error) throw new Refused(answer.error);
    return answer;
  }
}

/** Four bytes with the length of a JSON text, that text, and the bytes it speaks of. */
export function encode(question: object, bytes: BlobPart[]): Blob {
  const text = new TextEncoder().encode(JSON.stringify(question));
  const length = new DataView(new ArrayBuffer(4));
  length.setUint32(0, text.length, true);
  return new Blob([length.buffer, text, ...bytes]);
}

export function planners(): Planners {
  const told = document.querySelector<HTMLMetaElement>('meta[name=planner]')?.content;
  if (told === 'http') {
    const planner = new Planner(overHttp(token()));
    return { quick: planner, slow: planner };
  }
  return { quick: new Planner(inWorker()), slow: new Planner(inWorker()) };
}

function overHttp(token: string): Carrier {
  return async (question) => {
    const response = await fetch('/ask', {
      method: 'POST',
      headers: { 'Content-Type': 'application/octet-stream', 'X-Cacheplan-Token': token },
      body: question,
    });
    if (!response.ok) throw new Refused({ message: (await response.text()).trim(), code: 1 });
    return response.text();
  };
}

/** The token goes from the address to this tab's storage, so that a link that is shared is without it. */
function token(): string {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const found = fragment.get('token');
  if (found) {
    sessionStorage.setItem('token', found);
    fragment.delete('token');
    history.replaceState(null, '', `#${fragment}`);
  }
  return sessionStorage.getItem('token') ?? '';
}

function inWorker(): Carrier {
  const worker = new Worker(new URL('./worker.ts', import.meta.url), { type: 'module' });
  const waiting = new Map<number, { resolve: (text: string) => void; reject: (error: Error) => void }>();
  let next = 0;
  worker.onmessage = ({ data }: MessageEvent<{ number: number; answer?: string; failed?: string }>) => {
    const asked = waiting.get(data.number);
    waiting.delete(data.number);
    if (data.answer !== undefined) asked?.resolve(data.answer);
    else asked?.reject(new Refused({ message: data.failed ?? 'the planner stopped', code: 1 }));
  };
  worker.onerror = () => {
    for (const asked of waiting.values()) asked.reject(new Refused({ message: 'the planner could not be loaded', code: 1 }));
    waiting.clear();
  };
  return async (question) => {
    const bytes = await question.arrayBuffer();
    return new Promise((resolve, reject) => {
      next += 1;
      waiting.set(next, { resolve, reject });
      worker.postMessage({ number: next, question: bytes }, [bytes]);
    });
  };
}
