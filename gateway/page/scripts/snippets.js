// The same call for programs: each language is a function of one request, null where it has no words for it.

const quoted = text => "'" + text.replaceAll("'", "'\"'\"'") + "'";
const literal = text => JSON.stringify(text);
const hasKey = () => Boolean(sessionStorage.getItem(KEY));
const urlOf = sample => location.origin + base.slice(0, -1) + sample.path;
const grpcAt = () => `${location.hostname}:${live?.grpc_port ?? 8001}`;

function parsed(body) {
  try { return JSON.parse(body); } catch { return null; }
}

function headersOf(sample) {
  return {"Content-Type": sample.content_type || "application/json", ...(hasKey() ? {Authorization: "Bearer $KEY"} : {})};
}

function curl(sample, body) {
  const typed = sample.content_type ? ` -H ${quoted("Content-Type: " + sample.content_type)}` : "";
  return `curl -s${sample.streams ? "N" : ""} ${quoted(urlOf(sample))}${hasKey() ? ' -H "Authorization: Bearer $KEY"' : ""}${typed} -d ${quoted(body)}`;
}

/** JSON as Python has it. */
function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, each]) => `${literal(key)}: ${python(each)}`).join(", ")}}`;
  return JSON.stringify(value);
}

function requests(sample, body) {
  const document = parsed(body), key = hasKey() ? ', headers={"Authorization": f"Bearer {os.environ[\'KEY\']}"}' : "";
  const given = document === null ? `data=${literal(body)}` : `json=${python(document)}`, imports = `import ${hasKey() ? "os\n\nimport " : ""}requests\n\n`;
  if (!sample.streams) return `${imports}answer = requests.post(${literal(urlOf(sample))}, ${given}${key})\nanswer.raise_for_status()\nprint(answer.json())\n`;
  return `${imports}with requests.post(${literal(urlOf(sample))}, ${given}${key}, stream=True) as answer:\n    answer.raise_for_status()\n    for line in answer.iter_lines():\n        print(line.decode())\n`;
}

const NUMPY = {BOOL: "bool_", INT8: "int8", INT16: "int16", INT32: "int32", INT64: "int64", UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64", FP16: "float16", FP32: "float32", FP64: "float64", BYTES: "object_"};
const modelOf = sample => decodeURIComponent(sample.path.split("/")[3] || "");

function tritonclient(sample, body) {
  const document = parsed(body);
  if (sample.kind !== "infer" || !document?.inputs?.every?.(each => NUMPY[each.datatype])) return null;
  const lines = document.inputs.map((each, index) => {
    const array = `np.array(${python(each.data)}, np.${NUMPY[each.datatype]}).reshape(${python(each.shape)})`;
    return `inputs.append(grpc.InferInput(${literal(each.name)}, ${python(each.shape)}, ${literal(each.datatype)}))\ninputs[${index}].set_data_from_numpy(${array})\n`;
  });
  const sequence = document.parameters?.sequence_id ? ', sequence_id=1, sequence_start=True, sequence_end=True' : "";
  const key = hasKey() ? ", headers={\"authorization\": f\"Bearer {os.environ['KEY']}\"}" : "";
  return `${hasKey() ? "import os\n\n" : ""}import numpy as np\nimport tritonclient.grpc as grpc  # tritonclient.http has the same names\n\nclient = grpc.InferenceServerClient(${literal(grpcAt())})\ninputs = []\n${lines.join("")}answer = client.infer(${literal(modelOf(sample))}, inputs${sequence}${key})\nfor output in answer.get_response().outputs:\n    print(output.name, answer.as_numpy(output.name))\n`;
}

/** The inputs of a predict by their names, whichever of its formats the body has; null where it has none. */
function columns(document, model) {
  const rows = document.instances, isObject = value => value !== null && typeof value === "object" && !Array.isArray(value);
  if (isObject(document.inputs)) return document.inputs;
  if (rows && isObject(rows[0])) return Object.fromEntries(Object.keys(rows[0]).map(input => [input, rows.map(row => row[input])]));
  return model.inputs.length === 1 ? {[model.inputs[0].name]: rows ?? document.inputs} : null;
}

