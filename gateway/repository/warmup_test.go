package repository

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// warmExecutor answers every batch with answer, from another goroutine.
type warmExecutor struct {
	answer func(b *infer.Batch) *infer.Result // nil: never

	mu      sync.Mutex
	batches []*infer.Batch
	cancels int
	running sync.WaitGroup
}

func (e *warmExecutor) Execute(b *infer.Batch) {
	e.mu.Lock()
	e.batches = append(e.batches, b)
	e.mu.Unlock()
	if e.answer != nil {
		e.running.Go(func() { b.Deliver(e.answer(b)) })
	}
}

func (e *warmExecutor) Cancel(*infer.Batch, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cancels++
}

func (*warmExecutor) Occupied(uint64) bool    { return false }
func (*warmExecutor) Place() (string, string) { return "", "" }

// seen says what the batches were: rows, and name, shape and data of the inputs.
func (e *warmExecutor) seen() string {
	var all []string
	for _, b := range e.batches {
		text := fmt.Sprint(len(b.Requests), "/", b.Rows)
		for _, in := range b.Inputs {
			text += fmt.Sprintf(" %s%v%x", in.Name, in.Shape, bytes.Join(in.Segments, nil))
		}
		all = append(all, text)
	}
	return strings.Join(all, "\n")
}

// warmStats counts what is done.
type warmStats struct {
	fakeStats
	done, failed, batches, rows int
}

func (s *warmStats) Done(_ *infer.Request, err error) {
	if err != nil {
		s.failed++
	}
	s.done++
}
func (s *warmStats) Executed(_, rows int, _ infer.ComputeTimes) { s.batches++; s.rows += rows }
func (s *warmStats) Queued(int)                                 {}
func (s *warmStats) Snapshot() *inference.ModelStatistics       { return &inference.ModelStatistics{} }

// warmed makes the samples of a config and runs them on the executors.
func warmed(t *testing.T, ctx context.Context, config string, stats Stats, execs ...infer.Executor) error {
	t.Helper()
	cfg := &configpb.ModelConfig{Name: "m"}
	if err := prototext.Unmarshal([]byte(config), cfg); err != nil {
		t.Fatal(err)
	}
	p := &Plan{cfg: &Config{}, Folder: Folder{Name: "m", Dir: write(t, t.TempDir(), map[string]string{"warmup/f": "abcdefgh", "secret": "x"})}}
	v := &VersionPlan{Spec: LoadSpec{Name: "m", Version: 1, Config: cfg}}
	samples, err := p.samples(v)
	if err != nil {
		return err
	}
	m := newModel(v, func() {})
	m.stats = stats
	ctx, fail := context.WithCancelCause(ctx)
	return New(Config{}, deps(&fakeWorkers{})).warmupOf(m, samples).load(ctx, fail, execs)
}

func fine(*infer.Batch) *infer.Result { return &infer.Result{} }

const warmInput = `max_batch_size: 4 input { name: "I" data_type: TYPE_INT16 dims: -1 } `

func TestWarmUpRunsSamples(t *testing.T) {
	zero := `model_warmup { name: "s" batch_size: 2 count: 2 inputs { key: "I" value { data_type: TYPE_INT16 dims: 1 zero_data: true } } }`
	tests := []struct{ name, config, want string }{
		{"count and size", warmInput + zero, "2/2 I[2 1]00000000\n2/2 I[2 1]00000000"},
		{"file", warmInput + strings.ReplaceAll(strings.ReplaceAll(zero, "zero_data: true", `input_data_file: "f"`), "count: 2", ""), "2/2 I[2 1]61626162"},
		{"no batch dimension", `input { name: "I" data_type: TYPE_STRING dims: 2 } model_warmup { batch_size: 1 inputs { key: "I" value {
			data_type: TYPE_STRING dims: 2 random_data: true } } }`, "1/0 I[2]0000000000000000"},
		{"no size", warmInput + strings.Replace(zero, "batch_size: 2", "", 1), ""},
		{"ragged", strings.Replace(warmInput, "dims: -1", "dims: -1 allow_ragged_batch: true", 1) + strings.Replace(zero, "count: 2", "", 1) +
			`batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_INT32 source_input: "I" }`, "2/2 I[2]00000000 N[2]0100000001000000"},
		{"sequence", warmInput + strings.Replace(zero, "count: 2", "", 1) + `sequence_batching {
			control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: 0 int32_false_true: 1 } }
			control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: 0 fp32_false_true: 2 } }
			control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: false bool_false_true: true } }
			control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
			state { input_name: "STATE" output_name: "O" data_type: TYPE_INT8 dims: -1 dims: 2 } }`,
			"2/2 I[2 1]00000000 START[2 1]0100000001000000 END[2 1]0000004000000040 READY[2 1]0101 ID[2 1]01000000000000000100000000000000 STATE[2 1 2]00000000"},
		{"a control that the sample gives", warmInput + `model_warmup { batch_size: 1
			inputs { key: "I" value { data_type: TYPE_INT16 dims: 1 zero_data: true } }
			inputs { key: "ID" value { data_type: TYPE_STRING dims: 1 zero_data: true } } }
			sequence_batching { control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } }`, "1/1 I[1 1]0000 ID[1 1]00000000"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			a, b, stats := &warmExecutor{answer: fine}, &warmExecutor{answer: fine}, &warmStats{}
			if err := warmed(t, t.Context(), tc.config, nil, a, b); err != nil {
				t.Fatal(err)
			}
			if a.seen() != tc.want || b.seen() != tc.want {
				t.Errorf("instances ran\n%s\nand\n%s\nwant\n%s", a.seen(), b.seen(), tc.want)
			}
			if err := warmed(t, t.Context(), tc.config, stats, &warmExecutor{answer: fine}); err != nil {
				t.Fatal(err)
			}
			if requests := strings.Count(tc.want, "2/2")*2 + strings.Count(tc.want, "1/"); stats.done != requests || stats.failed != 0 || stats.rows != requests {
				t.Errorf("%d requests, %d rows and %d failures are counted, want %d, %d and none", stats.done, stats.rows, stats.failed, requests, requests)
			}
		})
	}
}

