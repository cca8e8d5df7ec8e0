package python

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
)

// within is how long a test waits for what must happen.
const within = time.Minute

func loaded(t *testing.T, p *python, spec backend.Spec) *instance {
	t.Helper()
	m, err := p.Load(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	inst, err := m.NewInstance(t.Context(), backend.InstanceSpec{Name: spec.Name + "_0_0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := inst.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("close the backend: %v", err)
		}
	})
	return inst.(*instance)
}

// ask executes a batch of one request.
func ask(in *instance, values ...float32) (backendtest.Answer, *backendtest.Batch) {
	b := backendtest.NewBatch(backendtest.Request{ID: "r", Rows: 1, Inputs: []infer.Tensor{floats("IN", true,
		values...)}})
	b.Run(in)
	return b.Answers()[0], b
}

func (in *instance) pid() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.run == nil {
		return 0
	}
	return in.run.process.Pid()
}

// alive says that a process is there and no zombie.
func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(text, []byte(") Z "))
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late, look := time.NewTimer(within), time.NewTicker(5*time.Millisecond)
	defer late.Stop()
	defer look.Stop()
	for !ok() {
		select {
		case <-look.C:
		case <-late.C:
			t.Fatalf("after %v not: %s", within, what)
		}
	}
}

// A process that ends under a batch fails that as lost, and the next batch has another process.
func TestDeaths(t *testing.T) {
	for _, row := range []struct {
		name  string
		value float32
		cause string
	}{{"exit", -2, "exit status 3"}, {"kill", -3, "signal: killed"}} {
		t.Run(row.name, func(t *testing.T) {
			in := loaded(t, open(t), specOf(t, "identity", nil))
			pid := in.pid()
			a, b := ask(in, row.value)
			if infer.ReasonOf(a.Err) != infer.ReasonWorkerLost || infer.CodeOf(a.Err) != infer.Unavailable ||
				!strings.HasPrefix(a.Err.Error(), "Stub process 'identity_0_0' is not healthy.") ||
				!strings.Contains(a.Err.Error(), row.cause) {
				t.Errorf("got %v, want worker_lost because of %s", a.Err, row.cause)
			}
			if f := b.Faults(); len(f) > 0 {
				t.Errorf("faults: %v", f)
			}
			if a, _ := ask(in, 5); a.Err != nil {
				t.Errorf("after the end: %v", a.Err)
			}
			if now := in.pid(); now == pid || alive(pid) {
				t.Errorf("process %d is alive: %v; the instance has %d", pid, alive(pid), now)
			}
		})
	}
}

// A process that ends while nothing is executed is started again without a request's doing.
func TestIdleDeath(t *testing.T) {
	in := loaded(t, open(t), specOf(t, "identity", nil))
	pid := in.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another process", func() bool { now := in.pid(); return now != 0 && now != pid })
	if a, _ := ask(in, 5); a.Err != nil {
		t.Error(a.Err)
	}
}

