package flags

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/gateway"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/gateway/repository/cloud"
	"github.com/sluice-serve/sluice/workers/client"
)

// Serve is what the command line of `sluice serve` says.
type Serve struct {
	Config  gateway.Config
	Help    bool     // asked for; nothing else counts
	Notices []string // flags that were taken without effect, and why
	// WakeLatency is how long a core that rests may take to wake; negative: nobody asks.
	WakeLatency time.Duration

	trace     traceFlags
	grpcTLS   bool   // --grpc-use-ssl or --grpc-use-ssl-mutual is on
	cacheSize string // --response-cache-byte-size
}

// ParseServe reads the arguments after `sluice serve` and, for flags that are not
// there, the environment: --http-port is SLUICE_HTTP_PORT. All faults come at once.
func ParseServe(args []string, env func(string) (string, bool)) (*Serve, error) {
	s := newServe()
	if err := s.platformEnvironment(env); err != nil {
		return s, err
	}
	rest, err := s.table().parse(args, env)
	if err != nil || s.Help {
		if s.Help {
			err = nil
		}
		return s, err
	}
	if len(rest) > 0 {
		return s, fmt.Errorf("'%s' is not a flag; all of sluice serve's arguments begin with --", rest[0])
	}
	if s.grpcTLS && (s.Config.GRPC.TLS.Cert == "" || s.Config.GRPC.TLS.Key == "") {
		return s, fmt.Errorf("--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key")
	}
	s.finish()
	s.finishPlatforms(env)
	s.finishSpans(env)
	if err := s.finishCache(env); err != nil {
		return s, err
	}
	return s, s.Config.Validate()
}

// Usage writes the help of `sluice serve`.
func Usage(w io.Writer) error {
	if _, err := io.WriteString(w, "Usage: sluice serve --model-repository=DIR [flags]\n\n"+
		"Each flag can be given as --flag=value, as --flag value, or in the environment as SLUICE_FLAG\n"+
		"(upper case, underscores; values of repeatable flags separated by semicolons).\n"); err != nil {
		return err
	}
	return newServe().table().usage(w)
}

// ParseCheck reads the arguments after `sluice check`: repositories, and flags of
// serve, of which those of the repository, the workers and the backends matter.
func ParseCheck(args []string, env func(string) (string, bool)) (*Serve, error) {
	s := newServe()
	if err := s.platformEnvironment(env); err != nil {
		return s, err
	}
	rest, err := s.table().parse(args, env)
	s.Config.Repository.Paths = append(s.Config.Repository.Paths, rest...)
	s.Help = s.Help || err == nil && len(s.Config.Repository.Paths) == 0
	if err != nil || s.Help {
		return s, err
	}
	s.finish()
	s.finishPlatforms(env)
	s.finishSpans(env)
	if err := s.finishCache(env); err != nil {
		return s, err
	}
	return s, s.Config.Validate()
}

// ParseEngines reads the arguments after `sluice engines`: flags of serve, of which those of the workers and the backends matter.
func ParseEngines(args []string, env func(string) (string, bool)) (*Serve, error) {
	s := newServe()
	rest, err := s.table().parse(args, env)
	switch {
	case err != nil || s.Help:
		return s, err
	case len(rest) > 0:
		return s, fmt.Errorf("'%s' is not a flag", rest[0])
	}
	s.finish()
	return s, nil
}

func newServe() *Serve {
	s := &Serve{Config: gateway.DefaultConfig(), WakeLatency: -1}
	s.Config.Repository.TempDir = os.TempDir()
	return s
}

// finish fills what depends on several flags.
func (s *Serve) finish() {
	c := &s.Config
	if c.Metrics.Address == "" {
		c.Metrics.Address = c.HTTP.Address
	}
	s.finishTrace()
	if g := &c.GRPC; g.Transport == "library" && (g.MaxPingsWithoutData != 2 || g.MaxPingStrikes != 2 && g.MaxPingStrikes != 0) {
		s.Notices = append(s.Notices, "with --grpc-transport=library --grpc-http2-max-pings-without-data has no effect, and --grpc-http2-max-ping-strikes is 0 or 2")
	}
	if !s.grpcTLS { // the original ignores the files then
		if c.GRPC.TLS != (gateway.TLSFiles{}) {
			s.Notices = append(s.Notices, "gRPC speaks plain text: the --grpc-…-cert and --grpc-server-key files count with --grpc-use-ssl only")
		}
		c.GRPC.TLS = gateway.TLSFiles{}
	}
}

