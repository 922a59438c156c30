// Models by their names on the Hugging Face hub: the page asks it only where somebody says so, for headers, not for weights.

import { Refused } from './planner';
import { hasEnding, type Piece } from './piece';

const HUB = 'https://huggingface.co';

export interface Name {
  model: string;
  revision: string;
  file: string | null;
}

/** `org/name`, `org/name@revision`, `org/name/file.gguf`, as the command reads them. */
export function nameOf(text: string): Name | null {
  const [name, revision = 'main', ...more] = text.trim().split('@');
  const [owner, model, ...file] = name!.split('/');
  const plain = (part: string | undefined) => part !== undefined && /^[A-Za-z0-9_][A-Za-z0-9._-]*$/.test(part);
  const parts = [owner, model, ...file, ...revision.split('/')];
  if (more.length > 0 || !parts.every(plain)) return null;
  return { model: `${owner}/${model}`, revision, file: file.join('/') || null };
}

const INDEX = 'model.safetensors.index.json';

/** Which of a model's files a plan is made of: the first is the model, the others lie beside it. */
export function needed(files: string[], file: string | null): string[] {
  const beside = ['config.json', 'hf_quant_config.json'].filter((name) => files.includes(name));
  if (file !== null) return [file, ...beside.filter((name) => name !== file)];
  const shards = files.filter((name) => hasEnding(name, '.safetensors') && !name.includes('/'));
  if (files.includes(INDEX)) return [INDEX, ...beside, ...shards];
  if (files.includes('model.safetensors')) return ['model.safetensors', ...beside];
  return beside;
}

export async function fromHub(text: string): Promise<Piece[]> {
  const name = nameOf(text);
  if (!name) throw refused(`${text} is no name on the hub; org/name, org/name@revision or org/name/file.gguf was expected`);
  const at = `${HUB}/api/models/${name.model}/revision/${encodeURIComponent(name.revision)}?blobs=true`;
  const listed = (await (await asked(text, at)).json()) as { siblings?: { rfilename: string; size?: number }[] };
  const sizes = new Map((listed.siblings ?? []).map(({ rfilename, size }) => [rfilename, size ?? 0]));
  const names = needed([...sizes.keys()], name.file);
  if (names.length === 0 || !names.every((file) => sizes.has(file))) {
    throw refused(`${text}: there is no ${name.file ?? 'config.json'}; of a model in GGUF name the file: ${name.model}/NAME.gguf`);
  }
  return names.map((file) => {
    const url = `${HUB}/${name.model}/resolve/${encodeURIComponent(name.revision)}/${file}`;
    const length = sizes.get(file)!;
    return {
      name: file,
      length,
      slice: async (offset, count) => {
        const response = await asked(text, url, { Range: `bytes=${offset}-${offset + count - 1}` });
        if (response.status !== 206 && count !== length) {
          void response.body?.cancel();
          throw refused(`${url}: the hub did not send the part that was asked for`);
        }
        const bytes = await response.arrayBuffer();
        if (bytes.byteLength !== count) throw refused(`${url}: ${bytes.byteLength} bytes came of ${count}`);
        return bytes;
      },
    };
  });
}

async function asked(what: string, url: string, headers: Record<string, string> = {}): Promise<Response> {
  const response = await fetch(url, { headers, credentials: 'omit', referrerPolicy: 'no-referrer' }).catch(() => {
    throw refused(`${new URL(url).host} cannot be asked from here; its config.json, pasted or dropped, does as well`);
  });
  if (response.ok) return response;
  const closed = [401, 403].includes(response.status);
  const why = closed ? 'it is not there, or not open to all: this page has no token; drop its config.json' : 'the hub refused';
  throw refused(`${what}: ${why} (HTTP ${response.status})`);
}

function refused(message: string): Refused {
  return new Refused({ message, code: 1 });
}
