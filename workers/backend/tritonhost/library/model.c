// Models and instances.
#include "private.h"

th_set_config host_set_config;

static th_tensor_spec *specs_of(const th_tensor_spec *from, uint32_t count) {
  th_tensor_spec *all = grown(count * sizeof *all);
  for (uint32_t i = 0; i < count; i++) {
    all[i].name = copied(from[i].name);
    if (from[i].input != NULL) all[i].input = copied(from[i].input);
  }
  return all;
}

static void free_specs(th_tensor_spec *all, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    free((char *)all[i].name);
    free((char *)all[i].input);
  }
  free(all);
}

static void free_model(TRITONBACKEND_Model *m) {
  m->magic = 0;
  free((char *)m->spec.name);
  free((char *)m->spec.repository);
  free(m->config.text);
  free_specs(m->outputs, m->spec.output_count);
  free_specs(m->states, m->spec.state_count);
  free(m);
}

Error *model_new(TRITONBACKEND_Backend *backend, const th_model_spec *spec, TRITONBACKEND_Model **model) {
  TRITONBACKEND_Model *m = grown(sizeof *m);
  m->magic = MAGIC_MODEL;
  m->backend = backend;
  m->spec = *spec;
  m->spec.name = copied(spec->name);
  m->spec.repository = copied(spec->repository);
  m->server = grown(sizeof *m->server);
  m->server->owner = spec->owner;
  m->config.text = copied(spec->config);
  m->config.size = strlen(spec->config);
  m->outputs = specs_of(spec->outputs, spec->output_count);
  m->states = specs_of(spec->states, spec->state_count);
  for (int i = 0; i < 17; i++) pthread_mutex_init(&m->device[i], NULL);
  Error *error = NULL;
  if (backend->call.model_initialize != NULL) {
    entered(backend, m, "TRITONBACKEND_ModelInitialize");
    error = backend->call.model_initialize(m);
    left();
  }
  if (error != NULL) { // as in Triton, nothing is finalized that was not initialized
    free_model(m);
    m = NULL;
  }
  *model = m;
  return error;
}

Error *model_free(TRITONBACKEND_Model *m) {
  Error *error = NULL;
  if (m->backend->call.model_finalize != NULL) {
    entered(m->backend, m, "TRITONBACKEND_ModelFinalize");
    error = m->backend->call.model_finalize(m);
    left();
  }
  free_model(m);
  return error;
}

Error *TRITONBACKEND_ModelName(TRITONBACKEND_Model *m, const char **name) {
  *name = m->spec.name;
  return NULL;
}

Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *m, uint64_t *version) {
  *version = m->spec.version;
  return NULL;
}

Error *TRITONBACKEND_ModelRepository(TRITONBACKEND_Model *m, TRITONBACKEND_ArtifactType *type, const char **location) {
  *type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  *location = m->spec.repository;
  return NULL;
}

Error *TRITONBACKEND_ModelConfig(TRITONBACKEND_Model *m, const uint32_t version, TRITONSERVER_Message **config) {
  if (version != 1) return errorf(TRITONSERVER_ERROR_INVALID_ARG, "model configuration version %u not supported, supported versions are: 1", version);
  return TRITONSERVER_MessageNewFromSerializedJson(config, m->config.text, m->config.size);
}

Error *TRITONBACKEND_ModelAutoCompleteConfig(TRITONBACKEND_Model *m, bool *complete) {
  *complete = m->spec.complete;
  return NULL;
}

Error *TRITONBACKEND_ModelSetConfig(TRITONBACKEND_Model *m, const uint32_t version, TRITONSERVER_Message *config) {
  if (version != 1) return errorf(TRITONSERVER_ERROR_INVALID_ARG, "model configuration version %u not supported, supported versions are: 1", version);
  char *merged = NULL;
  Error *error = host_set_config(m->spec.owner, config->text, config->size, &merged);
  if (error != NULL || merged == NULL) return error;
  free(m->config.text);
  m->config.text = merged;
  m->config.size = strlen(merged);
  return NULL;
}

// The server is what calls of models go to; each model has its own, so that it is known who calls. It stays when the
// model has ended: threads of its backend may still call.
Error *TRITONBACKEND_ModelServer(TRITONBACKEND_Model *m, TRITONSERVER_Server **server) {
  *server = m->server;
  return NULL;
}

Error *TRITONBACKEND_ModelBackend(TRITONBACKEND_Model *m, TRITONBACKEND_Backend **backend) {
  *backend = m->backend;
  return NULL;
}

Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *m, void **state) {
  *state = m->state;
  return NULL;
}

Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *m, void *state) {
  m->state = state;
  return NULL;
}