func (s *Serve) table() *set {
	groups := []group{
		{"Server", s.server()}, {"Logging", s.logging()}, {"Model Repository", s.repository()},
		{"Repository Agents and Clouds", s.remote()}, {"HTTP", s.http()},
		{"GRPC", s.grpc()}, {"Identity and Policy", s.identity()}, {"Shared Memory of Clients", s.memory()}, {"Metrics", s.metrics()}, {"Access Log", s.observe()}, {"Tracing", s.tracing()}, {"Workers", s.workers()}, {"Backend", s.backend()},
		{"Control Plane", s.xds()}, {"Rate Limiter", s.rateLimiter()}, {"Limits on Callers", s.limits()},
		{"Sequences", s.sequences()}, {"Load Reports", s.load()}, {"Response Cache", s.cache()},
		{"Not in this version", s.later()}, {"Accepted without effect", s.tuning()}, {"Deprecated", s.deprecated()},
	}
	at := slices.IndexFunc(groups, func(g group) bool { return g.title == "Identity and Policy" })
	return &set{groups: slices.Insert(groups, at, s.platforms()...)}
}

func (s *Serve) server() []flag {
	c := &s.Config
	return []flag{
		{name: "help", help: "Print this and exit.", set: boolInto(&s.Help)},
		{name: "id", arg: "string", def: c.ID, help: "Name of this server in its metadata.", set: stringInto(&c.ID)},
		{name: "exit-timeout-secs", arg: "integer", def: "30",
			help: "Seconds that requests in flight have to finish after SIGTERM.", set: durationInto(&c.ExitTimeout, time.Second)},
		{name: "exit-grace-ms", arg: "integer", def: "1000",
			help: "Milliseconds between answering not ready and refusing connections, so that load balancers can notice.",
			set:  durationInto(&c.ExitGrace, time.Millisecond)},
		{name: "cpu-wake-latency-us", arg: "integer", help: "Microseconds that a core which rests may take to wake, asked of the kernel while the server " +
			"runs (/dev/cpu_dma_latency must be there to be written). 0 keeps all cores from resting: a server with little to do answers sooner, " +
			"and the machine takes more power. Not asked unless given.", set: durationInto(&s.WakeLatency, time.Microsecond)},
		{name: "port-file", arg: "string", help: "Write the ports listened on to this file, as JSON, once the server is ready; " +
			"for port 0, which takes any free one.", set: stringInto(&c.PortFile)},
		{name: "max-body-memory-byte-size", arg: "integer", def: strconv.FormatInt(c.BodyLimit, 10),
			help: "Bytes of request bodies that are held at one time; further requests are refused with 503.",
			set:  intInto(&c.BodyLimit, 1<<20, math.MaxInt64)},
		{name: "max-response-memory-byte-size", arg: "integer", def: strconv.FormatInt(c.ResponseLimit, 10),
			help: "Bytes of heap memory that responses hold at one time until their clients have read them (docs/0021-abuse-and-soak.md); " +
				"further ones are refused with 503.",
			set: intInto(&c.ResponseLimit, 1<<20, math.MaxInt64)},
		{name: "max-classification-byte-size", arg: "integer", def: strconv.FormatInt(c.ClassesLimit, 10),
			help: "Bytes of the classes in one response; a request that asks for more of them is refused with 400.",
			set:  intInto(&c.ClassesLimit, 1<<10, 1<<31-1)},
		{name: "max-call-depth", arg: "integer", def: strconv.Itoa(c.CallDepth),
			help: "How deep models may call one another for one request. A call beyond it is refused.",
			set:  intInto(&c.CallDepth, 1, 1000)},
	}
}

