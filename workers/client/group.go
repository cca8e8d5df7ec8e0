package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lossDelay is how long the end of a connection may take to show after a failed call.
const lossDelay = 100 * time.Millisecond

// loadTries is how many workers may die under the first load of a version.
const loadTries = 3

// group is the instances of one version on one worker: what one LoadRequest makes.
type group struct {
	worker    *worker
	spec      *Spec
	instances []int // of spec
	boxes     []int
	executors []*executor

	like     *group        // of spec.Like, on the same worker; nil: none, or not any more
	turn     chan struct{} // holds one token: loading and unloading take turns
	unloaded bool          // the holder of turn's
	crashes  atomic.Int32  // in a row, workers lost while they loaded it

	onDevice atomic.Bool // its instances take tensors in the worker's device memory

	notify sync.Mutex   // orders the calls of spec.Changed
	faulty map[int]bool // guarded by notify: indexes of instances that the worker says can't execute

	// Guarded by worker.mu.
	gone    bool
	session *session // where it is in service; nil: nowhere
	handle  uint64
	memory  []*workerpb.MemoryUsage
	asks    bool // its instances say themselves whether they are ready
}

// newGroup makes a group on a worker, or on the process beside it that is the model's.
func (w *Workers) newGroup(ctx context.Context, k *worker, spec *Spec, instances []int) (*group, error) {
	k, err := w.hold(ctx, k, spec)
	if err != nil {
		return nil, err
	}
	g, err := newGroup(k, spec, instances)
	if err != nil {
		w.letGo(k)
	}
	return g, err
}

func newGroup(w *worker, spec *Spec, instances []int) (*group, error) {
	boxes, err := w.takeBoxes(len(instances))
	if err != nil {
		return nil, err
	}
	g := &group{worker: w, spec: spec, instances: instances, boxes: boxes, turn: make(chan struct{}, 1), like: spec.Like.on(w)}
	g.turn <- struct{}{}
	for k, i := range instances {
		g.executors = append(g.executors, &executor{arena: w.owner.memory, index: uint32(k), box: boxes[k], failures: &w.owner.failures,
			instance: spec.Instances[i].Name, worker: w.name, renewed: func() { g.renew(i) }})
	}
	return g, nil
}

func (g *group) request(handle uint64) *workerpb.LoadRequest {
	m := &workerpb.LoadRequest{Handle: handle, Model: g.spec.Name, Version: g.spec.Version, ModelDir: g.spec.ModelDir,
		ModelFile: g.spec.ModelFile, Config: g.spec.Config, Options: g.spec.options()}
	for k, i := range g.instances {
		inst := &g.spec.Instances[i]
		p := &workerpb.InstanceSpec{Name: inst.Name, Mailbox: uint32(g.boxes[k]), Profile: inst.Profiles, HostPolicy: inst.HostPolicy}
		if inst.GPU {
			p.Kind, p.DeviceId = workerpb.Device_GPU, int32(inst.Device)
		}
		m.Instances = append(m.Instances, p)
	}
	return m
}

// loadFirst loads the group for the first time. A worker that dies meanwhile may have
// died of another version, so it is tried again, then by itself.
func (g *group) loadFirst(ctx context.Context) error {
	for {
		s, err := g.worker.await(ctx)
		if err != nil {
			return err
		}
		err = g.load(ctx, s, false)
		if !errors.Is(err, infer.ErrWorkerLost) || g.crashes.Load() >= loadTries {
			return err
		}
	}
}

