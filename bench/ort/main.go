//go:build onnxruntime && cgo

// Command ort runs a model in a bare loop, through the C layer of the worker and without
// any server: what ONNX Runtime itself costs, for `make bench` to compare with.
//
//	SLUICE_ONNXRUNTIME=libonnxruntime.so ort -batches 1,8,32 -seconds 2 model.onnx
//
// It prints one JSON object. Sessions are made as the worker makes them by default: one
// thread, no spinning, every graph optimisation. The loop itself is C; with -go each run
// is a call from Go, as in the worker.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-serve/sluice/workers/backend/onnxruntime/ort"
)

type config struct {
	library, model string
	batches        []int64
	duration       time.Duration
	intra          int
	dims           int64
	viaGo          bool
}

// report is what is printed.
type report struct {
	Library string   `json:"library_version"`
	Model   string   `json:"model"`
	Intra   int      `json:"intra_op_threads"`
	Results []result `json:"results"`
}

// result is one batch size. Times are microseconds; CPU is user and system time of the
// whole process.
type result struct {
	Batch       int64   `json:"batch"`
	Runs        int64   `json:"runs"`
	Wall        float64 `json:"wall_us_per_run"`
	WallMin     float64 `json:"wall_us_min"` // of single runs with -go, else of means of about 2 ms
	WallP50     float64 `json:"wall_us_p50"` // likewise
	CPU         float64 `json:"cpu_us_per_run"`
	WallPerItem float64 `json:"wall_us_per_item"`
	CPUPerItem  float64 `json:"cpu_us_per_item"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, err := parse(os.Args[1:])
	if err == nil {
		err = run(ctx, cfg)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "ort:", err)
		os.Exit(1)
	}
}

func parse(args []string) (config, error) {
	var cfg config
	f := flag.NewFlagSet("ort", flag.ContinueOnError)
	f.StringVar(&cfg.library, "library", os.Getenv("SLUICE_ONNXRUNTIME"), "path of ONNX Runtime's shared library")
	batches := f.String("batches", "1,8,32", "batch sizes, with commas between")
	seconds := f.Float64("seconds", 2, "how long each batch size runs")
	f.IntVar(&cfg.intra, "intra", 1, "intra-op threads")
	f.Int64Var(&cfg.dims, "dims", 1, "size of dimensions, other than the first, that the model leaves open")
	f.BoolVar(&cfg.viaGo, "go", false, "call each run from Go, as the worker does")
	if err := f.Parse(args); err != nil {
		return cfg, err
	}
	if f.NArg() != 1 {
		return cfg, fmt.Errorf("want one model file, got %d arguments", f.NArg())
	}
	cfg.model = f.Arg(0)
	cfg.duration = time.Duration(*seconds * float64(time.Second))
	for _, s := range strings.Split(*batches, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
		if err != nil || n < 1 {
			return cfg, fmt.Errorf("'%s' is no batch size", s)
		}
		cfg.batches = append(cfg.batches, n)
	}
	if cfg.library == "" {
		return cfg, errors.New("no library: set SLUICE_ONNXRUNTIME or -library")
	}
	return cfg, nil
}

func run(ctx context.Context, cfg config) error {
	lib, err := ort.Open(cfg.library, ort.Config{Log: slog.Default()})
	if err != nil {
		return err
	}
	defer lib.Close()
	s, err := lib.NewSession(ctx, cfg.model, ort.SessionConfig{Graph: ort.GraphAll, Intra: cfg.intra, Inter: 1,
		Entries: []ort.Option{{Key: "session.intra_op.allow_spinning", Value: "0"}}})
	if err != nil {
		return err
	}
	defer s.Close()
	r := report{Library: lib.Version(), Model: cfg.model, Intra: cfg.intra}
	for _, n := range cfg.batches {
		res, err := measure(ctx, s, cfg, n)
		if err != nil {
			return fmt.Errorf("batch %d: %w", n, err)
		}
		r.Results = append(r.Results, res)
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// tensor is an input or an output of the loop.
type tensor struct {
	typ   ort.Type
	shape []int64
	count int64
	data  []byte // nil: ONNX Runtime allocates this output
}

var sizes = map[ort.Type]int64{ort.Bool: 1, ort.Uint8: 1, ort.Int8: 1, ort.Uint16: 2, ort.Int16: 2, ort.Float16: 2,
	ort.BFloat16: 2, ort.Float: 4, ort.Int32: 4, ort.Uint32: 4, ort.Double: 8, ort.Int64: 8, ort.Uint64: 8}

// newTensor fills a tensor of a batch of n with small positive numbers.
func newTensor(t ort.TensorInfo, n, open int64) (tensor, error) {
	size, ok := sizes[t.Type]
	if !ok || t.Rank < 0 {
		return tensor{}, fmt.Errorf("'%s' is %s of rank %d, which can't be made up", t.Name, t.Type, t.Rank)
	}
	out := tensor{typ: t.Type, shape: slices.Clone(t.Shape), count: 1}
	for i, d := range out.shape {
		if d < 0 && i == 0 {
			d = n
		} else if d < 0 {
			d = open
		}
		out.shape[i] = d
		out.count *= d
	}
	out.data = make([]byte, out.count*size)
	for i := range out.data {
		if int64(i)%size == size-1 && size > 1 {
			out.data[i] = 0x3c // 0.01 to 1 as a float
		} else {
			out.data[i] = byte(i/int(size)) & 1
		}
	}
	return out, nil
}

func measure(ctx context.Context, s *ort.Session, cfg config, n int64) (result, error) {
	call, err := s.NewCall(nil)
	if err != nil {
		return result{}, err
	}
	defer call.Close()
	var in, out []tensor
	for _, t := range s.Inputs {
		if t.Optional {
			continue
		}
		made, err := newTensor(t, n, cfg.dims)
		if err != nil {
			return result{}, err
		}
		in = append(in, made)
	}
	for _, t := range s.Outputs {
		made := tensor{}
		if t.Rank > 0 && !slices.Contains(t.Shape[1:], -1) {
			if made, err = newTensor(t, n, cfg.dims); err != nil {
				return result{}, err
			}
		}
		out = append(out, made)
	}
	if err := bind(call, in, out); err != nil {
		return result{}, err
	}
	begin := time.Now()
	if err := call.Repeat(20); err != nil {
		return result{}, err
	}
	call.Release()
	chunk := int(max(1, 2*time.Millisecond*20/time.Since(begin)))
	if cfg.viaGo {
		chunk = 1
	}
	return loop(ctx, cfg.duration, n, chunk, func() error { return once(call, in, out, chunk) })
}

func bind(call *ort.Call, in, out []tensor) error {
	call.Reset()
	for i, t := range in {
		if err := call.SetInput(i, t.typ, t.shape, t.count, t.data); err != nil {
			return err
		}
	}
	for i, t := range out {
		if err := call.SetOutput(i, t.typ, t.shape, t.data); err != nil {
			return err
		}
	}
	return nil
}

func once(call *ort.Call, in, out []tensor, times int) error {
	if err := bind(call, in, out); err != nil {
		return err
	}
	defer call.Release()
	if times == 1 {
		return call.Run()
	}
	return call.Repeat(times)
}

// loop calls f, which runs the model chunk times, for the duration.
func loop(ctx context.Context, duration time.Duration, n int64, chunk int, f func() error) (result, error) {
	walls := make([]time.Duration, 0, 1<<16)
	cpu, err := cpuTime()
	if err != nil {
		return result{}, err
	}
	begin := time.Now()
	for last := begin; last.Sub(begin) < duration && ctx.Err() == nil; {
		if err := f(); err != nil {
			return result{}, err
		}
		now := time.Now()
		walls = append(walls, now.Sub(last))
		last = now
	}
	wall := time.Since(begin)
	end, err := cpuTime()
	if err != nil {
		return result{}, err
	}
	if err := ctx.Err(); err != nil {
		return result{}, err
	}
	slices.Sort(walls)
	runs := int64(len(walls) * chunk)
	r := result{Batch: n, Runs: runs, Wall: micros(wall) / float64(runs), CPU: micros(end-cpu) / float64(runs),
		WallMin: micros(walls[0]) / float64(chunk), WallP50: micros(walls[len(walls)/2]) / float64(chunk)}
	r.WallPerItem, r.CPUPerItem = r.Wall/float64(n), r.CPU/float64(n)
	return r, nil
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

// cpuTime is what this process has used.
func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
