// Whether two builds of the planner are the same program, by their answers: `node same.mjs ONE.wasm OTHER.wasm`.
//
// Their bytes are not the same on all machines: the standard library's symbols hold a hash of where its sources lie.

import { readFile, readdir } from 'node:fs/promises';

const CONFIGS = new URL('../../../../tests/fixtures/configs/', import.meta.url);
const BUDGETS = [
  ['', ''],
  ['max_seq_len = 32768\n', 'h100'],
  ["max_seq_len = 8192\n[dtypes]\nkv = 'fp8'\n[parallel]\ntp = 4\npp = 2\n", '8xh200'],
  ["[memory]\nbytes = '40GiB'\n[workload]\nprompt = { fixed = 900 }\noutput = { fixed = 100 }\n", ''],
];

async function load(path) {
  const { instance } = await WebAssembly.instantiate(await readFile(path), {});
  const { memory, room, answer, answer_length } = instance.exports;
  return (question, bytes = Buffer.alloc(0)) => {
    const text = Buffer.from(JSON.stringify(question));
    const length = Buffer.alloc(4);
    length.writeUInt32LE(text.length);
    const all = Buffer.concat([length, text, bytes]);
    const at = room(all.length);
    new Uint8Array(memory.buffer, at, all.length).set(all);
    const found = answer();
    return Buffer.from(memory.buffer, found, answer_length()).toString();
  };
}

/** Every question about a model that was opened, in turn. */
function* questions(number, thorough) {
  for (const [budget, device] of BUDGETS) {
    const of = { model: number, budget, device };
    yield { ask: 'plan', of };
    yield { ask: 'explain', of, subject: 'capacity' };
    if (!thorough) continue;
    yield { ask: 'plan', of: { ...of, bits: 4 }, people: 7, price: 2.5 };
    yield { ask: 'curves', of, contexts: [1024, 32768] };
    yield { ask: 'flags', of, model: 'm' };
    yield { ask: 'file', of, format: 'svg' };
    yield { ask: 'simulate', of, workload: 'chat', checkpoints: [16] };
  }
  if (thorough) yield { ask: 'start', of: { name: 'c', text: 'vllm serve m --max-model-len 2048', device: 'h100' }, at: 0, model: number, draft: null };
  if (thorough) yield { ask: 'fit', model: number, context: 8192, sequences: 8, devices: ['h100', 'b200'], max_devices: 4 };
}

const [one, other] = await Promise.all(process.argv.slice(2, 4).map(load));
let [asked, opened] = [0, 0];
const compare = (question, bytes) => {
  const [left, right] = [one(question, bytes), other(question, bytes)];
  asked += 1;
  if (left !== right) {
    console.error(`the two differ on ${JSON.stringify(question).slice(0, 300)}:\n${left.slice(0, 300)}\n${right.slice(0, 300)}`);
    process.exit(1);
  }
  return JSON.parse(left);
};
compare({ ask: 'choices' });
compare({ ask: 'set', budget: '# a\n[memory]\nof = "free"\n', key: 'memory.fraction', value: '0.5' });
const names = (await readdir(CONFIGS)).sort();
for (const [number, name] of names.entries()) {
  const text = await readFile(new URL(name, CONFIGS));
  const files = [{ name: 'config.json', length: text.length, slices: [[0, text.length]] }];
  const { model } = compare({ ask: 'open', files }, text);
  if (model === undefined) continue;
  opened += 1;
  for (const question of questions(model, number % 8 === 0)) compare(question);
}
if (opened * 2 < names.length) throw new Error(`only ${opened} of ${names.length} configs were read`);
console.log(`${asked} questions about ${opened} models have the same answers`);