// load makes the worker of session s load the group and puts it into service.
func (g *group) load(ctx context.Context, s *session, announce bool) error {
	select {
	case <-g.turn:
		defer func() { g.turn <- struct{}{} }()
	case <-ctx.Done():
		return infer.Errorf(infer.Cancelled, "load of model '%s': %w", g.spec.Name, context.Cause(ctx))
	}
	if g.crashes.Load() > 0 {
		select {
		case <-g.worker.alone:
			defer func() { g.worker.alone <- struct{}{} }()
		case <-s.lost:
			return g.worker.errLost()
		case <-ctx.Done():
			return infer.Errorf(infer.Cancelled, "load of model '%s': %w", g.spec.Name, context.Cause(ctx))
		}
	}
	if g.isGone() {
		return errGone()
	}
	if s.memory != nil {
		for _, box := range g.boxes {
			s.memory.lane.ResetMailbox(box)
		}
	}
	handle := g.worker.owner.handles.Add(1)
	request := g.request(handle)
	request.Like, g.like = g.like.handleIn(s), nil
	s.desk.add(handle, g)
	m, err := s.client.Load(ctx, request)
	if err != nil {
		if lostDuring(s, err) {
			g.crashes.Add(1)
			return g.worker.errLost()
		}
		if ctx.Err() != nil {
			g.unloadHandle(context.WithoutCancel(ctx), s, handle)
		}
		s.desk.remove(handle)
		return fromStatus(err)
	}
	g.crashes.Store(0)
	if m.OpenRequests > maxOpen {
		g.unloadHandle(ctx, s, handle)
		return infer.Errorf(infer.Internal,
			"the worker wants %d open requests for an instance of model '%s', the most is %d", m.OpenRequests,
			g.spec.Name, maxOpen)
	}
	if !g.up(s, handle, m, announce) {
		if !s.isLost() {
			g.unloadHandle(ctx, s, handle)
		}
		s.desk.remove(handle)
		return g.worker.errLost()
	}
	return nil
}

// handleIn is the group's handle in a session; 0 where it is not in service there.
func (g *group) handleIn(s *session) uint64 {
	if g == nil {
		return 0
	}
	g.worker.mu.Lock()
	defer g.worker.mu.Unlock()
	if g.session != s || g.gone {
		return 0
	}
	return g.handle
}

// lostDuring says whether a failed call failed because the worker ended. gRPC may
// know before the session does.
func lostDuring(s *session, err error) bool {
	if s.isLost() || status.Code(err) != codes.Unavailable {
		return s.isLost()
	}
	t := time.NewTimer(lossDelay)
	defer t.Stop()
	select {
	case <-s.lost:
		return true
	case <-t.C:
		return false
	}
}

// unloadHandle undoes a load that is not wanted any more; a worker that never
// finished it has nothing under that handle.
func (g *group) unloadHandle(ctx context.Context, s *session, handle uint64) {
	ctx, cancel := context.WithTimeout(ctx, g.worker.owner.cfg.StartTimeout)
	defer cancel()
	if _, err := s.client.Unload(ctx, &workerpb.UnloadRequest{Handle: handle}); err != nil {
		g.worker.log.Info("nothing to unload after a load that was given up", "model", g.spec.Name, "error", err)
	}
}

// up puts the instances into service, unless the session or the group is gone.
func (g *group) up(s *session, handle uint64, m *workerpb.LoadResponse, announce bool) bool {
	g.notify.Lock()
	defer g.notify.Unlock()
	w := g.worker
	w.mu.Lock()
	ok := w.session == s && !g.gone
	if ok {
		w.groups[g] = struct{}{}
		g.session, g.handle, g.memory, g.asks = s, handle, m.Memory, m.Readiness
		g.onDevice.Store(takesDevice(s, m))
		for _, e := range g.executors {
			e.attach(s.link, s.desk, handle, m, takesDevice(s, m))
		}
	}
	w.mu.Unlock()
	if ok && announce {
		g.tell(true)
	}
	return ok
}

// down takes the instances out of service after their worker was lost.
func (g *group) down(s *session) {
	g.notify.Lock()
	defer g.notify.Unlock()
	w := g.worker
	w.mu.Lock()
	was, gone := g.session == s, g.gone
	if was {
		g.session = nil
		for _, e := range g.executors {
			e.detach()
		}
	}
	w.mu.Unlock()
	if was && !gone {
		g.tell(false)
	}
}

// renew takes an instance out of service that has lost what it had, and whose worker lives. The
// worker's next report, which a loss brings about, puts it into service again if it can execute.
func (g *group) renew(i int) {
	g.notify.Lock()
	defer g.notify.Unlock()
	g.worker.mu.Lock()
	serves := g.session != nil && !g.gone
	g.worker.mu.Unlock()
	if serves && g.spec.Changed != nil {
		g.spec.Changed(i, false)
		g.faultyLocked()[slices.Index(g.instances, i)] = true
	}
}