func (s *Serve) logging() []flag {
	l := &s.Config.Log
	return []flag{
		{name: "log-verbose", arg: "integer", def: "0", help: "Level of verbose messages; 0 is none.", set: intInto(&l.Verbose, 0, math.MaxInt32)},
		{name: "log-info", arg: "boolean", def: "true", help: "Log messages of level info.", set: boolInto(&l.Info)},
		{name: "log-warning", arg: "boolean", def: "true", help: "Log warnings.", set: boolInto(&l.Warning)},
		{name: "log-error", arg: "boolean", def: "true", help: "Log errors.", set: boolInto(&l.Error)},
		{name: "log-format", arg: "string", def: l.Format, help: "default (LMMDD hh:mm:ss.ssssss) or ISO8601 (YYYY-MM-DDThh:mm:ssZ L).",
			set: stringInto(&l.Format)},
		{name: "log-file", arg: "string", set: stringInto(&l.File), help: "Append the log to this file in place of standard error. " +
			"A new one has mode 0640. It is opened again at SIGHUP and when it was moved."},
		{name: "log-file-max-byte-size", arg: "integer", def: strconv.FormatInt(l.MaxBytes, 10),
			help: "Bytes from which the log's file is moved to FILE.1, FILE.1 to FILE.2, and so on; 0: never.",
			set:  intInto(&l.MaxBytes, 0, 1<<50)},
		{name: "log-file-keep", arg: "integer", def: strconv.Itoa(l.Keep),
			help: "Files of the log that were moved and stay.", set: intInto(&l.Keep, 1, 1000)},
		{name: "log-rate", arg: "integer", def: strconv.Itoa(l.Rate), set: intInto(&l.Rate, 0, 1000000),
			help: "Lines a second that each place in the code may log, at each level; one that was quiet has ten seconds' " +
				"lines at once. The log says how many were left out. 0: no bound."},
	}
}

func (s *Serve) repository() []flag {
	r := &s.Config.Repository
	path := func(v string) error {
		if v == "" {
			return fmt.Errorf("the path is empty")
		}
		if cloud.Remote(v) {
			if _, err := cloud.Parse(v); err != nil {
				return err
			}
		}
		r.Paths = append(r.Paths, v)
		return nil
	}
	return append([]flag{
		{name: "model-repository", arg: "string", repeat: true, help: "Folder of models, or s3://, gs:// or as:// path of one; may be given several times. A model that is " +
			"in more than one of them is not available.", set: path},
		{name: "model-store", arg: "string", repeat: true, help: "The same as --model-repository.", set: path},
		{name: "exit-on-error", arg: "boolean", def: "true", help: "Exit when a model fails to load at the start.", set: boolInto(&r.ExitOnError)},
		{name: "disable-auto-complete-config", help: "Serve model configurations as they are written; nothing is read from model files.",
			set: boolInto(&r.NoAutoComplete)},
		{name: "strict-readiness", arg: "boolean", def: "true", help: "Ready only when all models are; otherwise when the server answers.",
			set: boolInto(&r.StrictReadiness)},
		{name: "model-load-thread-count", arg: "integer", def: "4", help: "Models loaded at one time. Callers share them " +
			"fairly; one caller never has them all, unless it is one.", set: intInto(&r.LoadThreads, 1, 1024)},
		{name: "model-load-queue-size", arg: "integer", def: "1000", help: "Load calls of one caller that wait or are " +
			"under way; more are refused with 429.", set: intInto(&r.LoadQueue, 1, 1_000_000)},
		{name: "model-load-max-secs", arg: "integer", def: "3600", help: "Seconds that the load of one version may take, " +
			"with its warm-up and further tries.", set: secondsInto(&r.LoadTime)},
		{name: "model-load-files-byte-size", arg: "integer", def: "17179869184", help: "Bytes of the files that came with " +
			"one caller's load calls, of models that serve and of loads under way; a load call with more is refused.",
			set: intInto(&r.LoadFiles, 1, math.MaxInt64)},
		{name: "model-warmup-max-requests", arg: "integer", def: strconv.Itoa(repository.DefaultWarmupRequests),
			help: "Requests that model_warmup of one version may run, of all samples on all instances; a version with more " +
				"is not loaded.", set: intInto(&r.WarmupRequests, 1, math.MaxInt32)},
		{name: "model-warmup-max-secs", arg: "integer", def: "300", help: "Seconds that the warm-up of one version may " +
			"take; a load that takes longer fails.", set: secondsInto(&r.WarmupTime)},
		{name: "model-load-retry-count", arg: "integer", def: "0", help: "Further tries to load a model that failed.", set: intInto(&r.LoadRetries, 0, 1000)},
	}, s.modelControl()...)
}

