// What users of @grpc/grpc-js do, whose HTTP/2 is Node's own (nghttp2):
//
//     node calls.js ADDRESS PROTO_FOLDER
//
// Prints {name of a check: null, or what went wrong} as its last line. Messages are built from the proto files at run
// time, as Node's users do it.

const assert = require("node:assert/strict");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, folder] = process.argv.slice(2);
const FILES = ["open_inference.proto", "tensorflow_serving.proto", "grps.proto"];
const loaded = loader.loadSync(FILES, { includeDirs: [folder], keepCase: true, longs: Number, enums: String });
const root = grpc.loadPackageDefinition(loaded);
const unlimited = { "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 };
const insecure = grpc.credentials.createInsecure();

const connect = (service, options) => new service(address, insecure, { ...unlimited, ...options });
const triton = (options) => connect(root.inference.GRPCInferenceService, options);
const tensorflow = () => connect(root.tensorflow.serving.PredictionService);
const grps = () => connect(root.grps.protos.v1.GrpsService);

// A unary call as a promise; `error` is what the client got.
const ask = (client, method, message, metadata = new grpc.Metadata(), options = {}) =>
  new Promise((done, fail) => {
    client[method](message, metadata, options, (error, answer) => (error ? fail(error) : done(answer)));
  });

// All that comes over a stream until it ends.
const read = (call) =>
  new Promise((done, fail) => {
    const answers = [];
    call.on("data", (answer) => answers.push(answer)).on("end", () => done(answers)).on("error", fail);
  });

const fails = async (promise, code) => {
  const error = await promise.then(() => assert.fail("it was answered"), (failure) => failure);
  assert.equal(error.code, code, error.message);
  return error;
};

const floats = (numbers) => Buffer.from(new Float32Array(numbers).buffer);
const half = (numbers, id = "") => ({
  model_name: "half_plus_two",
  id,
  inputs: [{ name: "x", datatype: "FP32", shape: [numbers.length] }],
  raw_input_contents: [floats(numbers)],
});
const start = (number) => ({
  model_name: "countdown",
  inputs: [{ name: "start", datatype: "INT32", shape: [1], contents: { int_contents: [number] } }],
});
const numbers = (answer) => {
  const raw = answer.raw_output_contents[0];
  return [...new Float32Array(raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.length))];
};

