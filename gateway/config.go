package gateway

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/sluice-serve/sluice/gateway/accesslog"
	"github.com/sluice-serve/sluice/gateway/auth"
	"github.com/sluice-serve/sluice/gateway/calls"
	"github.com/sluice-serve/sluice/gateway/classification"
	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/logging"
	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/gateway/repository/agent"
	"github.com/sluice-serve/sluice/gateway/repository/backends"
	"github.com/sluice-serve/sluice/gateway/repository/cloud"
	"github.com/sluice-serve/sluice/tracing"
	"github.com/sluice-serve/sluice/workers/client"
)

// Config is one gateway in values; flags decode to it. The zero value of a field that
// is a limit or a time means what its comment says; DefaultConfig is what the flags
// start from.
type Config struct {
	ID          string        // in the server metadata
	Version     string        // of this program
	ExitTimeout time.Duration // for requests in flight after SIGTERM
	ExitGrace   time.Duration // between "not ready" and refusing connections
	PortFile    string        // JSON of the ports really listened on; "": none

	Log        logging.Settings
	Repository RepositoryConfig
	HTTP       HTTPConfig
	GRPC       GRPCConfig
	Metrics    MetricsConfig
	SageMaker  SageMakerConfig
	Vertex     VertexConfig
	Observe    ObserveConfig
	Trace      tracing.Settings
	Workers    WorkersConfig
	Cache      CacheConfig // empty: none
	RateLimit  RateLimitConfig
	XDS        XDSConfig
	Limits     LimitsConfig
	Sequences  SequencesConfig
	Auth       auth.Config
	Regions    regions.Config // shared memory of clients
	Load       LoadConfig

	// BodyLimit bounds the bytes of request bodies held at one time, of all protocols.
	BodyLimit int64
	// ResponseLimit bounds the bytes of heap memory that responses hold at one time until they are written: JSON text,
	// compressed copies, classes, responses out of the cache and of remote workers.
	ResponseLimit int64
	// ClassesLimit bounds the bytes of the classes in one response.
	ClassesLimit int64
	// CallDepth is how deep models may call one another for one request; 0: calls.DefaultDepth.
	CallDepth int
}

// RepositoryConfig is --model-repository and what goes with it.
type RepositoryConfig struct {
	Paths           []string
	ExitOnError     bool
	NoAutoComplete  bool
	StrictReadiness bool
	LoadThreads     int
	LoadQueue       int           // --model-load-queue-size
	LoadTime        time.Duration // --model-load-max-secs
	LoadFiles       int64         // --model-load-files-byte-size
	WarmupRequests  int           // --model-warmup-max-requests
	WarmupTime      time.Duration // --model-warmup-max-secs
	LoadRetries     int
	Mode            repository.Mode // --model-control-mode
	PollInterval    time.Duration   // --repository-poll-secs
	Startup         []string        // --load-model
	ConfigName      string          // --model-config-name
	Namespacing     bool            // --model-namespacing
	GPULimits       map[int]float64 // --model-load-gpu-limit: CUDA ordinal → fraction
	TempDir         string          // for files that come with load calls; "": /tmp
	// BackendOptions is --backend-config: backend → setting → value; "" are settings
	// for all.
	BackendOptions map[string]map[string]string
	Backends       backends.Config   // --backend-directory, --allow-model-backends
	Known          modelconfig.Known // backends that no worker may have; cmd's
	Agents         agent.Config      // --repoagent-…
	Cloud          cloud.Config      // --cloud-…; Open and Env are cmd's, and Log is not used
}

// Listen is where a protocol listens.
type Listen struct {
	Allow   bool
	Address string
	Port    int    // 0: any free one; -1: no TCP, only the Unix socket
	Reuse   bool   // SO_REUSEPORT
	Unix    string // path of a Unix socket as well; "": none
	Forward string // headers that become parameters, a regular expression; "": none
}

// TLSFiles are PEM files; empty names mean no TLS.
type TLSFiles = listen.TLS

