// The planner beside the page, so that a slow answer does not hold up drawing.

interface Planner {
  memory: WebAssembly.Memory;
  room(length: number): number;
  answer(): number;
  answer_length(): number;
}

let planner: Promise<Planner> | null = null;

async function load(): Promise<Planner> {
  const response = await fetch(new URL('planner.wasm', self.location.href));
  if (!response.ok) throw new Error(`planner.wasm: ${response.status}`);
  const { instance } = await WebAssembly.instantiate(await response.arrayBuffer(), {});
  return instance.exports as unknown as Planner;
}

self.onmessage = async ({ data }: MessageEvent<{ number: number; question: ArrayBuffer }>) => {
  try {
    planner ??= load();
    const { memory, room, answer, answer_length } = await planner;
    const question = new Uint8Array(data.question);
    const at = room(question.length);
    new Uint8Array(memory.buffer, at, question.length).set(question);
    const found = answer();
    const text = new TextDecoder().decode(new Uint8Array(memory.buffer, found, answer_length()));
    self.postMessage({ number: data.number, answer: text });
  } catch (error) {
    // After a trap nothing in its memory can be believed.
    planner = null;
    self.postMessage({ number: data.number, failed: `the planner stopped: ${error instanceof Error ? error.message : error}` });
  }
};
