package repository

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/gateway/repository/backends"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// Config says where models are and how they are loaded.
type Config struct {
	Paths           []string      // --model-repository, each a folder of model folders
	NoAutoComplete  bool          // --disable-auto-complete-config
	StrictReadiness bool          // --strict-readiness: Ready needs every model
	LoadThreads     int           // --model-load-thread-count; 0: 4
	LoadQueue       int           // --model-load-queue-size: load calls of one caller; 0: 1000
	LoadFiles       int64         // --model-load-files-byte-size: of load calls of one caller; 0: 16 GiB
	LoadTime        time.Duration // --model-load-max-secs: of one version, with its warm-up and all tries; 0: an hour
	LoadRetries     int           // --model-load-retry-count: further tries after a failure
	Mode            Mode          // --model-control-mode
	PollInterval    time.Duration // --repository-poll-secs; 0: never, also with Poll
	Startup         []string      // --load-model, with Explicit; "*" alone: all
	ConfigName      string        // --model-config-name; "": config.pbtxt
	Namespacing     bool          // --model-namespacing
	// WarmupRequests is --model-warmup-max-requests: the most requests of warm-up of a version,
	// those of all samples on all instances; 0: 100,000.
	WarmupRequests int
	WarmupTime     time.Duration // --model-warmup-max-secs: of one version; 0: 5 minutes
	// WorkerWait is --worker-wait-secs: how long requests of a version wait while none of its
	// instances is in service; 0: 30 s.
	WorkerWait time.Duration
	// GPULimits is --model-load-gpu-limit: CUDA ordinal → the most of its memory, as a
	// fraction, that may be in use when a model is loaded onto it.
	GPULimits map[int]float64
	TempDir   string // for the files of load calls and agents; "": the system's for temporary files
	Cache     CacheConfig
	// BackendOptions is --backend-config: backend → setting → value. Settings under ""
	// are for all backends.
	BackendOptions map[string]map[string]string
	// Known are backends that no worker may have, by what Triton knows of them; workers'
	// own word comes before it.
	Known modelconfig.Known
	// Backends says where the files of backends are that no worker has by itself.
	Backends backends.Config
}

// Mode is --model-control-mode.
type Mode uint8

// The modes. Source: the original's model control modes.
const (
	None     Mode = iota // all models are loaded at the start, and stay as they are
	Poll                 // changes of the repositories are taken over
	Explicit             // load calls alone load
)

// String is the mode as the flag has it.
func (m Mode) String() string { return [...]string{"none", "poll", "explicit"}[m] }

// The defaults of --model-load-thread-count, --model-load-queue-size, --model-load-max-secs and
// --model-load-files-byte-size.
const (
	defaultLoadThreads = 4
	defaultLoadQueue   = 1000
	defaultLoadTime    = time.Hour
	defaultLoadFiles   = 16 << 30
)

// The bounds of a version's warm-up, where Config has none.
const (
	DefaultWarmupRequests = 100_000
	DefaultWarmupTime     = 5 * time.Minute
)

// DefaultWorkerWait is how long requests wait for a worker that is gone: one that crashed is started
// again and loads its models in that time, as a rule.
const DefaultWorkerWait = 30 * time.Second

func (c *Config) loadTime() time.Duration   { return cmp.Or(c.LoadTime, defaultLoadTime) }
func (c *Config) loadFiles() int64          { return cmp.Or(c.LoadFiles, defaultLoadFiles) }
func (c *Config) warmupRequests() int       { return cmp.Or(c.WarmupRequests, DefaultWarmupRequests) }
func (c *Config) warmupTime() time.Duration { return cmp.Or(c.WarmupTime, DefaultWarmupTime) }
func (c *Config) workerWait() time.Duration { return cmp.Or(c.WorkerWait, DefaultWorkerWait) }

// options are the settings for one backend, its own before those of the one that runs it,
// before those for all.
func (c *Config) options(backend, runner string) map[string]string {
	all := map[string]string{}
	for _, name := range []string{"", runner, backend} {
		for k, v := range c.BackendOptions[name] {
			all[k] = v
		}
	}
	return all
}

func (c *Config) maxBatchSize(backend string) int {
	n, err := strconv.Atoi(c.options(backend, backend)["default-max-batch-size"])
	if err != nil || n < 1 {
		return modelconfig.DefaultMaxBatchSize
	}
	return n
}

// Device is a place where instances can be.
type Device struct {
	GPU  bool
	ID   int32 // CUDA ordinal; 0 for the CPU
	Name string
}