// HTTPConfig is --http-….
type HTTPConfig struct {
	Listen
	TLS          TLSFiles
	MaxInputSize int64  // bytes of one body, decompressed
	Transport    string // sluice: our own for plain HTTP/1.1; library: net/http for all
}

// GRPCConfig is --grpc-….
type GRPCConfig struct {
	Listen
	TLS                   TLSFiles
	Compression           string // none, low, medium, high
	KeepaliveTime         time.Duration
	KeepaliveTimeout      time.Duration
	PermitWithoutCalls    bool
	MinPingInterval       time.Duration
	MaxPingStrikes        int           // 0: no bound
	MaxPingsWithoutData   int           // 0: no bound
	MaxConnectionAge      time.Duration // 0: no bound
	MaxConnectionAgeGrace time.Duration // 0: no bound
	StandardCodec         bool          // protobuf's own decoding in place of ours
	Transport             string        // sluice: our own; library: grpc-go
}

// MetricsConfig is --metrics-… and --allow-…-metrics.
type MetricsConfig struct {
	Listen
	GPU, CPU   bool
	Interval   time.Duration
	Counters   bool                // counter_latencies
	Summaries  bool                // summary_latencies
	Histograms bool                // histogram_latencies
	Quantiles  map[float64]float64 // summary_quantiles: quantile → error; nil: the defaults
}

// WorkersConfig says which workers there are.
type WorkersConfig struct {
	Local         bool     // worker processes are started
	Binary        string   // path of sluice-worker; "": beside this program
	Remote        []string // workers that somebody else started: host:port, or unix:PATH on this host
	TLS           TLSFiles // for Remote
	Insecure      bool     // Remote without TLS, on loopback only
	Env           []string // NAME=value, for local workers beside the gateway's own
	RequestArena  int64    // bytes
	ResponseArena int64    // bytes for each local worker
	Stream        bool     // the gRPC stream on local workers too
	// OpenTimeout is how long local workers wait for a sign of a request that a backend keeps
	// open, and the gateway a little longer of those of all workers; 0: 5 min.
	OpenTimeout time.Duration
	Wait        time.Duration // --worker-wait-secs
	// Processes is --worker-processes: backend → how models share processes; "" is for all others.
	Processes    map[string]client.Sharing
	ProcessLimit int // --worker-process-limit
	// DeviceMemory is how many bytes of a GPU its local worker takes for tensors at most, by CUDA
	// ordinal; the worker's default where there is no entry.
	DeviceMemory map[int]int64
	GPUs         []int // CUDA ordinals of this host; nil: those that are found
}

// DefaultConfig is a gateway without flags.
// Source of the defaults: the original's --help, but for what it has not.
func DefaultConfig() Config {
	sagemaker, vertex := defaultPlatforms()
	return Config{
		SageMaker: sagemaker, Vertex: vertex,
		ID: "triton", ExitTimeout: 30 * time.Second, ExitGrace: time.Second,
		Log: logging.DefaultSettings(), Trace: tracing.DefaultSettings(),
		Repository: RepositoryConfig{ExitOnError: true, StrictReadiness: true, LoadThreads: 4, PollInterval: 15 * time.Second,
			BackendOptions: map[string]map[string]string{}, Backends: backends.Config{Directory: backends.DefaultDirectory}},
		HTTP: HTTPConfig{Listen: Listen{Allow: true, Address: "0.0.0.0", Port: 8000}, MaxInputSize: 64 << 20, Transport: "sluice"},
		GRPC: GRPCConfig{Listen: Listen{Allow: true, Address: "0.0.0.0", Port: 8001}, Transport: "sluice", Compression: "none",
			KeepaliveTime: 2 * time.Hour, KeepaliveTimeout: 20 * time.Second, MinPingInterval: 5 * time.Minute, MaxPingStrikes: 2, MaxPingsWithoutData: 2},
		Metrics: MetricsConfig{Listen: Listen{Allow: true, Port: 8002}, GPU: true, CPU: true, Interval: 2 * time.Second,
			Counters: true},
		Observe: ObserveConfig{AccessLog: accesslog.DefaultConfig()},
		Workers: WorkersConfig{Local: true, Wait: repository.DefaultWorkerWait, ProcessLimit: 64,
			RequestArena: 256 << 20, ResponseArena: 256 << 20},
		XDS:       DefaultXDS(),
		Sequences: SequencesConfig{SlotTimeout: time.Minute},
		BodyLimit: 1 << 30, ResponseLimit: 512 << 20, ClassesLimit: classification.DefaultMaxBytes,
		CallDepth: calls.DefaultDepth,
	}
}

