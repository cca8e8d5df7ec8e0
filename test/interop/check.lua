-- wrk's script: infers, and counts answers that are not what was asked. Each thread has its own counts.
local threads = {}

function setup(thread) table.insert(threads, thread) end

function init(args)
  good, bad = 0, 0
  wrk.method = "POST"
  wrk.path = "/v2/models/identity/infer"
  wrk.headers["Content-Type"] = "application/json"
  wrk.body = '{"id":"w","inputs":[{"name":"INPUT0","shape":[5],"datatype":"INT32","data":[-2147483648,-1,0,7,2147483647]}]}'
end

function response(status, headers, body)
  if status == 200 and body:find('"id":"w"', 1, true) and body:find('"data":[-2147483648,-1,0,7,2147483647]', 1, true) then
    good = good + 1
  else
    bad = bad + 1
  end
end

function done(summary, latency, requests)
  local right, wrong = 0, 0
  for _, t in ipairs(threads) do right, wrong = right + t:get("good"), wrong + t:get("bad") end
  local e = summary.errors
  print(string.format("RIGHT %d WRONG %d ERRORS %d", right, wrong, e.connect + e.read + e.write + e.timeout))
end
