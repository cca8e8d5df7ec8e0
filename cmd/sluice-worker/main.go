// Command sluice-worker is the worker process: it owns a device and executes models
// for gateways. A gateway starts it with --inherited; with --listen it serves gateways
// of other hosts over mutual TLS, or those of this host over a Unix socket.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-serve/sluice/cmd/internal/timerslack"
	"github.com/sluice-serve/sluice/gateway/logging"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/fil"
	"github.com/sluice-serve/sluice/workers/backend/fil/forest"
	"github.com/sluice-serve/sluice/workers/backend/identity"
	"github.com/sluice-serve/sluice/workers/backend/onnxruntime"
	"github.com/sluice-serve/sluice/workers/backend/openvino"
	"github.com/sluice-serve/sluice/workers/backend/python"
	"github.com/sluice-serve/sluice/workers/backend/repeat"
	"github.com/sluice-serve/sluice/workers/backend/square"
	"github.com/sluice-serve/sluice/workers/backend/tritonhost"
)

// version is set by the build (-ldflags -X main.version=…).
var version = "0.1.0"

// openTimeout is the environment's --open-request-timeout, by which gateways tell it.
const openTimeout = "SLUICE_OPEN_REQUEST_TIMEOUT"

type options struct {
	config      workers.Config
	inherited   bool
	device      string
	onnxruntime string
	engines     string
	triton      string
	probe       string
	verbose     bool
	version     bool
}

func parse(args []string) (options, error) {
	var o options
	f := pflag.NewFlagSet("sluice-worker", pflag.ContinueOnError)
	f.BoolVar(&o.inherited, "inherited", false, "serve the gateway that started this process, over descriptors 3 to 8")
	f.StringVar(&o.device, "device", "cpu", "device that this worker owns: cpu or gpu:N")
	f.StringVar(&o.config.Listen, "listen", "", "serve gateways at this address: host:port, or unix:PATH for those of this host, which share memory")
	f.StringVar(&o.config.TLS.Cert, "tls-cert", "", "PEM file of this worker's certificate")
	f.StringVar(&o.config.TLS.Key, "tls-key", "", "PEM file of the certificate's key")
	f.StringVar(&o.config.TLS.CA, "tls-ca", "", "PEM file of the authorities of the gateways' certificates")
	f.BoolVar(&o.config.Insecure, "insecure", false, "serve a loopback address without TLS")
	f.DurationVar(&o.config.ExitTimeout, "exit-timeout", 0, "longest wait for batches in flight when stopping (default 30s)")
	f.DurationVar(&o.config.OpenTimeout, "open-request-timeout", 0,
		"how long nothing may be heard of a request without a timeout of its own that a backend "+
			"keeps open; it is then failed (environment: "+openTimeout+"; default 5m)")
	f.Int64Var(&o.config.DeviceMemory, "device-memory-byte-size", workers.DefaultDeviceMemory,
		"most memory of the GPU for tensors that instances are handed or leave for each other; 0: none")
	f.StringVar(&o.onnxruntime, "onnxruntime", os.Getenv("SLUICE_ONNXRUNTIME"),
		"shared library of ONNX Runtime (environment: SLUICE_ONNXRUNTIME; default: lib/libonnxruntime.so.* beside this program)")
	f.StringVar(&o.engines, "engines-directory", os.Getenv("SLUICE_ENGINES"),
		"folder of the other engines, one folder in it for each (environment: SLUICE_ENGINES; default: engines/ beside this program)")
	f.StringVar(&o.triton, "tritonserver-library", os.Getenv("SLUICE_TRITONSERVER_LIBRARY"),
		"library that Triton's own backends link (environment: SLUICE_TRITONSERVER_LIBRARY; default: triton/libtritonserver.so beside this program)")
	f.StringVar(&o.probe, "probe", "", "say by the exit status whether a worker listens at this address, and do nothing else")
	f.BoolVar(&o.verbose, "log-verbose", false, "log what is of interest for debugging only")
	f.BoolVar(&o.version, "version", false, "print the version")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.onnxruntime == "" {
		o.onnxruntime = libraryBeside("lib", "libonnxruntime.so.*")
	}
	if o.triton == "" {
		o.triton = libraryBeside("triton", "libtritonserver.so")
	}
	if o.engines == "" {
		o.engines = beside("engines")
	}
	var err error
	if v := os.Getenv(openTimeout); v != "" && o.config.OpenTimeout == 0 {
		if o.config.OpenTimeout, err = time.ParseDuration(v); err != nil {
			return o, fmt.Errorf("%s: %w", openTimeout, err)
		}
	}
	if o.config.Device, err = workers.ParseDevice(o.device); err != nil {
		return o, err
	}
	if o.config.DeviceMemory == 0 {
		o.config.DeviceMemory = 1 // less than any tensor takes
	}
	o.config.Version = version
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case !o.version && o.probe == "" && o.inherited == (o.config.Listen != ""):
		return o, errors.New("exactly one of --inherited and --listen is needed")
	}
	return o, nil
}

