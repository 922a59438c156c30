// Builds the page into `cli/web/dist`, with names that stay: the command has its files by these names.
import { readdirSync, readFileSync } from 'node:fs';
import { defineConfig, type Plugin } from 'vite';

const CONFIGS = new URL('../../../tests/fixtures/configs/', import.meta.url);

/** The configs of the zoo, by the names that models have: one file, which the page loads when it opens. */
function zoo(): Plugin {
  return {
    name: 'zoo',
    generateBundle() {
      const files = readdirSync(CONFIGS).filter((file) => file.endsWith('.json')).sort();
      const entries = files.map((file) => [
        file.slice(0, -'.json'.length).replace('__', '/'),
        readFileSync(new URL(file, CONFIGS), 'utf8'),
      ]);
      this.emitFile({ type: 'asset', fileName: 'zoo.json', source: JSON.stringify(Object.fromEntries(entries)) });
    },
  };
}

const names = {
  entryFileNames: 'app.js',
  chunkFileNames: '[name].js',
  assetFileNames: (asset: { names: string[] }) => (asset.names.some((name) => name.endsWith('.css')) ? 'app.css' : '[name][extname]'),
};

export default defineConfig({
  base: './',
  plugins: [zoo()],
  // What is not bundled, the WebAssembly, is put there by `cargo xtask web`.
  build: {
    outDir: '../dist',
    emptyOutDir: false,
    target: 'es2022',
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: { output: names },
  },
  worker: { format: 'es', rollupOptions: { output: { ...names, entryFileNames: 'worker.js' } } },
});