// faultyLocked is faulty, to be written to; notify is held.
func (g *group) faultyLocked() map[int]bool {
	if g.faulty == nil {
		g.faulty = map[int]bool{}
	}
	return g.faulty
}

// reported takes instances out of service that the worker says can't execute, and puts those into
// it that can again.
func (g *group) reported(models []*workerpb.LoadedModel) {
	g.notify.Lock()
	defer g.notify.Unlock()
	g.worker.mu.Lock()
	serves, handle := g.session != nil && !g.gone, g.handle
	g.worker.mu.Unlock()
	at := slices.IndexFunc(models, func(m *workerpb.LoadedModel) bool { return m.GetHandle() == handle })
	if !serves || at < 0 || g.spec.Changed == nil {
		return
	}
	for k, i := range g.instances {
		if down := slices.Contains(models[at].GetDown(), uint32(k)); down != g.faulty[k] {
			g.faultyLocked()[k] = down
			g.spec.Changed(i, !down)
		}
	}
}

func (g *group) tell(up bool) {
	clear(g.faulty)
	if g.spec.Changed == nil {
		return
	}
	for _, i := range g.instances {
		g.spec.Changed(i, up)
	}
}

// fail ends what was in flight; nobody reads results any more.
func (g *group) fail() {
	for _, e := range g.executors {
		e.failAll(g.worker.errLost())
	}
}

// reload loads the group in a new session, again and again until it succeeds or the
// session or the group ends. One under which workers died goes last.
func (g *group) reload(ctx context.Context, s *session) {
	b := backoff{base: time.Second, most: 30 * time.Second, tried: g.crashes.Load() > 1}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(b.next()):
		}
		if g.isGone() {
			return
		}
		start := time.Now()
		err := g.load(ctx, s, true)
		if err == nil {
			g.worker.log.Info("model is loaded again", "model", g.spec.Name, "version", g.spec.Version, "took", time.Since(start))
			return
		}
		if ctx.Err() != nil || s.isLost() {
			return
		}
		g.worker.log.Error("model does not load again", "model", g.spec.Name, "version", g.spec.Version, "error", err)
	}
}

func (g *group) isGone() bool {
	g.worker.mu.Lock()
	defer g.worker.mu.Unlock()
	return g.gone
}

// unload frees the group in its worker. When ctx ends first, its mailboxes stay taken.
func (g *group) unload(ctx context.Context) error {
	w := g.worker
	w.mu.Lock()
	g.gone = true
	w.mu.Unlock()
	select {
	case <-g.turn:
		defer func() { g.turn <- struct{}{} }()
	case <-ctx.Done():
		return infer.Errorf(infer.Cancelled, "unload of model '%s': %w", g.spec.Name, context.Cause(ctx))
	}
	if g.unloaded {
		return nil
	}
	w.mu.Lock()
	s, handle := g.session, g.handle
	w.mu.Unlock()
	if s != nil {
		if _, err := s.client.Unload(ctx, &workerpb.UnloadRequest{Handle: handle}); err != nil {
			if !lostDuring(s, err) {
				return fromStatus(err)
			}
			<-s.idle
		} else {
			g.settle(s)
			s.desk.remove(handle)
		}
	}
	w.mu.Lock()
	delete(w.groups, g)
	g.session = nil
	w.mu.Unlock()
	g.stop()
	w.owner.letGo(w)
	return nil
}

// settle waits for the last answers of instances that a worker has unloaded. It gave them
// before it said so, but they come another way; one that doesn't come was never given.
func (g *group) settle(s *session) {
	late := time.NewTimer(g.worker.owner.cfg.HealthTimeout)
	defer late.Stop()
	for _, e := range g.executors {
		over := e.ended()
		if over == nil {
			continue
		}
		select {
		case <-over:
			continue
		case <-late.C:
			s.fail(fmt.Errorf("model '%s' was unloaded, and its last batch has no answer", g.spec.Name))
		case <-s.lost:
		}
		<-s.idle
		return
	}
}

// stop ends the executors and gives their mailboxes back. The caller holds turn, or is
// the last who knows the group.
func (g *group) stop() {
	g.unloaded = true
	for _, e := range g.executors {
		e.stop()
	}
	g.worker.returnBoxes(g.boxes)
}
