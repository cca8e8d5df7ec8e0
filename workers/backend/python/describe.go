package python

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// completeHook is the function by which a model completes its config, and hookComplete its bit in
// LOADED.
const (
	completeHook = "auto_complete_config"
	hookComplete = 1
)

// describedLife is how long a process that has completed a config waits to become an instance.
const describedLife = time.Minute

// Describe fits backend.Backend. A model without the hook needs no process.
func (p *python) Describe(ctx context.Context, spec backend.Spec) (*backend.Description, error) {
	m, err := p.newModel(spec)
	if err != nil {
		return nil, err
	}
	if spec.Inspect {
		return m.inspect(ctx)
	}
	source, err := os.ReadFile(m.file)
	if err != nil {
		return nil, infer.Errorf(infer.Internal, "the model's file can't be read: %w", errors.Unwrap(err))
	}
	if !bytes.Contains(source, []byte(completeHook)) {
		return nil, infer.Errorf(infer.Unsupported, "the model has no function %s", completeHook)
	}
	name := firstInstance(spec.Config)
	r, err := m.imported(ctx, name, nil, m.log.With("instance", name))
	if err != nil {
		return nil, err
	}
	d, err := r.complete(ctx)
	if err != nil {
		return nil, r.discard(err)
	}
	if m.limits.together > 1 { // its instances come to a process together
		if err := r.discard(nil); err != nil {
			return nil, err
		}
	} else {
		p.described.put(m, name, r)
	}
	if d == nil {
		return nil, infer.Errorf(infer.Unsupported, "the model has no function %s", completeHook)
	}
	return d, nil
}

// firstInstance is the name that the first instance of a config has, once that is complete.
func firstInstance(c *modelconfig.ModelConfig) string {
	group := c.GetName()
	if len(c.GetInstanceGroup()) > 0 {
		if group = c.GetInstanceGroup()[0].GetName(); group == "" {
			group = c.GetName() + "_0"
		}
	}
	return group + "_0"
}

// complete has the model complete its config; nil: it has nothing to say.
func (r *run) complete(ctx context.Context) (*backend.Description, error) {
	if r.loaded&hookComplete == 0 {
		return nil, nil
	}
	m := r.model()
	defer r.bound(ctx, m.limits.initialize)()
	var e channel.Encoder
	e.String(string(m.config))
	f, err := r.command(channel.Complete, channel.Completed, 0, e.Body(), false)
	if err != nil {
		return nil, r.died(err)
	}
	if f.Kind == channel.Failed {
		return nil, r.failed(f, "the model can't complete its config")
	}
	d := channel.NewDecoder(f.Body, nil)
	text := d.String()
	if d.Err() != nil {
		return nil, r.died(r.corrupt("%v", d.Err()))
	}
	said := &modelconfig.ModelConfig{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), said); err != nil {
		return nil, infer.Errorf(infer.Internal, "the config that %s gave for model '%s' can't be read: %w",
			completeHook, m.spec.Name, err)
	}
	return &backend.Description{Patch: patchOf(m.spec.Config, said)}, nil
}

// patchOf is what a completed config says that is taken: tensors, max_batch_size, a scheduler, and
// the transaction policy.
func patchOf(had, said *modelconfig.ModelConfig) *worker.ConfigPatch {
	p := &worker.ConfigPatch{Input: said.GetInput(), Output: said.GetOutput()}
	if said.GetMaxBatchSize() != had.GetMaxBatchSize() {
		p.MaxBatchSize = proto.Int32(said.GetMaxBatchSize())
	}
	if had.GetSchedulingChoice() == nil {
		p.DynamicBatching, p.SequenceBatching = said.GetDynamicBatching(), said.GetSequenceBatching()
	}
	if policy := said.GetModelTransactionPolicy(); policy != nil {
		p.Decoupled = proto.Bool(policy.GetDecoupled())
	}
	return p
}

// described are processes that have completed a config and wait to become an instance.
type described struct {
	mu      sync.Mutex
	waiting map[string]*waiting // guarded by mu: by what they are for
	closed  bool                // guarded by mu
	ending  sync.WaitGroup      // of processes
}

// waiting is one of them.
type waiting struct {
	run  *run
	late *time.Timer
}

// identity says what a process is for: an instance of that name, of the same source and the same
// parameters.
func (m *model) identity(name string) string {
	st, err := os.Stat(m.file)
	if err != nil {
		return ""
	}
	inode := uint64(0)
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		inode = sys.Ino
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%q %d %q %q", name, m.spec.Version, m.file, m.spec.ModelDir)
	fmt.Fprintf(&b, " %d %d %d", inode, st.Size(), st.ModTime().UnixNano())
	fmt.Fprintf(&b, " %v", m.parameters()) // fmt sorts maps
	return b.String()
}

// put has a process wait. One for the same ends.
func (d *described) put(m *model, name string, r *run) {
	id := m.identity(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting == nil {
		d.waiting = map[string]*waiting{}
	}
	if d.closed || id == "" {
		d.endLocked(r)
		return
	}
	if old := d.waiting[id]; old != nil && old.late.Stop() {
		d.endLocked(old.run)
	}
	w := &waiting{run: r}
	w.late = time.AfterFunc(describedLife, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.waiting[id] == w {
			delete(d.waiting, id)
			d.endLocked(r)
		}
	})
	d.waiting[id] = w
}

// take gives a process that waits; nil: there is none.
func (d *described) take(m *model, name string) *run {
	id := m.identity(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.waiting[id]
	if w == nil {
		return nil
	}
	delete(d.waiting, id)
	w.late.Stop()
	if w.run.isGone() {
		d.endLocked(w.run)
		return nil
	}
	return w.run
}

// endLocked ends a process that is no instance, on a goroutine that close waits for.
func (d *described) endLocked(r *run) {
	d.ending.Go(func() {
		if err := r.discard(nil); err != nil {
			r.log.Error("the memory of a Python process can't be given back", "error", err)
		}
	})
}

// close ends all of them.
func (d *described) close() error {
	d.mu.Lock()
	d.closed = true
	for _, w := range d.waiting {
		w.late.Stop()
		d.endLocked(w.run)
	}
	clear(d.waiting)
	d.mu.Unlock()
	d.ending.Wait()
	return nil
}
