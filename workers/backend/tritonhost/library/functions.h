// The functions of the interface that this library has, as far as they do what they say: see docs/0026-triton-backends.md.
// Version 1.19 of TRITONBACKEND, 1.34 of TRITONSERVER. Included by abi.h, and alone behind Triton's own headers by the test
// that compares the two.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *, uint32_t *);
TRITONSERVER_Error *TRITONBACKEND_MemoryManagerAllocate(TRITONBACKEND_MemoryManager *, void **,
    TRITONSERVER_MemoryType, int64_t, uint64_t);
TRITONSERVER_Error *TRITONBACKEND_MemoryManagerFree(TRITONBACKEND_MemoryManager *, void *, TRITONSERVER_MemoryType,
    int64_t);
TRITONSERVER_Error *TRITONBACKEND_InputProperties(TRITONBACKEND_Input *, const char **, TRITONSERVER_DataType *,
    const int64_t **, uint32_t *, uint64_t *, uint32_t *);
TRITONSERVER_Error *TRITONBACKEND_InputPropertiesForHostPolicy(TRITONBACKEND_Input *, const char *, const char **,
    TRITONSERVER_DataType *, const int64_t **, uint32_t *, uint64_t *, uint32_t *);
TRITONSERVER_Error *TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *, uint32_t, const void **, uint64_t *,
    TRITONSERVER_MemoryType *, int64_t *);
TRITONSERVER_Error *TRITONBACKEND_InputBufferForHostPolicy(TRITONBACKEND_Input *, const char *, uint32_t,
    const void **, uint64_t *, TRITONSERVER_MemoryType *, int64_t *);
TRITONSERVER_Error *TRITONBACKEND_InputBufferAttributes(TRITONBACKEND_Input *, uint32_t, const void **,
    TRITONSERVER_BufferAttributes **);
TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *, void **, uint64_t, TRITONSERVER_MemoryType *,
    int64_t *);
TRITONSERVER_Error *TRITONBACKEND_OutputBufferAttributes(TRITONBACKEND_Output *, TRITONSERVER_BufferAttributes **);
TRITONSERVER_Error *TRITONBACKEND_RequestId(TRITONBACKEND_Request *, const char **);
TRITONSERVER_Error *TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request *, bool *);
TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryIsCancelled(TRITONBACKEND_ResponseFactory *, bool *);
TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationId(TRITONBACKEND_Request *, uint64_t *);
TRITONSERVER_Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(TRITONBACKEND_Request *, uint64_t *);
TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request *, const char **);
TRITONSERVER_Error *TRITONBACKEND_RequestFlags(TRITONBACKEND_Request *, uint32_t *);
TRITONSERVER_Error *TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request *, uint32_t *);
TRITONSERVER_Error *TRITONBACKEND_RequestParameter(TRITONBACKEND_Request *, uint32_t, const char **,
    TRITONSERVER_ParameterType *, const void **);
TRITONSERVER_Error *TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request *, uint32_t *);
TRITONSERVER_Error *TRITONBACKEND_RequestInputName(TRITONBACKEND_Request *, uint32_t, const char **);
TRITONSERVER_Error *TRITONBACKEND_RequestInput(TRITONBACKEND_Request *, const char *, TRITONBACKEND_Input **);
TRITONSERVER_Error *TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request *, uint32_t, TRITONBACKEND_Input **);
TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *, uint32_t *);
TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *, uint32_t, const char **);
TRITONSERVER_Error *TRITONBACKEND_RequestOutputBufferProperties(TRITONBACKEND_Request *, const char *, size_t *,
    TRITONSERVER_MemoryType *, int64_t *);
TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *, uint32_t);
TRITONSERVER_Error *TRITONBACKEND_RequestTrace(TRITONBACKEND_Request *, TRITONSERVER_InferenceTrace **);
TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryNew(TRITONBACKEND_ResponseFactory **, TRITONBACKEND_Request *);
TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory *);
TRITONSERVER_Error *TRITONBACKEND_ResponseFactorySendFlags(TRITONBACKEND_ResponseFactory *, uint32_t);
TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **, TRITONBACKEND_Request *);
TRITONSERVER_Error *TRITONBACKEND_ResponseNewFromFactory(TRITONBACKEND_Response **, TRITONBACKEND_ResponseFactory *);
TRITONSERVER_Error *TRITONBACKEND_ResponseDelete(TRITONBACKEND_Response *);
TRITONSERVER_Error *TRITONBACKEND_ResponseSetStringParameter(TRITONBACKEND_Response *, const char *, const char *);
TRITONSERVER_Error *TRITONBACKEND_ResponseSetIntParameter(TRITONBACKEND_Response *, const char *, int64_t);
TRITONSERVER_Error *TRITONBACKEND_ResponseSetBoolParameter(TRITONBACKEND_Response *, const char *, bool);
TRITONSERVER_Error *TRITONBACKEND_ResponseSetDoubleParameter(TRITONBACKEND_Response *, const char *, double);
TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *, TRITONBACKEND_Output **, const char *,
    TRITONSERVER_DataType, const int64_t *, uint32_t);
TRITONSERVER_Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *, uint32_t, TRITONSERVER_Error *);
TRITONSERVER_Error *TRITONBACKEND_StateNew(TRITONBACKEND_State **, TRITONBACKEND_Request *, const char *,
    TRITONSERVER_DataType, const int64_t *, uint32_t);
TRITONSERVER_Error *TRITONBACKEND_StateUpdate(TRITONBACKEND_State *);
TRITONSERVER_Error *TRITONBACKEND_StateBuffer(TRITONBACKEND_State *, void **, uint64_t, TRITONSERVER_MemoryType *,
    int64_t *);
TRITONSERVER_Error *TRITONBACKEND_StateBufferAttributes(TRITONBACKEND_State *, TRITONSERVER_BufferAttributes **);
TRITONSERVER_Error *TRITONBACKEND_BackendName(TRITONBACKEND_Backend *, const char **);
TRITONSERVER_Error *TRITONBACKEND_BackendConfig(TRITONBACKEND_Backend *, TRITONSERVER_Message **);
TRITONSERVER_Error *TRITONBACKEND_BackendExecutionPolicy(TRITONBACKEND_Backend *, TRITONBACKEND_ExecutionPolicy *);
TRITONSERVER_Error *TRITONBACKEND_BackendSetExecutionPolicy(TRITONBACKEND_Backend *, TRITONBACKEND_ExecutionPolicy);
TRITONSERVER_Error *TRITONBACKEND_BackendArtifacts(TRITONBACKEND_Backend *, TRITONBACKEND_ArtifactType *,
    const char **);
