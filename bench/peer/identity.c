// A backend of the original whose models answer with what they were sent: what the original's own path costs, with nothing
// of a framework or of another process in it. It has one input and one output of a like shape and datatype; a batch is
// answered request by request, each with one copy. scripts/peer.sh builds it for tritonserver 2.51 and lays it beside the
// Python backend; bench/transports.py --original measures it.
#include "backend.h"

// answer writes the output of one request; rows is its batch dimension.
static Error *answer(Request *request, Response *response, uint64_t *rows) {
  Input *input = NULL;
  const int64_t *shape = NULL;
  uint32_t dims = 0, buffers = 0;
  uint64_t bytes = 0;
  int datatype = 0;
  void *to = NULL;
  Error *error = TRITONBACKEND_RequestInputByIndex(request, 0, &input);
  if (error == NULL) error = TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &dims, &bytes, &buffers);
  if (error != NULL) return error;
  *rows = dims > 0 ? (uint64_t)shape[0] : 1;
  error = output(request, response, datatype, shape, dims, bytes, &to);
  if (error != NULL || to == NULL) return error;
  return copy(input, buffers, to, bytes);
}

// TRITONBACKEND_ModelInstanceExecute answers and releases every request of a batch; the server calls it, for one instance
// from one thread at a time. Of each request is reported when the batch began and the time of its own copy.
Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
  uint64_t begin = now(), at = begin, sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    Response *response = NULL;
    uint64_t rows = 1;
    Error *error = TRITONBACKEND_ResponseNew(&response, requests[i]);
    if (error == NULL) error = answer(requests[i], response, &rows);
    uint64_t copied = now();
    bool good = error == NULL;
    if (response != NULL) drop(TRITONBACKEND_ResponseSend(response, COMPLETE_FINAL, error));
    drop(error);
    drop(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], good, begin, at, copied, copied));
    drop(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
    at = copied;
    sum += rows;
  }
  drop(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, sum, begin, begin, at, at));
  return NULL;
}
