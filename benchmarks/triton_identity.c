// A backend of Triton's that answers y = x: one copy of the bytes, and nothing of a model's own beside it. Built by
// triton.py; what it calls is Triton's C interface for backends, version 1, of which these are all the declarations.

#include <stdint.h>
#include <string.h>

typedef void Error;
extern Error *TRITONBACKEND_RequestInputByIndex(void *request, uint32_t index, void **input);
extern Error *TRITONBACKEND_InputProperties(void *input, const char **name, int *datatype, const int64_t **shape,
                                            uint32_t *dims, uint64_t *bytes, uint32_t *buffers);
extern Error *TRITONBACKEND_InputBuffer(void *input, uint32_t index, const void **buffer, uint64_t *bytes,
                                        int *memory, int64_t *device);
extern Error *TRITONBACKEND_ResponseNew(void **response, void *request);
extern Error *TRITONBACKEND_ResponseOutput(void *response, void **output, const char *name, int datatype,
                                           const int64_t *shape, uint32_t dims);
extern Error *TRITONBACKEND_OutputBuffer(void *output, void **buffer, uint64_t bytes, int *memory, int64_t *device);
extern Error *TRITONBACKEND_ResponseSend(void *response, uint32_t flags, Error *error);
extern Error *TRITONBACKEND_RequestRelease(void *request, uint32_t flags);

enum { FINAL = 1, ALL = 1 };

static Error *answer(void *request, void *response) {
  void *input, *output, *to;
  const char *name;
  const int64_t *shape;
  int datatype, memory = 0;
  int64_t device = 0;
  uint32_t dims, buffers;
  uint64_t bytes, part;
  Error *error = TRITONBACKEND_RequestInputByIndex(request, 0, &input);
  if (!error) error = TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dims, &bytes, &buffers);
  if (!error) error = TRITONBACKEND_ResponseOutput(response, &output, "y", datatype, shape, dims);
  if (!error) error = TRITONBACKEND_OutputBuffer(output, &to, bytes, &memory, &device);
  for (uint32_t at = 0; !error && at < buffers; ++at) {
    const void *from;
    error = TRITONBACKEND_InputBuffer(input, at, &from, &part, &memory, &device);
    if (!error) {
      memcpy(to, from, part);
      to = (char *)to + part;
    }
  }
  return error;
}

__attribute__((visibility("default"))) Error *TRITONBACKEND_ModelInstanceExecute(void *instance, void **requests,
                                                                                  uint32_t count) {
  (void)instance;
  for (uint32_t at = 0; at < count; ++at) {
    void *response;
    Error *error = TRITONBACKEND_ResponseNew(&response, requests[at]);
    if (!error) TRITONBACKEND_ResponseSend(response, FINAL, answer(requests[at], response));
    TRITONBACKEND_RequestRelease(requests[at], ALL);
  }
  return 0;
}
