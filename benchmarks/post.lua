-- wrk's side: POST one body from a file, with headers (name, value, name, value …), again and again, and say at the end how it went, as one line of JSON.

function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  for at = 2, #args, 2 do
    wrk.headers[args[at]] = args[at + 1]
  end
  file:close()
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, '
      .. '"connect_errors": %d, "read_errors": %d, "write_errors": %d, "timeouts": %d, "bad_answers": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect, errors.read, errors.write, errors.timeout, errors.status))
end