func (s *Serve) http() []flag {
	h := &s.Config.HTTP
	return append(listen("http", &h.Listen, 8000), []flag{
		{name: "http-transport", arg: "string", def: h.Transport, help: "What carries plain HTTP/1.1: sluice, a transport of our own, or library, net/http.",
			set: stringInto(&h.Transport)},
		{name: "http-max-input-size", arg: "integer", def: strconv.FormatInt(h.MaxInputSize, 10),
			help: "Bytes of JSON in a request, and of a body that is decompressed.", set: intInto(&h.MaxInputSize, 1, math.MaxInt64)},
		{name: "http-server-cert", arg: "string", help: "PEM file of the certificate; with --http-server-key the port speaks HTTPS.", set: stringInto(&h.TLS.Cert)},
		{name: "http-server-key", arg: "string", help: "PEM file of the key.", set: stringInto(&h.TLS.Key)},
		{name: "http-root-cert", arg: "string", help: "PEM file of the roots of client certificates.", set: stringInto(&h.TLS.Root)},
		{name: "http-use-ssl-mutual", arg: "boolean", def: "false", help: "Clients must show a certificate of --http-root-cert.", set: boolInto(&h.TLS.Mutual)},
	}...)
}

// listen are the flags that HTTP and gRPC share.
func listen(name string, l *gateway.Listen, port int) []flag {
	display := map[string]string{"http": "HTTP", "grpc": "gRPC"}[name]
	return []flag{
		{name: "allow-" + name, arg: "boolean", def: "true", help: "Serve " + display + ".", set: boolInto(&l.Allow)},
		{name: name + "-address", arg: "string", def: l.Address, help: "Address to listen on.", set: stringInto(&l.Address)},
		{name: name + "-port", arg: "integer", def: strconv.Itoa(port), help: "Port to listen on; 0 takes any free one, -1 none: only the Unix socket.", set: intInto(&l.Port, -1, 65535)},
		{name: "reuse-" + name + "-port", arg: "boolean", def: "false", help: "Let several servers listen on the port.", set: boolInto(&l.Reuse)},
		{name: name + "-unix-socket", arg: "string", help: "Listen on a Unix socket at this path as well.", set: stringInto(&l.Unix)},
		{name: name + "-header-forward-pattern", arg: "string", help: "Headers whose names match this regular expression (RE2, anywhere in " +
			"the name, any case) become request parameters.", set: stringInto(&l.Forward)},
	}
}

