// What of OpenVINO's C API is used, as types of our own: the worker is built without OpenVINO and loads it at run time.
// Source: openvino/c/*.h of OpenVINO 2026.4; TestHeader holds numbers and layouts to the headers of the package.
#ifndef SLUICE_OV_API_H
#define SLUICE_OV_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
  const char *build;
  const char *description;
} slo_version;

typedef struct {
  int64_t min, max;  // inclusive; 0 and -1: any
} slo_dimension;

typedef struct {
  slo_dimension rank;
  slo_dimension *dims;
} slo_partial;

typedef struct {
  int64_t rank;
  int64_t *dims;
} slo_shape;

// ov_element_type_e
enum {
  SLO_BOOLEAN = 1,
  SLO_BF16,
  SLO_F16,
  SLO_F32,
  SLO_F64,
  SLO_I8 = 7,
  SLO_I16,
  SLO_I32,
  SLO_I64,
  SLO_U8 = 16,
  SLO_U16,
  SLO_U32,
  SLO_U64,
  SLO_STRING = 23,
};

enum { SLO_CANCELLED = -13 };  // INFER_CANCELLED of ov_status_e

// The functions: result, name without ov_, parameters. Objects of OpenVINO are void here.
#define SLO_FUNCTIONS(F)                                                                             \
  F(int, get_openvino_version, (slo_version *))                                                      \
  F(void, version_free, (slo_version *))                                                             \
  F(const char *, get_last_err_msg, (void))                                                          \
  F(const char *, get_error_info, (int))                                                             \
  F(void, free, (const char *))                                                                      \
  F(int, core_create, (void **))                                                                     \
  F(int, core_get_property, (const void *, const char *, const char *, char **))                     \
  F(int, core_read_model, (const void *, const char *, const char *, void **))                       \
  F(int, core_compile_model, (const void *, const void *, const char *, size_t, void **, ...))       \
  F(void, model_free, (void *))                                                                      \
  F(int, model_inputs_size, (const void *, size_t *))                                                \
  F(int, model_outputs_size, (const void *, size_t *))                                               \
  F(int, model_const_input_by_index, (const void *, size_t, void **))                                \
  F(int, model_const_output_by_index, (const void *, size_t, void **))                               \
  F(int, model_reshape_by_port_indexes, (const void *, const size_t *, const slo_partial *, size_t)) \
  F(void, output_const_port_free, (void *))                                                          \
  F(int, port_get_any_name, (const void *, char **))                                                 \
  F(int, port_get_element_type, (const void *, int *))                                               \
  F(int, port_get_partial_shape, (const void *, slo_partial *))                                      \
  F(void, partial_shape_free, (slo_partial *))                                                       \
  F(int, compiled_model_create_infer_request, (const void *, void **))                               \
  F(void, compiled_model_free, (void *))                                                             \
  F(void, infer_request_free, (void *))                                                              \
  F(int, infer_request_set_input_tensor_by_index, (void *, size_t, const void *))                    \
  F(int, infer_request_set_output_tensor_by_index, (void *, size_t, const void *))                   \
  F(int, infer_request_get_output_tensor_by_index, (const void *, size_t, void **))                  \
  F(int, infer_request_infer, (void *))                                                              \
  F(int, infer_request_cancel, (void *))                                                             \
  F(int, tensor_create_from_host_ptr, (int, slo_shape, void *, void **))                             \
  F(int, tensor_get_shape, (const void *, slo_shape *))                                              \
  F(int, tensor_get_element_type, (const void *, int *))                                             \
  F(int, tensor_get_byte_size, (const void *, size_t *))                                             \
  F(int, tensor_data, (const void *, void **))                                                       \
  F(void, tensor_free, (void *))                                                                     \
  F(int, shape_free, (slo_shape *))

#endif