function tensorflowServing(sample, body, model) {
  const document = parsed(body), name = modelOf(sample).split(":")[0], verb = sample.kind;
  if (!sample.path.startsWith("/v1/") || !document) return null;
  const key = hasKey() ? ", metadata=[(\"authorization\", f\"Bearer {os.environ['KEY']}\")]" : "", imports = hasKey() ? "import os\n\n" : "";
  const signature = document.signature_name ? `request.model_spec.signature_name = ${literal(document.signature_name)}\n` : "";
  const channel = `stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(${literal(grpcAt())}))\n`;
  if (verb === "classify" || verb === "regress") {
    const kind = verb === "classify" ? "Classification" : "Regression", file = verb === "classify" ? "classification" : "regression";
    const examples = document.examples.map(example => `example = request.input.example_list.examples.add()\n` + Object.entries(example).map(([feature, value]) => {
      const values = [].concat(value), list = values.every(each => typeof each === "number") ? (model.inputs.some(input => input.datatype.startsWith("FP")) ? "float_list" : "int64_list") : "bytes_list";
      const given = list === "bytes_list" ? `[${values.map(each => literal(String(each)) + ".encode()").join(", ")}]` : python(values);
      return `example.features.feature[${literal(feature)}].${list}.value.extend(${given})\n`;
    }).join("")).join("");
    return `${imports}import grpc\nfrom tensorflow_serving.apis import ${file}_pb2, prediction_service_pb2_grpc\n\n${channel}request = ${file}_pb2.${kind}Request()\nrequest.model_spec.name = ${literal(name)}\n${signature}${examples}print(stub.${verb === "classify" ? "Classify" : "Regress"}(request, 10${key}))\n`;
  }
  if (verb !== "predict") return null;
  const named = columns(document, model);
  if (!named) return null;
  const inputs = Object.entries(named).map(([input, values]) => {
    const datatype = model.inputs.find(each => each.name === input)?.datatype;
    return `request.inputs[${literal(input)}].CopyFrom(tf.make_tensor_proto(np.array(${python(values)}, np.${NUMPY[datatype] || "float32"})))\n`;
  });
  return `${imports}import grpc\nimport numpy as np\nimport tensorflow as tf\nfrom tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc\n\n${channel}request = predict_pb2.PredictRequest()\nrequest.model_spec.name = ${literal(name)}\n${signature}${inputs.join("")}print(stub.Predict(request, 10${key}))\n`;
}

function javascript(sample, body) {
  const headers = JSON.stringify(headersOf(sample)).replace('"Bearer $KEY"', "`Bearer ${process.env.KEY}`");
  const call = `const answer = await fetch(${literal(urlOf(sample))}, {\n  method: "POST",\n  headers: ${headers},\n  body: ${literal(body)},\n});\nif (!answer.ok) throw new Error(await answer.text());\n`;
  return sample.streams ? `${call}for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) console.log(piece);\n` : `${call}console.log(await answer.text());\n`;
}

function go(sample, body) {
  const headers = Object.entries(headersOf(sample)).map(([name, value]) => `\trequest.Header.Set(${literal(name)}, ${value === "Bearer $KEY" ? '"Bearer "+os.Getenv("KEY")' : literal(value)})\n`).join("");
  return `package main\n\nimport (\n\t"io"\n\t"log"\n\t"net/http"\n\t"os"\n\t"strings"\n)\n\nfunc main() {\n\trequest, err := http.NewRequest("POST", ${literal(urlOf(sample))}, strings.NewReader(${literal(body)}))\n\tif err != nil {\n\t\tlog.Fatal(err)\n\t}\n${headers}\tanswer, err := http.DefaultClient.Do(request)\n\tif err != nil {\n\t\tlog.Fatal(err)\n\t}\n\tdefer answer.Body.Close()\n\tio.Copy(os.Stdout, answer.Body)\n}\n`;
}

const CONTENTS = {BOOL: "bool_contents", INT8: "int_contents", INT16: "int_contents", INT32: "int_contents", INT64: "int64_contents", UINT8: "uint_contents", UINT16: "uint_contents", UINT32: "uint_contents", UINT64: "uint64_contents", FP32: "fp32_contents", FP64: "fp64_contents", BYTES: "bytes_contents"};
const TENSOR_FIELDS = {BOOL: ["DT_BOOL", "bool_val"], INT8: ["DT_INT8", "int_val"], INT16: ["DT_INT16", "int_val"], INT32: ["DT_INT32", "int_val"], INT64: ["DT_INT64", "int64_val"], UINT8: ["DT_UINT8", "int_val"], UINT16: ["DT_UINT16", "int_val"], UINT32: ["DT_UINT32", "uint32_val"], UINT64: ["DT_UINT64", "uint64_val"], FP32: ["DT_FLOAT", "float_val"], FP64: ["DT_DOUBLE", "double_val"], BYTES: ["DT_STRING", "string_val"]};
const shapeOf = value => Array.isArray(value) ? [value.length, ...shapeOf(value[0])] : [];
const base64 = text => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