const checks = {
  async a_call() {
    const answer = await ask(triton(), "ModelInfer", half([1, 2, 5], "mine"));
    assert.deepEqual([answer.id, answer.model_name, numbers(answer)], ["mine", "half_plus_two", [2.5, 3, 4.5]]);
  },

  async calls_side_by_side() {
    const client = triton();
    const wanted = Array.from({ length: 500 }, (_, n) => n);
    const answers = await Promise.all(wanted.map((n) => ask(client, "ModelInfer", half([n]))));
    assert.deepEqual(answers.map((answer) => numbers(answer)[0]), wanted.map((n) => n / 2 + 2));
  },

  async a_large_tensor() {
    const values = Array.from({ length: 3_000_000 }, (_, n) => n % 1000);
    const answer = numbers(await ask(triton(), "ModelInfer", half(values)));
    assert.equal(answer.length, values.length);
    assert.ok(answer.every((value, n) => value === values[n] / 2 + 2));
  },

  async a_compressed_tensor() {
    for (const algorithm of [1, 2]) {
      const client = triton({ "grpc.default_compression_algorithm": algorithm });
      assert.equal(numbers(await ask(client, "ModelInfer", half(new Array(50_000).fill(3))))[49_999], 3.5);
    }
  },

  async errors_and_their_texts() {
    const client = triton();
    const unknown = await fails(ask(client, "ModelInfer", { ...half([1]), model_name: "nobody ☃ 100%" }), grpc.status.NOT_FOUND);
    assert.match(unknown.details, /nobody ☃ 100%/);
    await fails(ask(client, "ModelInfer", { ...half([1]), inputs: [] }), grpc.status.INVALID_ARGUMENT);
    assert.equal(numbers(await ask(client, "ModelInfer", half([2])))[0], 3);
  },

  async metadata_both_ways() {
    const metadata = new grpc.Metadata();
    metadata.set("x-request-id", "node-1");
    metadata.set("x-bin", Buffer.from([0, 255, 128]));
    const told = await new Promise((done, fail) => {
      triton()
        .ModelInfer(half([1]), metadata, (error) => error && fail(error))
        .on("status", (status) => done(status.metadata.get("x-request-id")));
    });
    assert.deepEqual(told, ["node-1"]);
  },

  async a_conversation() {
    const call = triton().ModelStreamInfer();
    const answers = read(call);
    for (let n = 0; n < 100; n += 1) call.write(half([n], String(n)));
    call.end();
    const told = (await answers).map((answer) => [answer.infer_response.id, numbers(answer.infer_response)[0]]);
    assert.deepEqual(told, Array.from({ length: 100 }, (_, n) => [String(n), n / 2 + 2]));
  },

  async many_answers_to_one_question() {
    const call = triton().ModelStreamInfer();
    const answers = read(call);
    call.write(start(4));
    call.end();
    const counts = (await answers)
      .filter((answer) => answer.infer_response.raw_output_contents.length)
      .map((answer) => answer.infer_response.raw_output_contents[0].readInt32LE());
    assert.deepEqual(counts, [4, 3, 2, 1, 0]);
  },

  async a_conversation_that_is_left() {
    const client = triton();
    const call = client.ModelStreamInfer();
    const first = new Promise((done) => call.once("data", done));
    const failed = new Promise((done) => call.once("error", done));
    call.write(start(1000));
    await first;
    call.cancel();
    assert.equal((await failed).code, grpc.status.CANCELLED);
    assert.equal(numbers(await ask(client, "ModelInfer", half([2])))[0], 3);
  },

  async a_deadline() {
    const call = triton().ModelStreamInfer({ deadline: Date.now() + 300 });
    const answers = read(call);
    call.write(start(1000));
    await fails(answers, grpc.status.DEADLINE_EXCEEDED);
    await fails(ask(triton(), "ModelInfer", half([1]), undefined, { deadline: Date.now() - 1 }), grpc.status.DEADLINE_EXCEEDED);
  },

  async an_unknown_method() {
    const client = new grpc.Client(address, insecure);
    const bytes = (buffer) => buffer;
    await fails(
      new Promise((done, fail) => {
        client.makeUnaryRequest("/no.Such/Method", bytes, bytes, Buffer.alloc(0), (error, answer) => (error ? fail(error) : done(answer)));
      }),
      grpc.status.UNIMPLEMENTED,
    );
    const health = await new Promise((done, fail) => {
      client.makeUnaryRequest("/grpc.health.v1.Health/Check", bytes, bytes, Buffer.alloc(0), (error, answer) => (error ? fail(error) : done(answer)));
    });
    assert.deepEqual([...health], [8, 1]);
  },

  async tensorflow_serving_s_predict() {
    const request = {
      model_spec: { name: "half_plus_two", signature_name: "serving_default" },
      inputs: { x: { dtype: "DT_FLOAT", tensor_shape: { dim: [{ size: 3 }] }, float_val: [1, 2, 5] } },
    };
    const answer = await ask(tensorflow(), "Predict", request);
    const told = answer.outputs.y;
    assert.deepEqual(told.float_val.length ? told.float_val : [...new Float32Array(new Uint8Array(told.tensor_content).buffer)], [2.5, 3, 4.5]);
    request.model_spec.name = "nobody";
    await fails(ask(tensorflow(), "Predict", request), grpc.status.NOT_FOUND);
  },

  async grps_s_stream() {
    const tensor = { name: "start", dtype: "DT_INT32", shape: [1], flat_int32: [3] };
    const answers = await read(grps().PredictStreaming({ model: "countdown-1", gtensors: { tensors: [tensor] } }));
    const counts = answers.flatMap((answer) => (answer.gtensors?.tensors ?? []).flatMap((each) => each.flat_int32));
    assert.deepEqual(counts, [3, 2, 1, 0], JSON.stringify(answers));
  },
};

(async () => {
  const outcomes = {};
  for (const [name, check] of Object.entries(checks)) {
    outcomes[name] = await check().then(() => null, (error) => error.stack);
  }
  console.log(JSON.stringify(outcomes));
  process.exit(0);
})();
