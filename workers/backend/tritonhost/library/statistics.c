// What backends report of their times. The worker measures a batch itself, so that it only has to be taken.
#include "private.h"

Error *TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance *in, TRITONBACKEND_Request *r,
                                                   const bool success, const uint64_t start, const uint64_t compute_start,
                                                   const uint64_t compute_end, const uint64_t end) {
  (void)in, (void)r, (void)success, (void)start, (void)compute_start, (void)compute_end, (void)end;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance *in, const uint64_t rows,
                                                        const uint64_t start, const uint64_t compute_start,
                                                        const uint64_t compute_end, const uint64_t end) {
  (void)in, (void)rows, (void)start, (void)compute_start, (void)compute_end, (void)end;
  return NULL;
}

typedef TRITONBACKEND_ModelInstanceResponseStatistics Statistics;

Error *TRITONBACKEND_ModelInstanceResponseStatisticsNew(Statistics **statistics) {
  *statistics = grown(1);
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceResponseStatisticsDelete(Statistics *statistics) {
  free(statistics);
  return NULL;
}


Error *TRITONBACKEND_ModelInstanceReportResponseStatistics(Statistics *statistics) {
  (void)statistics;
  return NULL;
}

#define SETTER(name, type)                                                                                  \
  Error *TRITONBACKEND_ModelInstanceResponseStatisticsSet##name(Statistics *statistics, type value) {       \
    (void)statistics, (void)value;                                                                          \
    return NULL;                                                                                            \
  }

SETTER(ModelInstance, TRITONBACKEND_ModelInstance *)
SETTER(ResponseFactory, TRITONBACKEND_ResponseFactory *)
SETTER(ResponseStart, uint64_t)
SETTER(ComputeOutputStart, uint64_t)
SETTER(ResponseEnd, uint64_t)
SETTER(Error, Error *)
