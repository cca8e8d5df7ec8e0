// Backends: their libraries, and what they may ask of themselves.
#include "private.h"

#include <dlfcn.h>
#include <stdio.h>

struct TRITONBACKEND_BackendAttribute {
  TRITONBACKEND_Backend *backend;
};

struct TRITONBACKEND_MemoryManager {
  char unused;
};

static struct TRITONBACKEND_MemoryManager manager;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static TRITONBACKEND_Backend *backends; // guarded by opening; none ever ends

static void *find(void *handle, const char *name) { return dlsym(handle, name); }

static Error *entries_of(TRITONBACKEND_Backend *b) {
  struct {
    const char *name;
    void *to;
  } all[] = {
      {"TRITONBACKEND_Initialize", &b->call.initialize},
      {"TRITONBACKEND_Finalize", &b->call.finalize},
      {"TRITONBACKEND_GetBackendAttribute", &b->call.attribute},
      {"TRITONBACKEND_ModelInitialize", &b->call.model_initialize},
      {"TRITONBACKEND_ModelFinalize", &b->call.model_finalize},
      {"TRITONBACKEND_ModelInstanceInitialize", &b->call.instance_initialize},
      {"TRITONBACKEND_ModelInstanceFinalize", &b->call.instance_finalize},
      {"TRITONBACKEND_ModelInstanceExecute", &b->call.execute},
  };
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    void *at = find(b->handle, all[i].name);
    memcpy(all[i].to, &at, sizeof at);
  }
  if (b->call.execute != NULL) return NULL;
  return errorf(TRITONSERVER_ERROR_NOT_FOUND, "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in the library of backend '%s'",
                b->name);
}

// begin opens the library and initializes the backend.
static Error *begin(TRITONBACKEND_Backend *b) {
  b->handle = dlopen(b->library, RTLD_NOW | RTLD_LOCAL);
  if (b->handle == NULL) {
    const char *why = dlerror(), *name = why != NULL ? strstr(why, ": ") : NULL;
    if (why == NULL) why = "unknown error";
    // The library's own path is the operator's; what it lacks is named behind it.
    if (name != NULL && strncmp(why, b->library, strlen(b->library)) == 0) why = name + 2;
    return errorf(TRITONSERVER_ERROR_NOT_FOUND, "unable to load shared library of backend '%s': %s", b->name, why);
  }
  Error *error = entries_of(b);
  if (error == NULL && b->call.initialize != NULL) {
    entered(b, NULL, "TRITONBACKEND_Initialize");
    error = b->call.initialize(b);
    left();
  }
  if (error == NULL && b->call.attribute != NULL) {
    TRITONBACKEND_BackendAttribute attribute = {b};
    entered(b, NULL, "TRITONBACKEND_GetBackendAttribute");
    Error *ignored = b->call.attribute(b, &attribute); // as Triton ignores it
    left();
    TRITONSERVER_ErrorDelete(ignored);
  }
  return error;
}

Error *backend_open(const char *name, const char *library, const char *config, TRITONBACKEND_Backend **backend) {
  pthread_mutex_lock(&opening);
  TRITONBACKEND_Backend *b = backends;
  while (b != NULL && (strcmp(b->name, name) != 0 || strcmp(b->library, library) != 0)) b = b->next;
  Error *error = NULL;
  if (b == NULL) {
    b = grown(sizeof *b);
    b->name = copied(name);
    b->library = copied(library);
    b->directory = copied(library);
    char *slash = strrchr(b->directory, '/');
    if (slash != NULL) *slash = '\0';
    b->config.text = copied(config);
    b->config.size = strlen(config);
    for (int i = 0; i < 17; i++) pthread_mutex_init(&b->device[i], NULL);
    error = begin(b);
    if (error == NULL) {
      b->next = backends;
      backends = b;
    } // else it stays where it is: the library may have kept its address
  }
  pthread_mutex_unlock(&opening);
  *backend = error == NULL ? b : NULL;
  return error;
}

Error *TRITONBACKEND_BackendName(TRITONBACKEND_Backend *b, const char **name) {
  *name = b->name;
  return NULL;
}

Error *TRITONBACKEND_BackendConfig(TRITONBACKEND_Backend *b, TRITONSERVER_Message **config) {
  *config = &b->config;
  return NULL;
}

Error *TRITONBACKEND_BackendExecutionPolicy(TRITONBACKEND_Backend *b, TRITONBACKEND_ExecutionPolicy *policy) {
  *policy = b->policy;
  return NULL;
}

Error *TRITONBACKEND_BackendSetExecutionPolicy(TRITONBACKEND_Backend *b, TRITONBACKEND_ExecutionPolicy policy) {
  b->policy = policy;
  return NULL;
}

Error *TRITONBACKEND_BackendArtifacts(TRITONBACKEND_Backend *b, TRITONBACKEND_ArtifactType *type, const char **location) {
  *type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  *location = b->directory;
  return NULL;
}

Error *TRITONBACKEND_BackendMemoryManager(TRITONBACKEND_Backend *b, TRITONBACKEND_MemoryManager **m) {
  (void)b;
  *m = &manager;
  return NULL;
}

Error *TRITONBACKEND_BackendState(TRITONBACKEND_Backend *b, void **state) {
  *state = b->state;
  return NULL;
}

Error *TRITONBACKEND_BackendSetState(TRITONBACKEND_Backend *b, void *state) {
  b->state = state;
  return NULL;
}

Error *TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(TRITONBACKEND_BackendAttribute *attribute,
                                                                     bool enabled) {
  attribute->backend->parallel = enabled;
  return NULL;
}

// The gateway chooses the kinds of instances before it asks a worker, so that a preference changes nothing.
Error *TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(TRITONBACKEND_BackendAttribute *attribute,
                                                               const TRITONSERVER_InstanceGroupKind kind,
                                                               const uint64_t count, const uint64_t *devices,
                                                               const uint64_t device_count) {
  (void)attribute, (void)kind, (void)count, (void)devices, (void)device_count;
  return NULL;
}

Error *TRITONBACKEND_MemoryManagerAllocate(TRITONBACKEND_MemoryManager *m, void **buffer, TRITONSERVER_MemoryType type,
                                           int64_t device, uint64_t bytes) {
  (void)m, (void)device;
  if (type != TRITONSERVER_MEMORY_CPU)
    return errorf(TRITONSERVER_ERROR_UNSUPPORTED, "memory of type %s is not managed by this server",
                  TRITONSERVER_MemoryTypeString(type));
  *buffer = malloc(bytes > 0 ? bytes : 1);
  if (*buffer != NULL) return NULL;
  return errorf(TRITONSERVER_ERROR_UNAVAILABLE, "there is no memory for %llu bytes", (unsigned long long)bytes);
}

Error *TRITONBACKEND_MemoryManagerFree(TRITONBACKEND_MemoryManager *m, void *buffer, TRITONSERVER_MemoryType type,
                                       int64_t device) {
  (void)m, (void)device;
  if (type != TRITONSERVER_MEMORY_CPU)
    return errorf(TRITONSERVER_ERROR_UNSUPPORTED, "memory of type %s is not managed by this server",
                  TRITONSERVER_MemoryTypeString(type));
  free(buffer);
  return NULL;
}