func (s *Serve) grpc() []flag {
	g := &s.Config.GRPC
	useTLS := func(mutual bool) func(string) error {
		return func(v string) error {
			on, err := boolean(v)
			if on && mutual {
				g.TLS.Mutual = true
			}
			s.grpcTLS = s.grpcTLS || on
			return err
		}
	}
	return append(listen("grpc", &g.Listen, 8001), []flag{
		{name: "grpc-use-ssl", arg: "boolean", def: "false", help: "Speak TLS.", set: useTLS(false)},
		{name: "grpc-use-ssl-mutual", arg: "boolean", def: "false", help: "Speak TLS with clients that show a certificate.", set: useTLS(true)},
		{name: "grpc-server-cert", arg: "string", help: "PEM file of the certificate.", set: stringInto(&g.TLS.Cert)},
		{name: "grpc-server-key", arg: "string", help: "PEM file of the key.", set: stringInto(&g.TLS.Key)},
		{name: "grpc-root-cert", arg: "string", help: "PEM file of the roots of client certificates.", set: stringInto(&g.TLS.Root)},
		{name: "grpc-infer-response-compression-level", arg: "string", def: g.Compression, help: "none, low, medium or high.",
			set: oneOf(&g.Compression, "none", "low", "medium", "high")},
		{name: "grpc-keepalive-time", arg: "integer", def: "7200000", help: "Milliseconds without traffic after which the server pings.",
			set: durationInto(&g.KeepaliveTime, time.Millisecond)},
		{name: "grpc-keepalive-timeout", arg: "integer", def: "20000", help: "Milliseconds that the answer to a ping may take.",
			set: durationInto(&g.KeepaliveTimeout, time.Millisecond)},
		{name: "grpc-keepalive-permit-without-calls", arg: "boolean", def: "false", help: "Ping clients without calls, and take their pings.",
			set: boolInto(&g.PermitWithoutCalls)},
		{name: "grpc-http2-max-pings-without-data", arg: "integer", def: "2", help: "Pings sent in a row while nothing else is; 0: no bound.",
			set: intInto(&g.MaxPingsWithoutData, 0, math.MaxInt32)},
		{name: "grpc-http2-max-ping-strikes", arg: "integer", def: "2", help: "Pings of a client that may come too early; one more ends the " +
			"connection. 0: no bound.", set: intInto(&g.MaxPingStrikes, 0, math.MaxInt32)},
		{name: "grpc-http2-min-recv-ping-interval-without-data", arg: "integer", def: "300000",
			help: "Milliseconds that must lie between two pings of a client.", set: durationInto(&g.MinPingInterval, time.Millisecond)},
		{name: "grpc-max-connection-age", arg: "integer", help: "Milliseconds that a connection may live.",
			set: durationInto(&g.MaxConnectionAge, time.Millisecond)},
		{name: "grpc-max-connection-age-grace", arg: "integer", help: "Milliseconds that its calls have then.",
			set: durationInto(&g.MaxConnectionAgeGrace, time.Millisecond)},
		{name: "grpc-transport", arg: "string", def: g.Transport, help: "What carries gRPC: sluice, a transport of our own, or library, grpc-go.",
			set: stringInto(&g.Transport)},
		{name: "grpc-standard-codec", arg: "boolean", def: "false", help: "Decode inference messages with the protobuf library.",
			set: boolInto(&g.StandardCodec)},
	}...)
}

func (s *Serve) metrics() []flag {
	m := &s.Config.Metrics
	return []flag{
		{name: "allow-metrics", arg: "boolean", def: "true", help: "Serve Prometheus metrics.", set: boolInto(&m.Allow)},
		{name: "allow-gpu-metrics", arg: "boolean", def: "true", help: "Figures of GPUs among the metrics.", set: boolInto(&m.GPU)},
		{name: "allow-cpu-metrics", arg: "boolean", def: "true", help: "Figures of the CPU among the metrics.", set: boolInto(&m.CPU)},
		{name: "metrics-address", arg: "string", help: "Address to listen on; that of HTTP if not given.", set: stringInto(&m.Address)},
		{name: "metrics-port", arg: "integer", def: "8002", help: "Port to listen on; 0 takes any free one, -1 none: only the Unix socket.", set: intInto(&m.Port, -1, 65535)},
		{name: "metrics-unix-socket", arg: "string", help: "Listen on a Unix socket at this path as well.", set: stringInto(&m.Unix)},
		{name: "metrics-interval-ms", arg: "float", def: "2000", help: "Milliseconds between readings of GPU figures.", set: func(v string) error {
			ms, err := strconv.ParseFloat(v, 64)
			if err != nil || ms < 1 || ms > 1e9 {
				return fmt.Errorf("'%s' is not a number of milliseconds", v)
			}
			m.Interval = time.Duration(ms * float64(time.Millisecond))
			return nil
		}},
		{name: "metrics-config", arg: "string=string", repeat: true, help: "counter_latencies=true|false, summary_latencies, " +
			"histogram_latencies, summary_quantiles=0.5:0.05,0.9:0.01, or principals=N (figures of the first N callers by name; default 0).", set: s.metricsConfig},
	}
}