// A batch for an instance without a process is another's where the model has others that execute.
func TestBatchOfAnotherInstance(t *testing.T) {
	spec := specOf(t, "identity", nil)
	in := loaded(t, open(t), spec)
	other, err := in.model.NewInstance(t.Context(), backend.InstanceSpec{Name: "identity_0_1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(spec.ModelFile, spec.ModelFile+".away"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(in.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no process", func() bool { return in.Fault() != nil })
	if a, b := ask(in, 5); infer.ReasonOf(a.Err) != infer.ReasonWorkerLost || len(b.Faults()) > 0 {
		t.Errorf("while another executes: %v, faults %v; want worker_lost", a.Err, b.Faults())
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if in.othersExecute() {
		t.Error("the other counts after its end")
	}
	if err := os.Rename(spec.ModelFile+".away", spec.ModelFile); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an answer", func() bool { a, _ := ask(in, 5); return a.Err == nil })
}

// Open requests of a process that ends fail as lost.
func TestDeathOfOpenRequests(t *testing.T) {
	in := loaded(t, open(t), specOf(t, "late", decoupled))
	var all []*backendtest.Batch
	for range 3 {
		b := backendtest.NewBatch(backendtest.Request{Inputs: []infer.Tensor{floats("IN", false, 1, 600)}})
		b.Begin(in)
		all = append(all, b)
	}
	if err := syscall.Kill(in.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for i, b := range all {
		b.Wait()
		if a := b.Answers()[0]; infer.ReasonOf(a.Err) != infer.ReasonWorkerLost || len(b.Faults()) > 0 {
			t.Errorf("request %d: %v, want worker_lost; faults %v", i, a.Err, b.Faults())
		}
	}
	b := backendtest.NewBatch(backendtest.Request{Inputs: []infer.Tensor{floats("IN", false, 1, 0)}})
	b.Run(in)
	if a := b.Answers()[0]; a.Err != nil {
		t.Errorf("after the end: %v", a.Err)
	}
}

func TestNoRetry(t *testing.T) {
	in := loaded(t, open(t), specOf(t, "identity", parameter("RETRY", "no")))
	if a, _ := ask(in, -3); infer.ReasonOf(a.Err) != infer.ReasonNotReady || infer.CodeOf(a.Err) != infer.Unavailable {
		t.Errorf("got %v with reason %q, want not_ready, which is not executed again", a.Err, infer.ReasonOf(a.Err))
	}
}

// A batch that takes too long ends with its process, whose stacks are written before.
func TestExecuteTimeout(t *testing.T) {
	in := loaded(t, open(t), specOf(t, "identity", parameter("EXECUTE_TIMEOUT_MS", "200")))
	a, _ := ask(in, -4)
	if infer.ReasonOf(a.Err) != infer.ReasonWorkerLost || !strings.Contains(a.Err.Error(),
		"execute took longer than 200ms") {
		t.Errorf("got %v", a.Err)
	}
	if a, _ := ask(in, 5); a.Err != nil {
		t.Errorf("after it: %v", a.Err)
	}
}

// A model sees that its request is cancelled while it executes it.
func TestCancelledWhileExecuted(t *testing.T) {
	in := loaded(t, open(t), specOf(t, "identity", nil))
	b := backendtest.NewBatch(backendtest.Request{Rows: 1, Inputs: []infer.Tensor{floats("IN", true, -5)}})
	timer := time.AfterFunc(20*time.Millisecond, func() { b.Cancel(0) })
	defer timer.Stop()
	b.Run(in) // ends if the model sees it
}

// A process that has had its requests is replaced by one that is ready before, and ends.
func TestMaxRequests(t *testing.T) {
	in := loaded(t, open(t), specOf(t, "identity", parameter("MAX_REQUESTS", "3")))
	first := in.pid()
	eventually(t, "another process", func() bool {
		if a, _ := ask(in, 1); a.Err != nil {
			t.Fatal(a.Err)
		}
		return in.pid() != first
	})
	eventually(t, "the end of the first", func() bool { return !alive(first) })
}

func TestMaxRSS(t *testing.T) {
	in := loaded(t, open(t), specOf(t, "identity", parameter("MAX_RSS_MB", "1")))
	first := in.pid()
	eventually(t, "another process", func() bool { return in.pid() != first })
	if a, _ := ask(in, 1); a.Err != nil {
		t.Error(a.Err)
	}
}

// The first request that continues a sequence of a process that has ended says so to the gateway.
func TestSequenceLostWhileIdle(t *testing.T) {
	in := loaded(t, open(t), specOf(t, "identity", func(c *modelconfig.ModelConfig) {
		c.SchedulingChoice = &modelconfig.ModelConfig_SequenceBatching{SequenceBatching: &modelconfig.ModelSequenceBatching{}}
	}))
	step := func(id uint64, start bool) error {
		b := backendtest.NewBatch(backendtest.Request{Rows: 1, Inputs: []infer.Tensor{floats("IN", true, 1)},
			Correlation: infer.Correlation{ID: id}, Start: start})
		b.Run(in)
		return b.Answers()[0].Err
	}
	if err := step(7, true); err != nil {
		t.Fatal(err)
	}
	pid := in.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another process", func() bool { now := in.pid(); return now != 0 && now != pid })
	if err := step(8, true); err != nil {
		t.Errorf("a new sequence: %v", err)
	}
	if err := step(8, false); err != nil {
		t.Errorf("which goes on: %v", err)
	}
	if err := step(7, false); infer.ReasonOf(err) != infer.ReasonWorkerLost {
		t.Errorf("the lost sequence: %v, want worker_lost", err)
	}
}

func TestInitializeTimeout(t *testing.T) {
	p := open(t)
	defer p.Close()
	spec := specOf(t, "identity", parameter("INITIALIZE_TIMEOUT_MS", "300"))
	if err := os.WriteFile(spec.ModelFile, []byte("import time\ntime.sleep(600)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := p.Load(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.NewInstance(t.Context(), backend.InstanceSpec{Name: "m_0_0"}); err == nil ||
		!strings.Contains(err.Error(), "took longer than 300ms") {
		t.Errorf("got %v", err)
	}
}

// kept are log lines of a test.
type kept struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (k *kept) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.b.Write(b)
}

func (k *kept) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.b.String()
}

func logTo(p *python) *kept {
	k := &kept{}
	p.log = slog.New(slog.NewTextHandler(k, nil))
	return k
}

func TestPauses(t *testing.T) {
	var p pauses
	for i, want := range []int{0, 1, 2, 4, 8, 16, 30, 30} {
		if got := p.after(time.Second); got != time.Duration(want)*time.Second {
			t.Errorf("pause %d is %v, want %ds", i, got, want)
		}
	}
	if got := p.after(servedWell); got != 0 {
		t.Errorf("after a process that served well the pause is %v", got)
	}
}

// What a process and its children leave: its output as log lines, and nothing else.
func TestNothingStays(t *testing.T) {
	p := open(t)
	log := logTo(p)
	spec := specOf(t, "identity", nil)
	text := "import subprocess, sys\nchild = subprocess.Popen(['sleep', '600'])\nprint('child', child.pid)\nprint('to stderr', file=sys.stderr)\n"
	source, err := os.ReadFile(spec.ModelFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(spec.ModelFile, append([]byte(text), source...), 0o644); err != nil {
		t.Fatal(err)
	}
	in := loaded(t, p, spec)
	grandchild := 0
	eventually(t, "the model's lines", func() bool {
		if i := strings.Index(log.String(), "line=\"child "); i >= 0 && grandchild == 0 {
			_, _ = fmt.Sscanf(log.String()[i:], "line=\"child %d", &grandchild)
		}
		return grandchild > 0 && strings.Contains(log.String(), `stream=stderr line="to stderr"`)
	})
	if !alive(grandchild) {
		t.Fatal("the model's child is not there")
	}
	if err := syscall.Kill(in.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the model's child", func() bool { return !alive(grandchild) })
}

// LOG_STDOUT says how grave the lines of a model's processes are.
func TestOutputLevel(t *testing.T) {
	for level, want := range map[string]string{"warning": "level=WARN", "no": "", "": "level=INFO"} {
		log := &kept{}
		c := &child{log: slog.New(slog.NewTextHandler(log, nil)), level: level}
		c.line("stderr", "a line")
		if got := log.String(); want == "" && got != "" || !strings.Contains(got, want) || c.Last() != "a line" {
			t.Errorf("%q: the log has %q, want %q; kept is %q", level, got, want, c.Last())
		}
	}
}
