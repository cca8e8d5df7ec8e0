package python

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// fake is a process that a goroutine of the test is.
type fake struct {
	channel  *channel.Channel
	results  *channel.Writer
	events   *channel.Writer
	stop     chan struct{} // closed when it was killed
	exited   chan struct{} // closed when its goroutine has ended
	once     sync.Once
	killed   atomic.Bool
	executed int    // batches
	said     uint64 // events
}

var pids atomic.Int64

func (f *fake) Pid() int                    { return int(pids.Add(1)) + 1<<30 }
func (f *fake) Exited() <-chan struct{}     { return f.exited }
func (f *fake) Err() error                  { return errors.New("the fake has ended") }
func (f *fake) Kill()                       { f.killed.Store(true); f.exit() }
func (f *fake) Signal(syscall.Signal) error { return nil }
func (f *fake) RSS() (int64, error)         { return 0, nil }
func (f *fake) Last() string                { return "" }
func (f *fake) Stop(time.Duration)          { f.exit() }
func (f *fake) exit() {
	f.once.Do(func() {
		_ = f.channel.End(channel.Commands) // its own goroutine ends
		close(f.stop)
	})
}

// write writes a frame of the process.
func (f *fake) write(t *testing.T, w *channel.Writer, kind channel.Kind, id uint64, body func(e *channel.Encoder)) {
	var e channel.Encoder
	body(&e)
	if err := w.Write(kind, 0, id, e.Body()); err != nil && !errors.Is(err, channel.ErrClosed) {
		t.Errorf("write a frame of kind %d: %v", kind, err)
	}
}