func TestWarmUpFails(t *testing.T) {
	sample := func(data string) string {
		return warmInput + `model_warmup { name: "s" batch_size: 2 inputs { key: "I" value { data_type: TYPE_INT16 ` + data + ` } } }`
	}
	boom := func(*infer.Batch) *infer.Result { return &infer.Result{Err: infer.Errorf(infer.Internal, "boom")} }
	each := func(*infer.Batch) *infer.Result {
		return &infer.Result{Responses: []infer.RequestResult{{Index: 0, Err: errors.New("one")}, {Index: 1, Err: errors.New("two")}}}
	}
	lost := func(*infer.Batch) *infer.Result {
		return &infer.Result{Err: fmt.Errorf("gone: %w", infer.ErrWorkerLost)}
	}
	tests := []struct {
		name, config string
		answer       func(*infer.Batch) *infer.Result
		code         infer.Code
		want         string
	}{
		{"batch", sample("dims: 1 zero_data: true"), boom, infer.InvalidArg, "failed to run warmup sample 's': boom; "},
		{"requests", sample("dims: 1 zero_data: true"), each, infer.InvalidArg, "failed to run warmup sample 's': one; two; "},
		{"worker", sample("dims: 1 zero_data: true"), lost, infer.Unavailable, "failed to run warmup sample 's': gone: "},
		{"outside", sample(`dims: 1 input_data_file: "../secret"`), fine, infer.InvalidArg, "outside model directory"},
		{"too large", sample("dims: 1000000000 zero_data: true"), fine, infer.InvalidArg, "more than the 1073741824 bytes"},
		{"too large together", sample("dims: 4611686018427387904 dims: 2 zero_data: true"), fine, infer.InvalidArg, "more than the 1073741824 bytes"},
		{"too many together", strings.Repeat(sample("dims: 200000000 zero_data: true")[len(warmInput):], 3) + warmInput, fine, infer.InvalidArg, "that a version's samples may have"},
		{"too large a state", sample("dims: 1 zero_data: true") + `sequence_batching { state { input_name: "STATE" output_name: "O" data_type: TYPE_FP64
			dims: 500000000 } }`, fine, infer.InvalidArg, "warmup setting for input 'STATE' has shape [500000000], more than the 1073741824 bytes"},
		{"endless count", strings.Replace(sample("dims: 1 zero_data: true"), "batch_size: 2", "batch_size: 1 count: 4294967295", 1), fine, infer.InvalidArg,
			"warmup sample 's' runs 4294967295 batches of 1 requests on 1 instances: with it the version has more than 100000 requests of warm-up, the most of --model-warmup-max-requests"},
		{"endless size", strings.Replace(sample("dims: 1 zero_data: true"), "batch_size: 2", "batch_size: 4294967295 count: 4294967295", 1), fine, infer.InvalidArg,
			"warmup sample 's' runs 4294967295 batches of 4294967295 requests on 1 instances"},
		{"endless together", strings.Repeat(strings.Replace(sample("dims: 1 zero_data: true")[len(warmInput):], "batch_size: 2", "batch_size: 2 count: 20000", 1), 3) + warmInput,
			fine, infer.InvalidArg, "warmup sample 's' runs 20000 batches of 2 requests"},
		{"shape", sample("dims: [1, 1] zero_data: true"), fine, infer.InvalidArg, "unexpected shape for input 'I'"},
	}
	for _, tc := range tests {
		err := warmed(t, t.Context(), tc.config, &warmStats{}, &warmExecutor{answer: tc.answer})
		if err == nil || infer.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v of code %v, want %q of %v", tc.name, err, infer.CodeOf(err), tc.want, tc.code)
		}
	}
}

// The most requests that a version may have are run, not one less.
func TestWarmUpBound(t *testing.T) {
	config := warmInput + `model_warmup { name: "s" batch_size: 4 count: %d inputs { key: "I" value { data_type: TYPE_INT16 dims: 1 zero_data: true } } }`
	p := &Plan{cfg: &Config{WarmupRequests: 24}, Folder: Folder{Name: "m", Dir: t.TempDir()}}
	for count, ok := range map[int]bool{0: true, 1: true, 3: true, 4: false} {
		v := &VersionPlan{Spec: LoadSpec{Name: "m", Version: 1, Config: &configpb.ModelConfig{Name: "m"}, Instances: make([]InstanceSpec, 2)}}
		if err := prototext.Unmarshal(fmt.Appendf(nil, config, count), v.Spec.Config); err != nil {
			t.Fatal(err)
		}
		if _, err := p.samples(v); (err == nil) != ok {
			t.Errorf("%d batches of 4 on 2 instances, at most 24 requests: %v", count, err)
		}
	}
}

func TestWarmUpStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		e := &warmExecutor{}
		over := make(chan error, 1)
		go func() {
			over <- warmed(t, ctx, warmInput+`model_warmup { name: "s" batch_size: 2 inputs { key: "I" value { data_type: TYPE_INT16 dims: 1 zero_data: true } } }`, nil, e)
		}()
		synctest.Wait()
		cancel()
		if err := <-over; infer.CodeOf(err) != infer.Cancelled {
			t.Errorf("got %v, want Cancelled", err)
		}
		if e.cancels != 2 {
			t.Errorf("%d requests were cancelled, want 2", e.cancels)
		}
	})
}
