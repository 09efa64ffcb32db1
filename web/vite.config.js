// Three files with fixed names, so that the binary can embed them: index.html (from public/), page.js, page.css.
export default {
  build: {
    target: 'es2022',
    outDir: 'dist',
    emptyOutDir: true,
    lib: { entry: 'src/main.ts', formats: ['iife'], name: 'railnet', fileName: () => 'page.js', cssFileName: 'page' },
  },
};
