// grpc-js as a client: asks the server at argv[2] everything that it may, and checks what it answers. argv[3]: the root of
// the protocol's files.
"use strict";
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const http2 = require("http2");

const [address, root] = process.argv.slice(2);
const definition = loader.loadSync(root + "/proto/inference/grpc_service.proto", {includeDirs: [root], keepCase: true, longs: String, defaults: true});
const Service = grpc.loadPackageDefinition(definition).inference.GRPCInferenceService;
const large = {"grpc.max_receive_message_length": -1};

const client = (options) => new Service(address, grpc.credentials.createInsecure(), {...large, ...options});
const unary = (c, method, message, options) => new Promise((resolve, reject) =>
  c[method](message, new grpc.Metadata(), {deadline: Date.now() + 15000, ...options}, (error, answer) => error ? reject(error) : resolve(answer)));

function request(values) {
  const raw = Buffer.from(Int32Array.from(values).buffer);
  return {model_name: "identity", id: "n" + values.length, inputs: [{name: "INPUT0", datatype: "INT32", shape: [values.length]}], raw_input_contents: [raw]};
}

function repeated(values, wait) {
  const m = request(values), n = values.length;
  m.model_name = "repeat";
  m.inputs = [["IN", "INT32", n], ["DELAY", "UINT32", n], ["WAIT", "UINT32", 1]].map(([name, datatype, k]) => ({name, datatype, shape: [k]}));
  m.raw_input_contents.push(Buffer.alloc(4 * n), Buffer.from(Uint32Array.of(wait).buffer));
  return m;
}

function must(ok, text) {
  if (!ok) throw new Error(text);
}

async function echo(c, n) {
  const m = request(Array.from({length: n}, (_, i) => i * 77 | 0));
  const got = await unary(c, "ModelInfer", m);
  must(got.id === m.id && Buffer.compare(got.raw_output_contents[0], m.raw_input_contents[0]) === 0, n + " values came back as others");
}

async function refused(promise, code, text) {
  const error = await promise.then(() => null, (e) => e);
  must(error && error.code === code && error.details.includes(text), `want ${code} ${text}, got ${error}`);
}

const checks = {
  async metadata(c) {
    const s = await unary(c, "ServerMetadata", {});
    must(s.name === "triton" && s.extensions.length > 0, JSON.stringify(s));
  },
  async sizes(c) {
    for (let n = 1; n <= 3 << 20; n *= 7) await echo(c, n);
  },
  async "many at once"(c) {
    await Promise.all(Array.from({length: 200}, (_, i) => echo(c, i + 1)));
  },
  async errors(c) {
    await refused(unary(c, "ModelInfer", {...request([1]), model_name: "none"}), grpc.status.NOT_FOUND, "'none'");
    const m = request([1]);
    m.inputs[0].name = "ünbekannt %";
    await refused(unary(c, "ModelInfer", m), grpc.status.INVALID_ARGUMENT, "ünbekannt %");
  },
  async stream(c) {
    const st = c.ModelStreamInfer();
    st.write(repeated([5, 6, 7], 0));
    st.end();
    const got = [];
    for await (const m of st) {
      must(m.error_message === "", m.error_message);
      got.push(m.infer_response.raw_output_contents[0].readInt32LE(0));
    }
    must(got.join() === "5,6,7", "got " + got);
  },
  async deadline(c) {
    const st = c.ModelStreamInfer(new grpc.Metadata(), {deadline: Date.now() + 100});
    st.on("data", () => {});
    const ended = new Promise((resolve) => st.on("error", resolve));
    st.write(repeated([1, 2], 5000));
    // grpc-go resets the stream when the time is up, which grpc-js calls CANCELLED where it hears of it before its own clock.
    must([grpc.status.DEADLINE_EXCEEDED, grpc.status.CANCELLED].includes((await ended).code), String(await ended));
  },
  async cancel(c) {
    const st = c.ModelStreamInfer();
    st.on("data", () => {});
    const ended = new Promise((resolve) => st.on("error", resolve));
    st.write(repeated([1, 2], 5000));
    setImmediate(() => st.cancel());
    must((await ended).code === grpc.status.CANCELLED, String(await ended));
  },
  // HTTP/2 by itself (nghttp2): a client that makes the header table smaller must be told so by the next header block.
  async "small header table"() {
    const session = http2.connect("http://" + address, {settings: {headerTableSize: 0}});
    for (let i = 0; i < 2; i++) {
      const st = session.request({":method": "POST", ":path": "/inference.GRPCInferenceService/ServerLive", "content-type": "application/grpc", te: "trailers"});
      const status = new Promise((resolve, reject) => {
        st.on("trailers", (t) => resolve(t["grpc-status"]));
        st.on("error", reject);
        session.on("error", reject);
      });
      st.resume();
      st.end(Buffer.alloc(5));
      must(await status === "0", "status " + await status);
    }
    await new Promise((resolve) => session.close(resolve));
  },
  async deflate() {
    const c = client({"grpc.default_compression_algorithm": 1});
    for (const n of [1, 5000, 500000]) await echo(c, n);
    c.close();
  },
  async gzip() {
    const c = client({"grpc.default_compression_algorithm": 2});
    for (const n of [1, 5000, 500000]) await echo(c, n);
    c.close();
  },
};

(async () => {
  const c = client();
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check(c);
      console.log("ok " + name);
    } catch (e) {
      console.error(name + ": " + e.message);
      process.exitCode = 1;
    }
  }
  c.close();
})();
