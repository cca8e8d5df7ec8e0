// Command loadgen drives one model of a v2 server with prebuilt requests over HTTP/1.1
// or gRPC, in a closed loop, at as little cost of its own as it can: the bytes of a
// request are made once, connections are raw, answers are checked for their status and
// otherwise skipped. It prints one JSON object, at the end or when it is interrupted.
//
//	loadgen -protocol grpc -address 127.0.0.1:8001 -model mlp -input INPUT0 -shape 1,512 -concurrency 8
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	protocol, address, model, input string
	shape                           []int64
	shared                          bool // HTTP: the input lies in shared memory
	output                          string
	outputBytes                     int64 // of output, which goes to shared memory; 0: it is answered
	concurrency, streams            int
	warmup, duration                time.Duration
}

// result is what is printed.
type result struct {
	Protocol    string  `json:"protocol"`
	Model       string  `json:"model"`
	Concurrency int     `json:"concurrency"`
	Seconds     float64 `json:"seconds"` // of the measured time
	Requests    int     `json:"requests"`
	Errors      int     `json:"errors"`
	FirstError  string  `json:"first_error,omitempty"`
	// Failures counts errors by their texts, up to maxFailures of them.
	Failures  map[string]int `json:"failures,omitempty"`
	PerSecond float64        `json:"per_second"`
	P50       float64        `json:"p50_us"`
	P99       float64        `json:"p99_us"`
	Max       float64        `json:"max_us"`
	Mean      float64        `json:"mean_us"`
	CPU       float64        `json:"client_cpu_us"` // of this process, for each request
}

func main() {
	o, procs, err := parse(os.Args[1:])
	if err == nil {
		runtime.GOMAXPROCS(procs)
		interrupted, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		var r result
		if r, err = run(context.Background(), interrupted.Done(), o); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(r)
		}
	}
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, int, error) {
	var o options
	f := flag.NewFlagSet("loadgen", flag.ContinueOnError)
	f.StringVar(&o.protocol, "protocol", "http", "http or grpc")
	f.StringVar(&o.address, "address", "127.0.0.1:8000", "host:port")
	f.StringVar(&o.model, "model", "mlp", "model name")
	f.StringVar(&o.input, "input", "INPUT0", "name of its one FP32 input")
	shape := f.String("shape", "1,512", "shape of the input, the batch dimension first")
	f.IntVar(&o.concurrency, "concurrency", 1, "requests in flight")
	f.IntVar(&o.streams, "streams", 6, "gRPC: requests in flight on one connection")
	f.DurationVar(&o.warmup, "warmup", 300*time.Millisecond, "time before the measurement")
	f.DurationVar(&o.duration, "duration", 2*time.Second, "measured time")
	f.BoolVar(&o.shared, "shared", false, "HTTP: the input lies in shared memory of this host, which is registered")
	f.StringVar(&o.output, "output", "OUTPUT0", "with -output-bytes: name of the one output")
	f.Int64Var(&o.outputBytes, "output-bytes", 0, "with -shared: bytes of the output, which goes to shared memory too; 0: it is answered")
	procs := f.Int("procs", 1, "threads that run at once")
	if err := f.Parse(args); err != nil {
		return o, 0, err
	}
	for part := range strings.SplitSeq(*shape, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(part), 10, 64)
		if err != nil || n < 0 {
			return o, 0, fmt.Errorf("-shape %q: want numbers divided by commas", *shape)
		}
		o.shape = append(o.shape, n)
	}
	if o.protocol != "http" && o.protocol != "grpc" {
		return o, 0, fmt.Errorf("-protocol %q: want http or grpc", o.protocol)
	}
	if (o.shared || o.outputBytes != 0) && (o.protocol != "http" || !o.shared || o.outputBytes < 0) {
		return o, 0, errors.New("-shared is for HTTP, and -output-bytes for -shared")
	}
	if o.concurrency < 1 || o.streams < 1 || o.duration <= 0 {
		return o, 0, errors.New("-concurrency, -streams and -duration must be positive")
	}
	return o, *procs, nil
}