// Validate says everything that is wrong with c at once, or nil.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Repository.Paths) == 0 {
		bad("--model-repository must be specified")
	}
	if !c.HTTP.Allow && !c.GRPC.Allow && !c.SageMaker.Allow && !c.Vertex.Allow {
		bad("--allow-http and --allow-grpc are both false: nothing would be served")
	}
	errs = append(errs, c.validatePlatforms(), c.Repository.validate(), c.Cache.Validate(), c.XDS.Validate(), c.Limits.Validate(), c.Log.Validate(), c.Observe.AccessLog.Validate(), checkTLS("http", c.HTTP.TLS), checkTLS("grpc", c.GRPC.TLS))
	for name, l := range map[string]Listen{"http": c.HTTP.Listen, "grpc": c.GRPC.Listen} {
		if l.Forward == "" {
			continue
		}
		if _, err := regexp.Compile(l.Forward); err != nil {
			bad("--%s-header-forward-pattern: %w", name, err)
		}
	}
	for name, l := range map[string]Listen{"http": c.HTTP.Listen, "grpc": c.GRPC.Listen, "metrics": c.Metrics.Listen} {
		if l.Allow && l.Port < 0 && l.Unix == "" {
			bad("--%s-port=-1 needs --%s-unix-socket: nothing would be listened on", name, name)
		}
	}
	for name, t := range map[string]string{"http": c.HTTP.Transport, "grpc": c.GRPC.Transport} {
		if t != string(httpapi.TransportOwn) && t != string(httpapi.TransportLibrary) {
			bad("--%s-transport is %q, not %s or %s", name, t, httpapi.TransportOwn, httpapi.TransportLibrary)
		}
	}
	if c.HTTP.MaxInputSize <= 0 {
		bad("--http-max-input-size must be greater than 0")
	}
	if err := c.Regions.Validate(); err != nil {
		bad("--client-shm-prefix: %w", err)
	}
	if c.Workers.RequestArena < 1<<20 || c.Workers.ResponseArena < 1<<20 {
		bad("--request-arena-byte-size and --response-arena-byte-size must be at least 1048576")
	}
	if !c.Workers.Local && len(c.Workers.Remote) == 0 {
		bad("--local-workers=false needs a --worker")
	}
	if slices.ContainsFunc(c.Workers.Remote, overNetwork) && !c.Workers.Insecure && (c.Workers.TLS.Cert == "" || c.Workers.TLS.Key == "" || c.Workers.TLS.Root == "") {
		bad("--worker needs --worker-cert, --worker-key and --worker-root-cert")
	}
	return errors.Join(errs...)
}

func checkTLS(name string, t TLSFiles) error {
	if t == (TLSFiles{}) {
		return nil
	}
	if t.Cert == "" || t.Key == "" {
		return fmt.Errorf("TLS for %s needs a certificate and a key: --%s-server-cert, --%s-server-key", name, name, name)
	}
	if t.Mutual && t.Root == "" {
		return fmt.Errorf("mutual TLS for %s needs --%s-root-cert", name, name)
	}
	for _, file := range []string{t.Cert, t.Key, t.Root} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("TLS for %s: %w", name, err)
		}
	}
	return nil
}