// libraryBeside is the last file of a pattern in a folder beside this program, its newest version; "" for none.
func libraryBeside(folder, pattern string) string {
	found, err := filepath.Glob(filepath.Join(beside(folder), pattern))
	if err != nil || len(found) == 0 {
		return ""
	}
	return slices.Max(found)
}

// beside is the path of what has a name beside this program.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}

func main() {
	if status, is := forest.Child(); is {
		os.Exit(status)
	}
	if err := timerslack.Narrow(); err != nil {
		fmt.Fprintln(os.Stderr, "sluice-worker: timers are late:", err)
	}
	// Tensors lie in the arenas, so the heap is small: collect rarely, up to a bound.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(512 << 20)
	o, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err == nil && o.version:
		fmt.Println("sluice-worker", version)
		return
	case err == nil && o.probe != "":
		err = workers.Probe(context.Background(), o.probe)
	case err == nil:
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sluice-worker:", err)
		os.Exit(1)
	}
}

// timerSlack is how late a timer of Go's monitor thread may be. At each of its turns it looks
// at the instances' threads, takes their processors away while they wait or compute, and has
// them preempted every 10 ms, which wakes two more threads: each turn less is a gain.
const timerSlack = 50 * time.Millisecond

// most bounds the processors of Go, each of which costs some memory.
const most = 256

// processors sets how many processors Go has: one for each instance, since whoever waits or
// computes keeps its own until the monitor thread comes by, and two for all else. Without
// instances there are as many as Go wants, or the environment.
func processors(log *slog.Logger) func(instances int) {
	least := runtime.GOMAXPROCS(0)
	before := 0
	return func(instances int) {
		runtime.GOMAXPROCS(min(max(least, instances+2), max(least, most)))
		if instances > before { // it has a thread that others had
			if err := timerslack.Narrow(); err != nil {
				log.Warn("timers are late", "error", err)
			}
		}
		before = instances
	}
}

func run(o options) error {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: logging.Cut}
	var handler slog.Handler = slog.NewTextHandler(os.Stderr, options)
	if o.inherited { // the gateway reads the records and logs them as its own
		handler = slog.NewJSONHandler(os.Stderr, options)
	}
	// A library may log for each request, and as much as it likes.
	log := slog.New(logging.Bounded(handler, logging.DefaultSettings().Rate))
	slog.SetDefault(log) // for libraries that log
	if err := timerslack.Widen(timerSlack); err != nil {
		log.Warn("the timers stay exact, which costs CPU", "error", err)
	}
	deps := workers.Deps{Log: log, Exit: os.Exit, Instances: processors(log), Backends: map[string]backend.Factory{
		"fil":         fil.New(o.engines),
		"identity":    identity.New,
		"onnxruntime": onnxruntime.New(o.onnxruntime),
		"openvino":    openvino.New(o.engines),
		"python":      python.New,
		"repeat":      repeat.New,
		"square":      square.New,
		"tensorflow":  openvino.NewTensorFlow(o.engines),
		"triton":      tritonhost.New(o.triton),
	}}
	if o.config.Device.GPU && os.Getenv("CUDA_DEVICE_ORDER") == "" {
		// NVML counts GPUs by their place on the bus; CUDA does so when told to.
		if err := os.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID"); err != nil {
			return err
		}
	}
	var done func()
	deps.GPU, done = workers.OpenGPU(o.config.Device, os.Getenv("CUDA_VISIBLE_DEVICES"))
	defer done()
	ctx := context.Background()
	if o.inherited {
		// The gateway ends this process by closing the connection, after it has drained.
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		var err error
		if deps.Conn, deps.Shared, err = workers.Inherit(); deps.Conn == nil {
			return err
		} else if err != nil {
			log.Warn("no memory is shared with the gateway", "error", err)
		}
	} else {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
		defer stop()
	}
	w, err := workers.New(o.config, deps)
	if err != nil {
		return err
	}
	return w.Run(ctx, func(a net.Addr) { log.Info("serving", "address", a.String(), "device", o.device) })
}