TRITONSERVER_Error *TRITONBACKEND_BackendMemoryManager(TRITONBACKEND_Backend *, TRITONBACKEND_MemoryManager **);
TRITONSERVER_Error *TRITONBACKEND_BackendState(TRITONBACKEND_Backend *, void **);
TRITONSERVER_Error *TRITONBACKEND_BackendSetState(TRITONBACKEND_Backend *, void *);
TRITONSERVER_Error *TRITONBACKEND_ModelName(TRITONBACKEND_Model *, const char **);
TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *, uint64_t *);
TRITONSERVER_Error *TRITONBACKEND_ModelRepository(TRITONBACKEND_Model *, TRITONBACKEND_ArtifactType *, const char **);
TRITONSERVER_Error *TRITONBACKEND_ModelConfig(TRITONBACKEND_Model *, uint32_t, TRITONSERVER_Message **);
TRITONSERVER_Error *TRITONBACKEND_ModelAutoCompleteConfig(TRITONBACKEND_Model *, bool *);
TRITONSERVER_Error *TRITONBACKEND_ModelSetConfig(TRITONBACKEND_Model *, uint32_t, TRITONSERVER_Message *);
TRITONSERVER_Error *TRITONBACKEND_ModelServer(TRITONBACKEND_Model *, TRITONSERVER_Server **);
TRITONSERVER_Error *TRITONBACKEND_ModelBackend(TRITONBACKEND_Model *, TRITONBACKEND_Backend **);
TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *, void **);
TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *, void *);
TRITONSERVER_Error *TRITONBACKEND_ModelReportMemoryUsage(TRITONBACKEND_Model *, TRITONSERVER_BufferAttributes **,
    uint32_t);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceName(TRITONBACKEND_ModelInstance *, const char **);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance *, TRITONSERVER_InstanceGroupKind *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance *, int32_t *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceHostPolicy(TRITONBACKEND_ModelInstance *, TRITONSERVER_Message **);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceIsPassive(TRITONBACKEND_ModelInstance *, bool *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceProfileCount(TRITONBACKEND_ModelInstance *, uint32_t *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceProfileName(TRITONBACKEND_ModelInstance *, uint32_t, const char **);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSecondaryDeviceCount(TRITONBACKEND_ModelInstance *, uint32_t *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(TRITONBACKEND_ModelInstance *, uint32_t,
    const char **, int64_t *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *, TRITONBACKEND_Model **);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *, void **);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *, void *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportMemoryUsage(TRITONBACKEND_ModelInstance *,
    TRITONSERVER_BufferAttributes **, uint32_t);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance *, TRITONBACKEND_Request *,
    const bool, const uint64_t, const uint64_t, const uint64_t, const uint64_t);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance *, const uint64_t,
    const uint64_t, const uint64_t, const uint64_t, const uint64_t);
TRITONSERVER_Error *TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(TRITONBACKEND_BackendAttribute *,
    const TRITONSERVER_InstanceGroupKind, const uint64_t, const uint64_t *, const uint64_t);
TRITONSERVER_Error *TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(TRITONBACKEND_BackendAttribute *, bool);

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportResponseStatistics(
    TRITONBACKEND_ModelInstanceResponseStatistics *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsNew(TRITONBACKEND_ModelInstanceResponseStatistics **);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsDelete(TRITONBACKEND_ModelInstanceResponseStatistics *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
    TRITONBACKEND_ModelInstanceResponseStatistics *, TRITONBACKEND_ModelInstance *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
    TRITONBACKEND_ModelInstanceResponseStatistics *, TRITONBACKEND_ResponseFactory *);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(
    TRITONBACKEND_ModelInstanceResponseStatistics *, uint64_t);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
    TRITONBACKEND_ModelInstanceResponseStatistics *, uint64_t);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(
    TRITONBACKEND_ModelInstanceResponseStatistics *, uint64_t);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceResponseStatisticsSetError(
    TRITONBACKEND_ModelInstanceResponseStatistics *, TRITONSERVER_Error *);