// faked is an instance whose processes carry out commands by script, but for EXECUTE as a runner does.
func faked(t *testing.T, change func(*modelconfig.ModelConfig), script func(f *fake, id uint64,
	keys []uint64)) (*instance, func() *fake) {
	t.Helper()
	b, err := New(map[string]string{"cache-directory": t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	p := b.(*python)
	var last atomic.Pointer[fake]
	p.spawn = func(_ context.Context, _ *model, _ string, all []*channel.Channel) (process, error) {
		c := all[0]
		f := &fake{channel: c, stop: make(chan struct{}), exited: make(chan struct{})}
		f.results, f.events = c.Writer(channel.Results, f.stop), c.Writer(channel.Events, f.stop)
		last.Store(f)
		go func() {
			defer close(f.exited)
			f.serve(t, script)
		}()
		return f, nil
	}
	in := loaded(t, p, specOf(t, "identity", change))
	return in, last.Load
}

func (f *fake) serve(t *testing.T, script func(f *fake, id uint64, keys []uint64)) {
	f.write(t, f.results, channel.Hello, 0, func(e *channel.Encoder) {
		e.U32(channel.Protocol)
		e.String("3.12.1")
		e.String("cpython")
		e.String("2.1.0")
	})
	commands := f.channel.Reader(channel.Commands)
	for {
		c, err := commands.Next()
		if err != nil {
			return
		}
		switch c.Kind {
		case channel.Load:
			f.write(t, f.results, channel.Loaded, 0, func(e *channel.Encoder) { e.U32(4) })
		case channel.Initialize:
			f.write(t, f.results, channel.Initialized, 0, func(*channel.Encoder) {})
		case channel.Finalize:
			f.write(t, f.results, channel.Finalized, 0, func(*channel.Encoder) {})
		case channel.Execute:
			f.executed++
			script(f, c.ID, keysOf(c.Body))
		}
	}
}

// keysOf are the keys of an EXECUTE of requests with one input each.
func keysOf(body []byte) []uint64 {
	d := channel.NewDecoder(body, nil)
	n := d.U32()
	d.U32()
	d.Segment()
	var keys []uint64
	for range n {
		keys = append(keys, d.U64())
		d.U64()
		d.U64()
		d.U32()
		d.U32()
		inputs, outputs := d.U16(), d.U16()
		d.U32()
		for range 4 + outputs {
			_ = d.String()
		}
		for range inputs {
			var t channel.Tensor
			d.Tensor(&t)
		}
	}
	return keys
}

// result begins the body of a RESULT.
func result(e *channel.Encoder, events uint64, requests uint32) {
	e.U64(events)
	e.U8(0)
	e.U32(requests)
}

// answer appends an answer with one output.
func answer(e *channel.Encoder, outputs ...infer.Tensor) {
	e.U8(0)
	e.String("")
	e.String("")
	e.U16(uint16(len(outputs)))
	for i := range outputs {
		e.TensorInline(&outputs[i])
	}
}

// goodResult is the body of a result with one answer.
func goodResult(e *channel.Encoder) {
	result(e, 0, 1)
	e.U8(statusAnswered)
	answer(e, floats("OUT", true, 1))
}

// segmentResult is a result whose answer lies in a segment.
func segmentResult(e *channel.Encoder, s channel.Segment) {
	result(e, 0, 1)
	e.U8(statusAnswered)
	e.U8(0)
	e.String("")
	e.String("")
	e.U16(1)
	e.Tensor(&infer.Tensor{Name: "OUT", Datatype: infer.FP32, Shape: []int64{1, int64(s.Length / 4)}}, s)
}

// nonsense is what no runner writes.
var nonsense = []struct {
	name   string
	script func(t *testing.T, f *fake, id uint64, key uint64)
}{
	{"another batch's result", func(t *testing.T, f *fake, id, _ uint64) {
		f.write(t, f.results, channel.Result,
			id+1, goodResult)
	}},
	{"another kind", func(t *testing.T, f *fake, id, _ uint64) {
		f.write(t, f.results, channel.Loaded, id,
			goodResult)
	}},
	{"an empty result", func(t *testing.T, f *fake, id, _ uint64) {
		f.write(t, f.results, channel.Result, id, func(*channel.Encoder) {})
	}},
	{"too many requests", func(t *testing.T, f *fake, id, _ uint64) {
		f.write(t, f.results, channel.Result, id, func(e *channel.Encoder) { result(e, 0, 1<<30) })
	}},
	{"an unknown status", func(t *testing.T, f *fake, id, _ uint64) {
		f.write(t, f.results, channel.Result, id, func(e *channel.Encoder) { result(e, 0, 1); e.U8(9) })
	}},
	{"half an answer", func(t *testing.T, f *fake, id, _ uint64) {
		f.write(t, f.results, channel.Result, id, func(e *channel.Encoder) {
			result(e, 0, 1)
			e.U8(statusAnswered)
			e.U8(0)
			e.U32(1 << 31)
		})
	}},
	{"memory that is not its own", func(t *testing.T, f *fake, id, _ uint64) {
		f.write(t, f.results, channel.Result, id, func(e *channel.Encoder) {
			segmentResult(e, channel.Segment{Area: channel.InOurs, Offset: 1 << 20, Length: 4096})
		})
	}},
	{"memory of another area", func(t *testing.T, f *fake, id, _ uint64) {
		f.write(t, f.results, channel.Result, id, func(e *channel.Encoder) {
			segmentResult(e, channel.Segment{Area: channel.InAnswer, Length: 4})
		})
	}},
	{"memory given back twice", func(t *testing.T, f *fake, _, _ uint64) {
		f.write(t, f.events, channel.Give, 0,
			func(e *channel.Encoder) { e.Segment(channel.Segment{Area: channel.InOurs, Length: 1}) })
	}},
	{"half an event", func(t *testing.T, f *fake, _, _ uint64) {
		f.write(t, f.events, channel.Part, 0, func(e *channel.Encoder) { e.U8(1) })
	}},
	{"an unknown event", func(t *testing.T, f *fake, _, _ uint64) {
		f.write(t, f.events, 99, 0, func(*channel.Encoder) {})
	}},
	{"an answer in the result and before", func(t *testing.T, f *fake, id, key uint64) {
		f.write(t, f.events, channel.Part, 0, func(e *channel.Encoder) {
			e.U64(key)
			e.U8(partFinal | partAnswer)
			answer(e, floats("OUT", true, 1))
		})
		f.write(t, f.results, channel.Result, id, func(e *channel.Encoder) {
			result(e, 1,
				1)
			e.U8(statusAnswered)
			answer(e, floats("OUT", true, 1))
		})
	}},
}

// Whatever a process writes that it never may, it is killed, its request fails, and the next process serves.
func TestNonsense(t *testing.T) {
	for _, row := range nonsense {
		t.Run(row.name, func(t *testing.T) {
			first := true
			in, last := faked(t, nil, func(f *fake, id uint64, keys []uint64) {
				if first {
					first = false
					row.script(t, f, id, keys[0])
					return
				}
				f.write(t, f.results, channel.Result, id, goodResult)
			})
			bad := last()
			a, b := ask(in, 1)
			if a.Err == nil && row.name != "an answer in the result and before" || len(b.Faults()) > 0 {
				t.Errorf("the request: %+v; faults %v", a, b.Faults())
			}
			eventually(t, "the process is killed", bad.killed.Load)
			if a, _ := ask(in, 1); a.Err != nil {
				t.Errorf("the next request: %v", a.Err)
			}
			if last() == bad {
				t.Error("there is no other process")
			}
		})
	}
}

// What a request's answer was before its result, by its sender, or what nobody will answer.
func TestEarlyAnswers(t *testing.T) {
	out := floats("OUT", false, 4)
	for _, row := range []struct {
		name      string
		decoupled bool
		script    func(t *testing.T, f *fake, key uint64)
		want      string
	}{
		{"an answer", false, func(t *testing.T, f *fake, key uint64) { f.part(t, key, partFinal|partAnswer, out) },
			"answer final"},
		{"two answers", true, func(t *testing.T, f *fake, key uint64) {
			f.part(t, key, partAnswer, out)
			f.part(t, key, partFinal|partAnswer, out)
		}, "answer answer final"},
		{"an end", true, func(t *testing.T, f *fake, key uint64) { f.part(t, key, partFinal) }, "final"},
		{"an end without an answer", false, func(t *testing.T, f *fake, key uint64) { f.part(t, key, partFinal) },
			"the model gave no answer to the request"},
		{"dropped", false, func(t *testing.T, f *fake, key uint64) {
			f.write(t, f.events, channel.Drop, 0, func(e *channel.Encoder) { e.U64(key) })
		}, "the model gave no answer to the request"},
		{"for another request", false, func(t *testing.T, f *fake, key uint64) {
			f.part(t, key+1<<16, partFinal|partAnswer, out)
			f.part(t, key, partFinal|partAnswer, out)
		}, "answer final"},
		{"a wrong name", false, func(t *testing.T, f *fake, key uint64) {
			f.part(t, key, partFinal|partAnswer, infer.Tensor{Name: "NO", Datatype: infer.FP32, Shape: []int64{0}})
		}, "model 'identity' gave an output 'NO', which its config does not have"},
		{"a wrong datatype", false, func(t *testing.T, f *fake, key uint64) {
			f.part(t, key, partFinal|partAnswer, infer.Tensor{Name: "OUT", Datatype: infer.Int32, Shape: []int64{0}})
		}, "model 'identity', output 'OUT': the model gave datatype TYPE_INT32, its configuration says TYPE_FP32"},
		{"a wrong shape", false, func(t *testing.T, f *fake, key uint64) {
			f.part(t, key, partFinal|partAnswer, floats("OUT", true, 1, 2))
		}, "model 'identity', output 'OUT': the model gave shape [1, 2], its configuration says [-1]"},
		{"less data than its shape", false, func(t *testing.T, f *fake, key uint64) {
			f.part(t, key, partFinal|partAnswer, infer.Tensor{Name: "OUT", Datatype: infer.FP32, Shape: []int64{3},
				Data: []byte{1}})
		}, "FAULT"},
	} {
		t.Run(row.name, func(t *testing.T) {
			in, _ := faked(t, func(c *modelconfig.ModelConfig) {
				if c.MaxBatchSize = 0; row.decoupled {
					decoupled(c)
				}
			}, func(f *fake, id uint64, keys []uint64) {
				row.script(t, f, keys[0])
				f.write(t, f.results, channel.Result, id, func(e *channel.Encoder) {
					result(e, f.said,
						1)
					e.U8(statusOpen)
				})
			})
			b := backendtest.NewBatch(backendtest.Request{Inputs: []infer.Tensor{floats("IN", false, 1)}})
			b.Run(in)
			a := b.Answers()[0]
			got := ""
			for _, r := range a.Responses {
				if len(r.Outputs) > 0 {
					got += "answer "
				}
				if r.Final {
					got += "final"
				}
			}
			if a.Err != nil {
				got += a.Err.Error()
			}
			if row.want == "FAULT" {
				if a.Err == nil {
					t.Errorf("got %q, want an error", got)
				}
				return
			}
			if got != row.want || len(b.Faults()) > 0 {
				t.Errorf("got %q, want %q; faults %v", got, row.want, b.Faults())
			}
		})
	}
}

// part writes an answer by a sender.
func (f *fake) part(t *testing.T, key uint64, flags uint8, outputs ...infer.Tensor) {
	f.said++
	f.write(t, f.events, channel.Part, 0, func(e *channel.Encoder) {
		e.U64(key)
		e.U8(flags)
		if flags&partAnswer != 0 {
			answer(e, outputs...)
		}
	})
}

// golden are frames that this codec and the runner's agree on.
type golden struct {
	Name string `json:"name"`
	Kind uint8  `json:"kind"`
	Body string `json:"body"` // hex
}

// The frames of testdata/frames.json are what is written here, byte by byte. UPDATE=1 writes them anew.
func TestGoldenFrames(t *testing.T) {
	var frames []golden
	add := func(name string, kind channel.Kind, body []byte) {
		frames = append(frames, golden{name, uint8(kind), hex.EncodeToString(body)})
	}
	in, _ := faked(t, nil, func(*fake, uint64, []uint64) {})
	b := backendtest.NewBatch(
		backendtest.Request{ID: "first", Rows: 1, Inputs: []infer.Tensor{floats("IN", true, 1, 2)},
			Outputs: []string{"OUT"},
			Params: infer.Params{{Name: "a", Value: infer.Value{Kind: infer.KindInt64, Int: 1}}, {Name: "b",
				Value: infer.Value{Kind: infer.KindString, Str: "ü\""}}},
			Correlation: infer.Correlation{ID: 42}, Start: true},
		backendtest.Request{Rows: 1, Inputs: []infer.Tensor{floats("IN", true, 3, 4)},
			Correlation: infer.Correlation{Str: "text"}, End: true})
	x := &batch{}
	if err := x.begin(in.run, b); err != nil {
		t.Fatal(err)
	}
	if err := in.encode(x, b); err != nil {
		t.Fatal(err)
	}
	add("a batch of two requests", channel.Execute, in.encoder.Body())
	x.mu.Lock()
	x.end()
	x.mu.Unlock()
	var e channel.Encoder
	result(&e, 2, 3)
	e.U8(statusAnswered)
	answer(&e, floats("OUT", true, 1, 2))
	e.U8(statusOpen)
	e.U8(statusRescheduled)
	add("a result of three requests", channel.Result, e.Body())
	e.Reset()
	e.U64(3<<16 | 5)
	e.U8(partFinal | partAnswer)
	answer(&e, backendtest.BytesTensor("OUT", []int64{2}, "a", "ü"))
	add("a last answer of a stream", channel.Part, e.Body())
	const file = "testdata/frames.json"
	if os.Getenv("UPDATE") != "" {
		text, err := json.MarshalIndent(frames, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want []golden
	if err := json.Unmarshal(text, &want); err != nil || len(want) != len(frames) {
		t.Fatalf("%d frames, %v; want %d", len(want), err, len(frames))
	}
	for i := range want {
		if want[i] != frames[i] {
			t.Errorf("%s:\n%s, want\n%s", frames[i].Name, frames[i].Body, want[i].Body)
		}
	}
}