func (s *Serve) metricsConfig(v string) error {
	m := &s.Config.Metrics
	key, value, ok := strings.Cut(v, "=")
	if !ok {
		return fmt.Errorf("'%s' is not <setting>=<value>", v)
	}
	switch key {
	case "counter_latencies":
		return boolInto(&m.Counters)(value)
	case "summary_latencies":
		return boolInto(&m.Summaries)(value)
	case "histogram_latencies":
		return boolInto(&m.Histograms)(value)
	case "principals":
		return intInto(&s.Config.Observe.Principals, 0, 10000)(value)
	case "summary_quantiles":
		q := map[float64]float64{}
		for _, pair := range strings.Split(value, ",") {
			a, b, _ := strings.Cut(pair, ":")
			at, err1 := strconv.ParseFloat(a, 64)
			e, err2 := strconv.ParseFloat(b, 64)
			if err1 != nil || err2 != nil || at <= 0 || at >= 1 || e <= 0 || e >= 1 {
				return fmt.Errorf("'%s' is not <quantile>:<error>, both between 0 and 1", pair)
			}
			q[at] = e
		}
		m.Quantiles = q
		return nil
	}
	return fmt.Errorf("no setting '%s'; there are counter_latencies, summary_latencies, histogram_latencies, summary_quantiles, principals", key)
}

func (s *Serve) workers() []flag {
	w := &s.Config.Workers
	return []flag{
		{name: "worker", arg: "host:port", repeat: true, help: "A worker that somebody else started (sluice-worker --listen), on another host, or " +
			"as unix:PATH on this one, which then shares memory; may be given several times.",
			set: func(v string) error { w.Remote = append(w.Remote, v); return nil }},
		{name: "worker-wait-secs", arg: "integer", def: "30", help: "Seconds that requests of a model and load calls wait while no worker " +
			"serves, as one does that is started again. Then they are refused with 503, further requests at once, and the repository " +
			"index says UNAVAILABLE, until a worker serves again.", set: secondsInto(&w.Wait)},
		{name: "worker-processes", arg: "string", def: string(client.SharedProcess), repeat: true, help: "Which models share a worker process of this host: " +
			"shared, all of them; backend, those of one backend; model, each has its own, whose end frees all its memory. " +
			"BACKEND=shared|backend|model is for one backend. A model's parameter " + client.ProcessParameter + " goes before it " +
			"(docs/0022-processes.md).", set: s.processes},
		{name: "worker-process-limit", arg: "integer", def: strconv.Itoa(w.ProcessLimit), help: "Worker processes beside the shared ones; a load " +
			"that needs one more is refused.", set: intInto(&w.ProcessLimit, 1, 4096)},
		{name: "local-workers", arg: "boolean", def: "true", help: "Start worker processes; false: those of --worker alone.", set: boolInto(&w.Local)},
		{name: "worker-cert", arg: "string", help: "PEM file of the certificate shown to workers of --worker.", set: stringInto(&w.TLS.Cert)},
		{name: "worker-key", arg: "string", help: "PEM file of its key.", set: stringInto(&w.TLS.Key)},
		{name: "worker-root-cert", arg: "string", help: "PEM file of the roots of those workers' certificates.", set: stringInto(&w.TLS.Root)},
		{name: "worker-insecure", arg: "boolean", def: "false", help: "Reach workers of --worker without TLS; on loopback only.", set: boolInto(&w.Insecure)},
		{name: "worker-binary", arg: "string", help: "Path of sluice-worker; beside sluice if not given.", set: stringInto(&w.Binary)},
		{name: "worker-stream", arg: "boolean", def: "false", help: "Carry batches to workers of this host over gRPC in place of shared memory.",
			set: boolInto(&w.Stream)},
		{name: "open-request-timeout-secs", arg: "integer", def: "300", help: "Seconds for which nothing may be heard of a request that a backend keeps " +
			"open (answers of its own time), in workers that are started; it is then failed. One with a timeout has that, and 30 s to end. " +
			"Workers of --worker have a flag of their own; what they leave open for this long and 30 s more is failed here.",
			set: durationInto(&w.OpenTimeout, time.Second)},
		{name: "gpus", arg: "integers", help: "CUDA ordinals to start workers for, separated by commas; 'none' for none. All that are found if not given.",
			set: func(v string) error { return s.gpus(v) }},
		{name: "onnxruntime", arg: "string", help: "Path of ONNX Runtime's shared library; the worker finds it if not given.", set: func(v string) error {
			w.Env = append(w.Env, "SLUICE_ONNXRUNTIME="+v)
			return nil
		}},
		{name: "engines-directory", arg: "string", help: "Folder of the engines of other backends, one folder in it for each; engines/ beside " +
			"sluice-worker if not given (docs/engines.md).", set: func(v string) error {
			path, err := filepath.Abs(v)
			w.Env = append(w.Env, "SLUICE_ENGINES="+path)
			return err
		}},
		{name: "request-arena-byte-size", arg: "integer", def: strconv.FormatInt(w.RequestArena, 10),
			help: "Bytes of shared memory for inputs of requests.", set: intInto(&w.RequestArena, 1, 1<<46)},
		{name: "response-arena-byte-size", arg: "integer", def: strconv.FormatInt(w.ResponseArena, 10),
			help: "Bytes of shared memory for outputs, for each worker.", set: intInto(&w.ResponseArena, 1, 1<<46)},
	}
}