TRITONSERVER_Error *TRITONSERVER_ApiVersion(uint32_t *, uint32_t *);
const char *TRITONSERVER_DataTypeString(TRITONSERVER_DataType);
TRITONSERVER_DataType TRITONSERVER_StringToDataType(const char *);
uint32_t TRITONSERVER_DataTypeByteSize(TRITONSERVER_DataType);
const char *TRITONSERVER_MemoryTypeString(TRITONSERVER_MemoryType);
const char *TRITONSERVER_InstanceGroupKindString(TRITONSERVER_InstanceGroupKind);
const char *TRITONSERVER_ParameterTypeString(TRITONSERVER_ParameterType);
TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *, const TRITONSERVER_ParameterType, const void *);
TRITONSERVER_Parameter *TRITONSERVER_ParameterBytesNew(const char *, const void *, const uint64_t);
void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter *);
bool TRITONSERVER_LogIsEnabled(TRITONSERVER_LogLevel);
TRITONSERVER_Error *TRITONSERVER_LogMessage(TRITONSERVER_LogLevel, const char *, const int, const char *);
TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code, const char *);
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *);
TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error *);
const char *TRITONSERVER_ErrorCodeString(TRITONSERVER_Error *);
const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *);
TRITONSERVER_Error *TRITONSERVER_MessageNewFromSerializedJson(TRITONSERVER_Message **, const char *, size_t);
TRITONSERVER_Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *);
TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *, const char **, size_t *);
TRITONSERVER_Error *TRITONSERVER_BufferAttributesNew(TRITONSERVER_BufferAttributes **);
TRITONSERVER_Error *TRITONSERVER_BufferAttributesDelete(TRITONSERVER_BufferAttributes *);
TRITONSERVER_Error *TRITONSERVER_BufferAttributesSetMemoryTypeId(TRITONSERVER_BufferAttributes *, int64_t);
TRITONSERVER_Error *TRITONSERVER_BufferAttributesSetMemoryType(TRITONSERVER_BufferAttributes *, TRITONSERVER_MemoryType);
TRITONSERVER_Error *TRITONSERVER_BufferAttributesSetCudaIpcHandle(TRITONSERVER_BufferAttributes *, void *);
TRITONSERVER_Error *TRITONSERVER_BufferAttributesSetByteSize(TRITONSERVER_BufferAttributes *, size_t);
TRITONSERVER_Error *TRITONSERVER_BufferAttributesMemoryTypeId(TRITONSERVER_BufferAttributes *, int64_t *);
TRITONSERVER_Error *TRITONSERVER_BufferAttributesMemoryType(TRITONSERVER_BufferAttributes *, TRITONSERVER_MemoryType *);
TRITONSERVER_Error *TRITONSERVER_BufferAttributesCudaIpcHandle(TRITONSERVER_BufferAttributes *, void **);
TRITONSERVER_Error *TRITONSERVER_BufferAttributesByteSize(TRITONSERVER_BufferAttributes *, size_t *);
TRITONSERVER_Error *TRITONSERVER_InferenceTraceReportActivity(TRITONSERVER_InferenceTrace *, uint64_t, const char *);
TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorNew(TRITONSERVER_ResponseAllocator **,
    TRITONSERVER_ResponseAllocatorAllocFn_t, TRITONSERVER_ResponseAllocatorReleaseFn_t,
    TRITONSERVER_ResponseAllocatorStartFn_t);
TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorSetQueryFunction(TRITONSERVER_ResponseAllocator *,
    TRITONSERVER_ResponseAllocatorQueryFn_t);
TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator *);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestNew(TRITONSERVER_InferenceRequest **, TRITONSERVER_Server *, const char *,
    const int64_t);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestDelete(TRITONSERVER_InferenceRequest *);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetId(TRITONSERVER_InferenceRequest *, const char *);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetFlags(TRITONSERVER_InferenceRequest *, uint32_t);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetCorrelationId(TRITONSERVER_InferenceRequest *, uint64_t);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetCorrelationIdString(TRITONSERVER_InferenceRequest *, const char *);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetPriority(TRITONSERVER_InferenceRequest *, uint32_t);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetPriorityUInt64(TRITONSERVER_InferenceRequest *, uint64_t);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(TRITONSERVER_InferenceRequest *, uint64_t);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddInput(TRITONSERVER_InferenceRequest *, const char *,
    const TRITONSERVER_DataType, const int64_t *, uint64_t);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestAppendInputData(TRITONSERVER_InferenceRequest *, const char *, const void *,
    size_t, TRITONSERVER_MemoryType, int64_t);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddRequestedOutput(TRITONSERVER_InferenceRequest *, const char *);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetStringParameter(TRITONSERVER_InferenceRequest *, const char *, const char *);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetIntParameter(TRITONSERVER_InferenceRequest *, const char *, const int64_t);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetBoolParameter(TRITONSERVER_InferenceRequest *, const char *, const bool);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetDoubleParameter(TRITONSERVER_InferenceRequest *, const char *, const double);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetReleaseCallback(TRITONSERVER_InferenceRequest *,
    TRITONSERVER_InferenceRequestReleaseFn_t, void *);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetResponseCallback(TRITONSERVER_InferenceRequest *,
    TRITONSERVER_ResponseAllocator *, void *, TRITONSERVER_InferenceResponseCompleteFn_t, void *);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest *);