// Workers are where models are loaded; workers/client is adapted to it. Its errors are
// infer errors, or plain ones for faults of ours.
type Workers interface {
	// Backends are those of all workers together, by name.
	Backends() map[string]*worker.Backend
	Devices() []Device
	// Describe reads what a model file and its backend say of the model. Unsupported: they
	// say nothing. Of spec, instances and what follows them don't count.
	Describe(ctx context.Context, spec *LoadSpec) (*worker.DescribeResponse, error)
	// Load builds a version with all its instances. Changed of the spec may be called
	// from then on, and before it returns.
	Load(ctx context.Context, spec LoadSpec) (Loaded, error)
}

// LoadSpec is one version to be loaded.
type LoadSpec struct {
	Name      string
	Namespace string // "": namespaces are off
	Version   int64
	ModelDir  string // absolute: <repository>/<model>
	ModelFile string // absolute; for backends without model files it may not exist
	Config    *configpb.ModelConfig
	Backend   string // of a worker, that runs the model: the config's, or one that runs BackendFile
	// BackendFile is the absolute path of the file that makes the config's backend; "": a
	// worker has it.
	BackendFile string
	Options     map[string]string
	Inspect     bool // for Describe: nothing of the model's is executed
	Ragged      bool // the backend computes batch_input and cuts batch_output itself
	Instances   []InstanceSpec
	// Like is a loaded version that differs in its instances alone: its model can be used
	// again, so that no file is read. nil: none.
	Like Loaded
	// Changed says that an instance went out of service or is back in it. It may be
	// called from any goroutine; calls for one instance come in order.
	Changed func(instance int, up bool)
}

// scheduled is the config as a scheduler has it: without what the backend does itself.
func (s *LoadSpec) scheduled() *configpb.ModelConfig {
	if !s.Ragged {
		return s.Config
	}
	cfg := proto.CloneOf(s.Config)
	cfg.BatchInput, cfg.BatchOutput = nil, nil
	return cfg
}

// InstanceSpec says where an instance lives.
type InstanceSpec struct {
	Name       string
	GPU        bool
	Device     int // CUDA ordinal; 0 for the CPU
	Profiles   []string
	HostPolicy string
}

// Loaded is a version in workers.
type Loaded interface {
	Executor(instance int) infer.Executor
	// Unload frees it; no batch is in flight any more.
	Unload(ctx context.Context) error
	Memory() []*worker.MemoryUsage
	// AsksReady says that Ready has somebody to ask. It takes no time.
	AsksReady() bool
	// Ready asks the instances that say themselves whether they are ready; nil: they are. It may take seconds.
	Ready(ctx context.Context) error
	// Reaches says that all instances reach the memory of a client's region.
	Reaches(slot uint32) bool
	// Device names the device memory that all instances share; "": none. See schedule.Pinned.
	Device() string
}

// Stats counts what one version does; gateway/stats fits.
type Stats interface {
	schedule.Observer
	// Done records a request that has ended.
	Done(req *infer.Request, err error)
	// SetLoadDuration says how long loading took.
	SetLoadDuration(d time.Duration)
	// Snapshot is the version's entry in the statistics answer.
	Snapshot() *inference.ModelStatistics
	// Close forgets the version's metrics.
	Close()
}

// Deps are a Repository's collaborators.
type Deps struct {
	Workers Workers
	// NewStats makes the statistics of a version; nil: none are kept.
	NewStats func(m *Model) Stats
	// NewScheduler makes the scheduler of a version whose Stats are set. It begins with
	// all instances in service.
	NewScheduler func(m *Model, instances []infer.Executor) (schedule.Scheduler, error)
	Agents       Agents // nil: models that name agents are not loaded
	Stores       Stores // nil: all repositories are folders of this machine
	// GPUMemory is what is known of a GPU, in bytes; nil: nothing is.
	GPUMemory func(device int) (used, total int64, known bool)
	// Forget is told of a load whose answers nobody will ask for any more; nil: nobody
	// keeps answers.
	Forget func(ctx context.Context, load uint64)
	// Changed is called after states or readiness changed, outside all locks; nil: nobody
	// listens.
	Changed func()
	Log     *slog.Logger
}

// surroundings tells completion and checks of the machine.
func (c *Config) surroundings(w Workers, opts *modelconfig.Options) {
	opts.Known = c.Known
	if w == nil {
		return
	}
	var gpus []int32
	for _, d := range w.Devices() {
		if d.GPU {
			gpus = append(gpus, d.ID)
		}
	}
	slices.Sort(gpus)
	opts.Backends, opts.GPUs = w.Backends(), slices.Compact(gpus)
	opts.Known = c.Known.With(opts.Backends)
}