Error *TRITONBACKEND_ModelReportMemoryUsage(TRITONBACKEND_Model *m, TRITONSERVER_BufferAttributes **usage, uint32_t count) {
  (void)m, (void)usage, (void)count;
  return NULL;
}

static void free_instance(TRITONBACKEND_ModelInstance *in) {
  in->magic = 0;
  if (in->busy > 0) return; // something of it is still held, which must find it
  while (in->idle != NULL) {
    th_batch *b = in->idle;
    in->idle = b->next;
    give_back(b->memory);
    free(b);
  }
  for (uint32_t i = 0; i < in->profile_count; i++) free(in->profiles[i]);
  free(in->profiles);
  free(in->name);
  free(in->host_policy_name);
  free(in->host_policy.text);
  pthread_mutex_destroy(&in->lock);
  pthread_cond_destroy(&in->came);
  free(in);
}

Error *instance_new(TRITONBACKEND_Model *model, const th_instance_spec *spec, TRITONBACKEND_ModelInstance **instance) {
  TRITONBACKEND_ModelInstance *in = grown(sizeof *in);
  in->magic = MAGIC_INSTANCE;
  in->model = model;
  in->name = copied(spec->name);
  in->host_policy_name = copied(spec->host_policy_name);
  in->host_policy.text = copied(spec->host_policy);
  in->host_policy.size = strlen(spec->host_policy);
  in->kind = spec->kind;
  in->device = spec->device;
  in->profiles = grown(spec->profile_count * sizeof *in->profiles);
  in->profile_count = spec->profile_count;
  for (uint32_t i = 0; i < spec->profile_count; i++) in->profiles[i] = copied(spec->profiles[i]);
  pthread_mutex_init(&in->lock, NULL);
  pthread_cond_init(&in->came, NULL);
  in->last = &in->first;
  in->idle_last = &in->idle;
  Error *error = NULL;
  if (model->backend->call.instance_initialize != NULL) {
    entered(model->backend, model, "TRITONBACKEND_ModelInstanceInitialize");
    error = model->backend->call.instance_initialize(in);
    left();
  }
  if (error != NULL) {
    free_instance(in);
    in = NULL;
  }
  *instance = in;
  return error;
}

Error *instance_free(TRITONBACKEND_ModelInstance *in) {
  Error *error = NULL;
  TRITONBACKEND_Backend *b = in->model->backend;
  if (b->call.instance_finalize != NULL) {
    entered(b, in->model, "TRITONBACKEND_ModelInstanceFinalize");
    error = b->call.instance_finalize(in);
    left();
  }
  free_instance(in);
  return error;
}

Error *TRITONBACKEND_ModelInstanceName(TRITONBACKEND_ModelInstance *in, const char **name) {
  *name = in->name;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance *in, TRITONSERVER_InstanceGroupKind *kind) {
  *kind = in->kind;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance *in, int32_t *device) {
  *device = in->device;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceHostPolicy(TRITONBACKEND_ModelInstance *in, TRITONSERVER_Message **policy) {
  *policy = &in->host_policy;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceIsPassive(TRITONBACKEND_ModelInstance *in, bool *passive) {
  (void)in;
  *passive = false;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceProfileCount(TRITONBACKEND_ModelInstance *in, uint32_t *count) {
  *count = in->profile_count;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceProfileName(TRITONBACKEND_ModelInstance *in, const uint32_t index, const char **name) {
  *name = NULL;
  if (index >= in->profile_count)
    return errorf(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u: instance is configured with %u profiles", index, in->profile_count);
  *name = in->profiles[index];
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceSecondaryDeviceCount(TRITONBACKEND_ModelInstance *in, uint32_t *count) {
  (void)in;
  *count = 0;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(TRITONBACKEND_ModelInstance *in, uint32_t index,
                                                            const char **kind, int64_t *id) {
  (void)in, (void)kind, (void)id;
  return errorf(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u: instance is configured with 0 secondary devices", index);
}

Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *in, TRITONBACKEND_Model **model) {
  *model = in->model;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *in, void **state) {
  *state = in->state;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *in, void *state) {
  in->state = state;
  return NULL;
}

Error *TRITONBACKEND_ModelInstanceReportMemoryUsage(TRITONBACKEND_ModelInstance *in, TRITONSERVER_BufferAttributes **usage,
                                                    uint32_t count) {
  (void)in, (void)usage, (void)count;
  return NULL;
}