TRITONSERVER_Error *TRITONSERVER_InferenceResponseDelete(TRITONSERVER_InferenceResponse *);
TRITONSERVER_Error *TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse *);
TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutputCount(TRITONSERVER_InferenceResponse *, uint32_t *);
TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutput(TRITONSERVER_InferenceResponse *, const uint32_t, const char **,
    TRITONSERVER_DataType *, const int64_t **, uint64_t *, const void **, size_t *, TRITONSERVER_MemoryType *, int64_t *,
    void **);
TRITONSERVER_Error *TRITONSERVER_InferenceResponseParameterCount(TRITONSERVER_InferenceResponse *, uint32_t *);
TRITONSERVER_Error *TRITONSERVER_InferenceResponseParameter(TRITONSERVER_InferenceResponse *, const uint32_t, const char **,
    TRITONSERVER_ParameterType *, const void **);
TRITONSERVER_Error *TRITONSERVER_ServerInferAsync(TRITONSERVER_Server *, TRITONSERVER_InferenceRequest *,
    TRITONSERVER_InferenceTrace *);
TRITONSERVER_Error *TRITONSERVER_ServerModelIsReady(TRITONSERVER_Server *, const char *, const int64_t, bool *);
TRITONSERVER_Error *TRITONSERVER_ServerModelTransactionProperties(TRITONSERVER_Server *, const char *, const int64_t,
    uint32_t *, void **);
TRITONSERVER_Error *TRITONSERVER_ServerLoadModel(TRITONSERVER_Server *, const char *);
TRITONSERVER_Error *TRITONSERVER_ServerLoadModelWithParameters(TRITONSERVER_Server *, const char *,
    const TRITONSERVER_Parameter **, const uint64_t);
TRITONSERVER_Error *TRITONSERVER_ServerUnloadModel(TRITONSERVER_Server *, const char *);
TRITONSERVER_Error *TRITONSERVER_ServerUnloadModelAndDependents(TRITONSERVER_Server *, const char *);
TRITONSERVER_Error *TRITONSERVER_MetricFamilyNew(TRITONSERVER_MetricFamily **, const TRITONSERVER_MetricKind, const char *,
    const char *);
TRITONSERVER_Error *TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily *);
TRITONSERVER_Error *TRITONSERVER_GetMetricFamilyKind(TRITONSERVER_MetricFamily *, TRITONSERVER_MetricKind *);
TRITONSERVER_Error *TRITONSERVER_MetricArgsNew(TRITONSERVER_MetricArgs **);
TRITONSERVER_Error *TRITONSERVER_MetricArgsSetHistogram(TRITONSERVER_MetricArgs *, const double *, const uint64_t);
TRITONSERVER_Error *TRITONSERVER_MetricArgsDelete(TRITONSERVER_MetricArgs *);
TRITONSERVER_Error *TRITONSERVER_MetricNew(TRITONSERVER_Metric **, TRITONSERVER_MetricFamily *,
    const TRITONSERVER_Parameter **, const uint64_t);
TRITONSERVER_Error *TRITONSERVER_MetricNewWithArgs(TRITONSERVER_Metric **, TRITONSERVER_MetricFamily *,
    const TRITONSERVER_Parameter **, const uint64_t, const TRITONSERVER_MetricArgs *);
TRITONSERVER_Error *TRITONSERVER_MetricDelete(TRITONSERVER_Metric *);
TRITONSERVER_Error *TRITONSERVER_MetricValue(TRITONSERVER_Metric *, double *);
TRITONSERVER_Error *TRITONSERVER_MetricIncrement(TRITONSERVER_Metric *, double);
TRITONSERVER_Error *TRITONSERVER_MetricSet(TRITONSERVER_Metric *, double);
TRITONSERVER_Error *TRITONSERVER_MetricObserve(TRITONSERVER_Metric *, double);

#ifdef __cplusplus
}
#endif