// processes reads `<way>` or `<backend>=<way>`.
func (s *Serve) processes(v string) error {
	backend, way, ok := strings.Cut(v, "=")
	if !ok {
		backend, way = "", v
	}
	how := client.Sharing(way)
	if !how.Valid() || ok && backend == "" {
		return fmt.Errorf("'%s' is not [BACKEND=]%s, %s or %s", v, client.SharedProcess, client.BackendProcess,
			client.ModelProcess)
	}
	w := &s.Config.Workers
	if w.Processes == nil {
		w.Processes = map[string]client.Sharing{}
	}
	w.Processes[backend] = how
	return nil
}

func (s *Serve) gpus(v string) error {
	s.Config.Workers.GPUs = []int{}
	if v == "none" || v == "" {
		return nil
	}
	for _, part := range strings.Split(v, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 0 {
			return fmt.Errorf("'%s' is not a CUDA ordinal", part)
		}
		s.Config.Workers.GPUs = append(s.Config.Workers.GPUs, n)
	}
	return nil
}

func (s *Serve) backend() []flag {
	r := &s.Config.Repository
	return []flag{
		{name: "backend-config", arg: "string,string=string", repeat: true, help: "A setting of a backend: onnxruntime,intra-op-num-threads=1; " +
			"of all backends: default-max-batch-size=4.", set: s.backendConfig},
		{name: "backend-directory", arg: "string", def: r.Backends.Directory, help: "Folder of backends: that of a model's backend is searched for the " +
			"file that makes it, and programs <backend>/sluice-worker-<backend> are started as workers.",
			set: stringInto(&r.Backends.Directory)},
		{name: "allow-model-backends", arg: "boolean", def: "false", help: "Run the file of a backend also from the folder of a model or of its version: " +
			"whoever may write there runs code.", set: boolInto(&r.Backends.InModels)},
	}
}

// backendConfig reads `<backend>,<setting>=<value>` or `<setting>=<value>` for all.
func (s *Serve) backendConfig(v string) error {
	backend, setting, ok := strings.Cut(v, ",")
	if !ok {
		backend, setting = "", v
	}
	key, value, ok := strings.Cut(setting, "=")
	if !ok || key == "" {
		return fmt.Errorf("'%s' is not <backend>,<setting>=<value>", v)
	}
	options := s.Config.Repository.BackendOptions
	if options[backend] == nil {
		options[backend] = map[string]string{}
	}
	options[backend][key] = value
	return nil
}

// secondsInto reads whole seconds, at least one and at most those of a year.
func secondsInto(p *time.Duration) func(string) error {
	return func(v string) error {
		n := int64(0)
		if err := intInto(&n, 1, 366*24*3600)(v); err != nil {
			return err
		}
		*p = time.Duration(n) * time.Second
		return nil
	}
}

func durationInto(p *time.Duration, unit time.Duration) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return fmt.Errorf("'%s' is not an integer", v)
		}
		if n < 0 || n > int64(math.MaxInt64/unit) {
			return fmt.Errorf("%d is not in [0, %d]", n, int64(math.MaxInt64/unit))
		}
		*p = time.Duration(n) * unit
		return nil
	}
}

func oneOf(p *string, values ...string) func(string) error {
	return func(v string) error {
		for _, ok := range values {
			if v == ok {
				*p = v
				return nil
			}
		}
		return fmt.Errorf("'%s' is not one of %s", v, strings.Join(values, ", "))
	}
}