function predictCall(sample, document, model) {
  const named = columns(document, model), inputs = {};
  for (const [input, values] of Object.entries(named ?? {})) {
    const [dtype, field] = TENSOR_FIELDS[model.inputs.find(each => each.name === input)?.datatype] ?? [];
    if (!dtype) return null;
    const flat = [values].flat(Infinity).map(each => dtype !== "DT_STRING" ? each : typeof each === "string" ? base64(each) : each.b64);
    inputs[input] = {dtype, tensor_shape: {dim: shapeOf(values).map(size => ({size}))}, [field]: flat};
  }
  return named && ["tensorflow.serving.PredictionService/Predict", {model_spec: {name: modelOf(sample).split(":")[0]}, inputs}];
}

/** Messages of gRPC as JSON; the server's reflection tells grpcurl and grpcio what they are made of. */
function grpcCall(sample, body, model) {
  const document = parsed(body);
  if (!document) return null;
  if (sample.path.startsWith("/v1/")) return sample.kind === "predict" ? predictCall(sample, document, model) : null;
  if (sample.path.startsWith("/grps/")) {
    const model = new URLSearchParams(sample.path.split("?")[1]).get("model");
    if (document.ndarray) return null;
    return [sample.streams ? "grps.protos.v1.GrpsService/PredictStreaming" : "grps.protos.v1.GrpsService/Predict", {model, ...document}];
  }
  if (sample.kind !== "infer" || !document.inputs?.every?.(each => CONTENTS[each.datatype])) return null;
  const inputs = document.inputs.map(({name, datatype, shape, data}) => ({name, datatype, shape, contents: {[CONTENTS[datatype]]: [data].flat(Infinity).map(each => datatype === "BYTES" ? base64(each) : each)}}));
  const sequence = document.parameters?.sequence_id ? {parameters: {sequence_id: {int64_param: 1}, sequence_start: {bool_param: true}, sequence_end: {bool_param: true}}} : {};
  return ["inference.GRPCInferenceService/ModelInfer", {model_name: modelOf(sample), ...sequence, inputs}];
}

function grpcurl(sample, body, model) {
  const call = grpcCall(sample, body, model);
  if (!call) return null;
  return `grpcurl -plaintext${hasKey() ? ' -H "authorization: Bearer $KEY"' : ""} -d ${quoted(JSON.stringify(call[1]))} ${grpcAt()} ${call[0]}`;
}

function grpcio(sample, body, model) {
  const call = grpcCall(sample, body, model);
  if (!call) return null;
  const [address, message] = call, [service, method] = address.split("/"), key = hasKey() ? ", metadata=[(\"authorization\", f\"Bearer {os.environ['KEY']}\")]" : "";
  const told = sample.streams ? `for answer in call(request${key}):\n    print(answer)\n` : `print(call(request${key}))\n`;
  return `# grpcio, grpcio-reflection\n${hasKey() ? "import os\n\n" : ""}import grpc\nfrom google.protobuf import json_format\nfrom google.protobuf.descriptor_pool import DescriptorPool\nfrom google.protobuf.message_factory import GetMessageClass\nfrom grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase\n\nchannel = grpc.insecure_channel(${literal(grpcAt())})\npool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))\nmethod = pool.FindServiceByName(${literal(service)}).FindMethodByName(${literal(method)})\nrequest = json_format.ParseDict(${python(message)}, GetMessageClass(method.input_type)())\ncall = channel.${sample.streams ? "unary_stream" : "unary_unary"}(\n    ${literal("/" + address)},\n    request_serializer=lambda message: message.SerializeToString(),\n    response_deserializer=GetMessageClass(method.output_type).FromString,\n)\n${told}`;
}

const SNIPPETS = [["curl", curl], ["requests", requests], ["tritonclient", tritonclient], ["tensorflow-serving-api", tensorflowServing], ["grpcio", grpcio], ["JavaScript", javascript], ["Go", go], ["grpcurl", grpcurl]];
