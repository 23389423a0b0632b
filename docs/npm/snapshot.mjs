// Python's memory once it has started, so that the playground need not start it anew: a tenth of the time
// (guide/assets.py). Holds Pyodide alone, nothing of kb: it changes when Pyodide does.
import { writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const target = process.argv[2];
process.argv[1] = "python"; // Python keeps the name of the program; this machine's folders are nobody's business
const { loadPyodide } = await import("pyodide");
const python = await loadPyodide({ _makeSnapshot: true });
const snapshot = gzipSync(python.makeMemorySnapshot(), { level: 9 });
snapshot[9] = 255; // which system packed it
writeFileSync(target, snapshot);