// run measures once. Connections that fail at the start are its error; answers that
// are no success are counted. When stop closes, no further request is sent.
func run(ctx context.Context, stop <-chan struct{}, o options) (result, error) {
	begin := time.Now().Add(o.warmup)
	end := begin.Add(o.duration)
	ctx, cancel := context.WithDeadline(ctx, end.Add(20*time.Second))
	defer cancel()
	var drivers []func(*record) error
	switch {
	case o.shared:
		m, err := share(ctx, o)
		if err != nil {
			return result{}, err
		}
		defer m.remove()
		for i := range o.concurrency {
			request := m.request(o, i)
			drivers = append(drivers, func(r *record) error { return driveHTTP(ctx, o.address, request, r) })
		}
	case o.protocol == "http":
		request := httpRequest(o)
		for range o.concurrency {
			drivers = append(drivers, func(r *record) error { return driveHTTP(ctx, o.address, request, r) })
		}
	default:
		message, err := grpcMessage(o)
		if err != nil {
			return result{}, err
		}
		for left := o.concurrency; left > 0; left -= o.streams {
			n := min(left, o.streams)
			drivers = append(drivers, func(r *record) error { return driveGRPC(ctx, o.address, message, n, r) })
		}
	}
	records := make([]record, len(drivers))
	errs := make([]error, len(drivers))
	var cpu atomic.Int64
	var all sync.WaitGroup
	timer := time.AfterFunc(time.Until(begin), func() { cpu.Store(int64(processCPU())) })
	defer timer.Stop()
	for i, drive := range drivers {
		records[i] = record{begin: begin, end: end, stop: stop}
		all.Go(func() { errs[i] = drive(&records[i]) })
	}
	all.Wait()
	spent := processCPU() - time.Duration(cpu.Load())
	if err := errors.Join(errs...); err != nil {
		return result{}, err
	}
	return sum(o, records, min(time.Since(begin), o.duration), spent), nil
}

// record is what one connection gathers; its goroutine alone touches it.
type record struct {
	begin, end time.Time
	stop       <-chan struct{}
	latencies  []time.Duration // of the requests that began in the measured time
	errors     int
	firstError string
	failures   map[string]int // by text
}

// maxFailures bounds the texts that a record keeps.
const maxFailures = 16

// add notes one answer; it says whether another request may be sent.
func (r *record) add(sent, now time.Time, failure string) bool {
	if failure != "" {
		r.errors++
		if r.firstError == "" {
			r.firstError = failure
		}
		if r.failures == nil {
			r.failures = map[string]int{}
		}
		if _, known := r.failures[failure]; known || len(r.failures) < maxFailures {
			r.failures[failure]++
		}
	} else if !now.Before(r.begin) && !now.After(r.end) {
		r.latencies = append(r.latencies, now.Sub(sent))
	}
	select {
	case <-r.stop:
		return false
	default:
		return now.Before(r.end)
	}
}

// sum puts the connections' records together.
func sum(o options, records []record, took, cpu time.Duration) result {
	r := result{Protocol: o.protocol, Model: o.model, Concurrency: o.concurrency, Seconds: took.Seconds()}
	var all []time.Duration
	var total time.Duration
	for i := range records {
		all = append(all, records[i].latencies...)
		r.Errors += records[i].errors
		if r.FirstError == "" {
			r.FirstError = records[i].firstError
		}
	}
	for i := range records {
		for text, n := range records[i].failures {
			if r.Failures == nil {
				r.Failures = map[string]int{}
			}
			r.Failures[text] += n
		}
	}
	r.Requests = len(all)
	if len(all) == 0 {
		return r
	}
	slices.Sort(all)
	for _, l := range all {
		total += l
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	r.PerSecond = float64(len(all)) / r.Seconds
	r.P50, r.P99, r.Max = us(all[len(all)/2]), us(all[len(all)*99/100]), us(all[len(all)-1])
	r.Mean = us(total) / float64(len(all))
	r.CPU = us(cpu) / float64(len(all))
	return r
}

// processCPU is the time that this process has computed.
func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
