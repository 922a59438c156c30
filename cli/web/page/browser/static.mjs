// A folder over HTTP, as any host of static files serves it; for tests.
import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { extname } from 'node:path';

const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.json': 'application/json', '.svg': 'image/svg+xml', '.wasm': 'application/wasm' };

/** Serves the files of `folder` (a URL) and says at which address; each request is noted in `asked`. */
export async function serve(folder) {
  const asked = [];
  const server = createServer(async (request, response) => {
    const path = new URL(request.url, 'http://host').pathname;
    asked.push(path);
    try {
      const file = path === '/' ? 'index.html' : path.slice(1);
      const body = await readFile(new URL(file, folder));
      response.writeHead(200, { 'Content-Type': TYPES[extname(file)] ?? 'text/plain' }).end(body);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { address: `http://127.0.0.1:${server.address().port}/`, asked, close: () => server.close() };
}
