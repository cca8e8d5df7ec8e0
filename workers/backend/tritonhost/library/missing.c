// Functions of the interface that this library does not have. Each returns the error UNSUPPORTED with its own name, whatever
// its arguments are, so that no symbol is missing: the caller reads and deletes the error as any other. Those that configure
// a server (TRITONSERVER_ServerOptions…) are not here, as no backend starts one.
#include "abi.h"

#pragma GCC visibility push(default)

#define MISSING(name)                                                                                              \
  TRITONSERVER_Error *name(void);                                                                                  \
  TRITONSERVER_Error *name(void) {                                                                                 \
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, #name " is not implemented by this server");       \
  }

MISSING(TRITONBACKEND_InferenceResponseOutput)
MISSING(TRITONBACKEND_InferenceResponseOutputByName)
MISSING(TRITONSERVER_GetMetricKind)
MISSING(TRITONSERVER_InferenceRequestAddRawInput)
MISSING(TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes)
MISSING(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy)
MISSING(TRITONSERVER_InferenceRequestCorrelationId)
MISSING(TRITONSERVER_InferenceRequestCorrelationIdString)
MISSING(TRITONSERVER_InferenceRequestFlags)
MISSING(TRITONSERVER_InferenceRequestId)
MISSING(TRITONSERVER_InferenceRequestIsCancelled)
MISSING(TRITONSERVER_InferenceRequestPriority)
MISSING(TRITONSERVER_InferenceRequestPriorityUInt64)
MISSING(TRITONSERVER_InferenceRequestRemoveAllInputData)
MISSING(TRITONSERVER_InferenceRequestRemoveAllInputs)
MISSING(TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs)
MISSING(TRITONSERVER_InferenceRequestRemoveInput)
MISSING(TRITONSERVER_InferenceRequestRemoveRequestedOutput)
MISSING(TRITONSERVER_InferenceRequestTimeoutMicroseconds)
MISSING(TRITONSERVER_InferenceResponseId)
MISSING(TRITONSERVER_InferenceResponseModel)
MISSING(TRITONSERVER_InferenceResponseOutputClassificationLabel)
MISSING(TRITONSERVER_InferenceTraceContext)
MISSING(TRITONSERVER_InferenceTraceDelete)
MISSING(TRITONSERVER_InferenceTraceId)
MISSING(TRITONSERVER_InferenceTraceModelName)
MISSING(TRITONSERVER_InferenceTraceModelVersion)
MISSING(TRITONSERVER_InferenceTraceNew)
MISSING(TRITONSERVER_InferenceTraceParentId)
MISSING(TRITONSERVER_InferenceTraceRequestId)
MISSING(TRITONSERVER_InferenceTraceSetContext)
MISSING(TRITONSERVER_InferenceTraceSpawnChildTrace)
MISSING(TRITONSERVER_InferenceTraceTensorNew)
MISSING(TRITONSERVER_MetricsDelete)
MISSING(TRITONSERVER_MetricsFormatted)
MISSING(TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction)
MISSING(TRITONSERVER_ServerDelete)
MISSING(TRITONSERVER_ServerIsLive)
MISSING(TRITONSERVER_ServerIsReady)
MISSING(TRITONSERVER_ServerMetadata)
MISSING(TRITONSERVER_ServerMetrics)
MISSING(TRITONSERVER_ServerModelBatchProperties)
MISSING(TRITONSERVER_ServerModelConfig)
MISSING(TRITONSERVER_ServerModelIndex)
MISSING(TRITONSERVER_ServerModelMetadata)
MISSING(TRITONSERVER_ServerModelStatistics)
MISSING(TRITONSERVER_ServerNew)
MISSING(TRITONSERVER_ServerPollModelRepository)
MISSING(TRITONSERVER_ServerRegisterModelRepository)
MISSING(TRITONSERVER_ServerSetExitTimeout)
MISSING(TRITONSERVER_ServerStop)
MISSING(TRITONSERVER_ServerUnregisterModelRepository)

const char *TRITONSERVER_InferenceTraceActivityString(int);
const char *TRITONSERVER_InferenceTraceActivityString(int value) {
  (void)value;
  return "<unknown>";
}

const char *TRITONSERVER_InferenceTraceLevelString(int);
const char *TRITONSERVER_InferenceTraceLevelString(int value) {
  (void)value;
  return "<unknown>";
}
