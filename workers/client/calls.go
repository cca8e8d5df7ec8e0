package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/client/internal/opencalls"
	"github.com/sluice-serve/sluice/workers/wire"
)

// Bounds on the calls of one worker. docs/worker-protocol.md says them.
const (
	maxCalls      = 1024 // without final answer
	maxModelCalls = 256  // those of one model
	answerWindow  = 8    // answers of one call that the worker has not taken
	maxHeld       = 8192 // answers on the local lane that are not given back
)

// Calls does what models ask the gateway for; gateway/calls fits it. Its methods may be called
// from any goroutine.
type Calls interface {
	// Infer begins an inference, whose answers and end to has, maybe before it returns. It
	// does not wait: where somebody must, wait is not nil, and is called once on a
	// goroutine that may. It ends when ctx does. req is complete but for what its model
	// says, and its Trace is Infer's to end.
	Infer(ctx context.Context, from *Calling, req *infer.Request, to infer.Sink) (wait func())
	// Do does anything else that is answered once.
	Do(ctx context.Context, from *Calling, call *workerpb.Call) (*workerpb.CallAnswer, error)
	// Forget says that a loaded model is gone, and calls no more.
	Forget(from *Calling)
}

// Calling is who calls.
type Calling struct {
	Model     string
	Version   int64
	Namespace string
	Worker    string
	// Call is the client's call that the model calls for, as far as it says who that is; nil:
	// the model calls for itself.
	Call *infer.Envelope
}

// desk takes the calls of the models of one session, and gives out their answers. Lock order:
// executor.mu, desk.mu.
type desk struct {
	calls  Calls
	log    *slog.Logger
	worker string
	lost   func(error) // ends the session of a worker that broke the protocol
	ctx    context.Context
	cancel context.CancelCauseFunc

	running sync.WaitGroup // of calls
	serving atomic.Bool    // table is not idle; it may be so for longer than it is

	mu     sync.Mutex
	table  *opencalls.Table     // guarded by mu
	open   map[uint64]*openCall // guarded by mu: as in table
	models map[uint64]*group    // guarded by mu: by handle
	shut   bool                 // guarded by mu: no call begins any more
}

// openCall is a call that has no final answer yet.
type openCall struct {
	id     uint64
	from   *Calling
	out    outlet
	stream bool            // any number of answers is taken
	ctx    context.Context // ends with what the call serves
	cancel context.CancelCauseFunc
	room   chan struct{} // holds a token: an answer was taken
}

// outlet is how answers get to the worker.
type outlet interface {
	// answer sends one answer, of which resp has the outputs, and takes resp's memory. nil:
	// it has none; only with one can it fail. It does not block.
	answer(a *wire.Answer, resp *infer.Response) error
	// large says that answer would take long.
	large(resp *infer.Response) bool
}

func newDesk(ctx context.Context, w *worker, calls Calls, lost func(error)) *desk {
	d := &desk{calls: calls, log: w.log, worker: w.name, lost: lost, open: map[uint64]*openCall{}, models: map[uint64]*group{},
		table: opencalls.New(opencalls.Limits{Open: maxCalls, OpenOfModel: maxModelCalls, Window: answerWindow})}
	d.ctx, d.cancel = context.WithCancelCause(context.WithoutCancel(ctx)) // until stop, which says why
	return d
}

var errSessionEnded = infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "the worker that made the call is gone: %w", infer.ErrWorkerLost)

// stop cancels all calls and waits for their end. No answer is read any more.
func (d *desk) stop() {
	if d == nil {
		return
	}
	d.mu.Lock()
	d.shut = true
	d.mu.Unlock()
	d.cancel(errSessionEnded)
	d.running.Wait()
	d.mu.Lock()
	models := d.models
	d.models = map[uint64]*group{}
	d.mu.Unlock()
	for _, g := range models {
		d.calls.Forget(d.calling(g, nil))
	}
}

// add makes a model known that is about to be loaded: it may call before its load is answered.
func (d *desk) add(handle uint64, g *group) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.models[handle] = g
}

// remove ends the calls of a model that is unloaded, or did not load.
func (d *desk) remove(handle uint64) {
	if d == nil {
		return
	}
	d.mu.Lock()
	g := d.models[handle]
	delete(d.models, handle)
	open := d.pickLocked(d.table.EndModel(handle))
	d.mu.Unlock()
	cancelAll(open)
	if g != nil {
		d.calls.Forget(d.calling(g, nil))
	}
}

func (d *desk) calling(g *group, call *infer.Envelope) *Calling {
	return &Calling{Model: g.spec.Name, Version: g.spec.Version, Namespace: g.spec.Namespace, Worker: d.worker, Call: call}
}

func (d *desk) pickLocked(ids []uint64) (open []*openCall) {
	for _, id := range ids {
		open = append(open, d.open[id])
	}
	return open
}

func cancelAll(open []*openCall) {
	for _, k := range open {
		k.cancel(opencalls.Ended())
	}
}

// endRequest cancels what a request has called for that is cancelled or has its final answer.
// The executor's mu may be held.
func (d *desk) endRequest(batch uint64, index uint32) {
	if d == nil {
		return
	}
	d.mu.Lock()
	open := d.pickLocked(d.table.EndRequest(opencalls.Request{Batch: batch, Index: index}))
	d.serving.Store(true)
	d.mu.Unlock()
	cancelAll(open)
}

// endBatch cancels what the requests of a batch have called for. It comes before the batch's
// last result is delivered.
func (d *desk) endBatch(batch uint64) {
	if d == nil || !d.serving.Load() {
		return
	}
	d.mu.Lock()
	open := d.pickLocked(d.table.EndBatch(batch))
	d.serving.Store(!d.table.Idle())
	d.mu.Unlock()
	cancelAll(open)
}

// servedRequest is what a call says of the request that it serves.
type servedRequest struct {
	handle   uint64
	instance uint32
	batch    uint64
	request  uint32
}

// begin opens a call, and with a request that it serves fills req from that. A fault is what the
// worker did wrong; an error is the call's answer.
func (d *desk) begin(id uint64, at servedRequest, req *infer.Request, k *openCall) (err, fault error) {
	d.mu.Lock()
	g := d.models[at.handle]
	d.mu.Unlock()
	switch {
	case id == 0:
		return nil, errors.New("a call without id that wants an answer")
	case g == nil:
		return infer.Errorf(infer.NotFound, "no model of handle %d is loaded", at.handle), nil
	}
	k.id, k.room = id, make(chan struct{}, 1)
	if at.batch == 0 {
		name := "model:" + g.spec.Name
		req.Caller = name
		req.Origin = &infer.Envelope{Protocol: "model", Action: infer.ActionInference, Principal: &infer.Principal{Name: name, Method: "model"}}
		k.from = d.calling(g, nil)
		k.from.Call = req.Origin
		return faultOf(d.enter(k, at))
	}
	if int64(at.instance) >= int64(len(g.executors)) {
		return nil, fmt.Errorf("a call of instance %d of model '%s', which has %d", at.instance, g.spec.Name, len(g.executors))
	}
	k.from = d.calling(g, nil)
	return faultOf(g.executors[at.instance].serve(d, k, at, req))
}

// errTwice is a call whose ID is that of one that is open.
var errTwice = errors.New("a call has the id of one that is open")

func faultOf(err error) (answer, fault error) {
	if errors.Is(err, errTwice) {
		return nil, err
	}
	return err, nil
}

// enter opens a call whose request is in flight.
func (d *desk) enter(k *openCall, at servedRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return errSessionEnded
	}
	if d.table.Has(k.id) {
		return fmt.Errorf("%w: %d", errTwice, k.id)
	}
	if err := d.table.Begin(k.id, at.handle, opencalls.Request{Batch: at.batch, Index: at.request}); err != nil {
		return err
	}
	k.ctx, k.cancel = context.WithCancelCause(d.ctx)
	d.open[k.id] = k
	if at.batch != 0 {
		d.serving.Store(true)
	}
	return nil
}

// serve opens a call for a request in flight, and gives req what it takes from that: it may be
// another's as soon as it is answered.
func (e *executor) serve(d *desk, k *openCall, at servedRequest, req *infer.Request) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.current
	if b == nil || b.ID != at.batch {
		b = nil
		if o := e.opens.find(at.batch); o != nil {
			b = o.batch
		}
	}
	if b == nil || e.desk != d {
		return opencalls.Ended()
	}
	if int64(at.request) >= int64(len(b.Requests)) {
		return infer.Errorf(infer.InvalidArg, "a call serves request %d of a batch of %d", at.request, len(b.Requests))
	}
	if err := d.enter(k, at); err != nil {
		return err
	}
	top := b.Requests[at.request]
	if req.ID == "" {
		req.ID = strings.Clone(top.ID)
	}
	if req.Priority == 0 {
		req.Priority = top.Priority
	}
	if left := timeLeft(top); left > 0 && (req.Timeout == 0 || int64(req.Timeout) > left) {
		req.Timeout = time.Duration(left)
	}
	req.Depth, req.Within = top.Depth+1, &infer.Ancestor{Instance: e, Batch: b.ID, Within: top.Within}
	req.Tenant, req.Caller, req.Weight = strings.Clone(top.Tenant), strings.Clone(top.Caller), top.Weight
	req.Origin = callerOf(top.Origin)
	if req.Model != "" {
		req.Trace = top.Trace.Child(req.Model, req.ID)
	}
	k.from.Call = req.Origin
	return nil
}

// endAnswered cancels what requests have called for that a part of a result gives their final
// answers to. It comes before that is delivered.
func (e *executor) endAnswered(w *wire.Result) {
	if !w.More || len(w.Responses) == 0 {
		return
	}
	e.mu.Lock()
	desk := e.desk
	e.mu.Unlock()
	for i := range w.Responses {
		if p := &w.Responses[i]; p.Final || p.Err != "" {
			desk.endRequest(w.ID, uint32(p.Index))
		}
	}
}

// Occupied fits infer.Executor.
func (e *executor) Occupied(batch uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.current != nil && e.current.ID == batch
}

// callerOf is what an envelope says of the caller, which may be read when its call has ended.
func callerOf(env *infer.Envelope) *infer.Envelope {
	if env == nil {
		return &infer.Envelope{Protocol: "model", Action: infer.ActionInference}
	}
	return &infer.Envelope{Protocol: "model", Action: infer.ActionInference, Remote: env.Remote, Unix: env.Unix,
		Peer: infer.Peer{Known: env.Peer.Known, UID: env.Peer.UID}, Principal: env.Principal, Weight: env.Weight}
}

// start begins the inference of a call whose request has its inputs, their memory and room for
// the names of its outputs. An error says what the worker did wrong.
func (d *desk) start(k *openCall, req *infer.Request, call *wire.Call, outputs []infer.RequestedOutput) error {
	for _, name := range call.Outputs {
		outputs = append(outputs, infer.RequestedOutput{Name: name})
	}
	req.Model, req.Version, req.ID, req.Priority, req.Timeout = call.Model, call.Version, call.RequestID, call.Priority, time.Duration(call.Timeout)
	req.Params, req.Outputs, req.Streaming = call.Params, outputs, call.Stream
	req.Correlation, req.SequenceStart, req.SequenceEnd = call.Correlation, call.Start, call.End
	k.stream = call.Stream
	err, fault := d.begin(call.ID, servedRequest{call.Handle, call.Instance, call.Batch, call.Request}, req, k)
	if err == nil && fault == nil {
		d.infer(k, req)
		return nil
	}
	req.Memory.Release()
	if fault == nil {
		return k.out.answer(refusal(call.ID, err), nil)
	}
	return fault
}

// infer runs a call that begin has opened.
func (d *desk) infer(k *openCall, req *infer.Request) {
	r := &run{desk: d, call: k, req: req}
	d.running.Add(1)
	var wait func()
	err := guarded(func() error {
		wait = d.calls.Infer(k.ctx, k.from, req, r)
		return nil
	})
	switch {
	case err != nil:
		r.Done(err)
	case wait != nil:
		d.running.Go(wait)
	}
}

// guarded makes an error of a panic of ours.
func guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = infer.Recovered(v)
		}
	}()
	return f()
}

// run is one inference on its way; it fits infer.Sink.
type run struct {
	desk *desk
	call *openCall
	req  *infer.Request
	last *infer.Response // the one answer of a call that takes no stream; or the final one of a stream
}

// Large fits infer.Sink.
func (r *run) Large(resp *infer.Response) bool { return r.call.out.large(resp) }

// Send fits infer.Sink. Only what comes in any number waits here, for which a goroutine waits
// anyway.
func (r *run) Send(resp *infer.Response) error {
	if r.last != nil {
		resp.Memory.Release()
		return infer.Errorf(infer.Internal, "more than one final response")
	}
	if !r.call.stream || resp.Final {
		r.last = resp
		return nil
	}
	d, k := r.desk, r.call
	for {
		d.mu.Lock()
		room := d.table.Part(k.id)
		d.mu.Unlock()
		if room {
			return k.out.answer(&wire.Answer{ID: k.id, Params: resp.Params}, resp)
		}
		select {
		case <-k.room:
		case <-k.ctx.Done():
			resp.Memory.Release()
			return infer.Refusef(infer.Cancelled, infer.ReasonOf(k.ctx.Err()), "the call was cancelled: %w", context.Cause(k.ctx))
		}
	}
}

// Done fits infer.Sink: it gives the final answer.
func (r *run) Done(err error) infer.Flusher {
	defer r.desk.running.Done()
	defer r.call.cancel(nil)
	r.req.Memory.Release()
	resp := r.last
	if err != nil && resp != nil {
		resp.Memory.Release()
		resp = nil
	}
	if err == nil && resp == nil && !r.call.stream {
		err = infer.Errorf(infer.Internal, "the model gave no answer")
	}
	a := &wire.Answer{ID: r.call.id, Final: true}
	if err != nil {
		r.desk.fault(r.call, err)
		a = refusal(r.call.id, err)
	} else if resp != nil {
		a.Params = resp.Params
	}
	r.desk.final(r.call)
	if err := r.call.out.answer(a, resp); err != nil {
		_ = r.call.out.answer(refusal(r.call.id, err), nil) // which does not fail
	}
	return nil
}

// final closes a call before its last answer goes, so that its ID may be used again.
func (d *desk) final(k *openCall) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.table.Final(k.id)
	delete(d.open, k.id)
}

// fault logs what is a bug of ours.
func (d *desk) fault(k *openCall, err error) {
	var bug *infer.Bug
	if errors.As(err, &bug) {
		d.log.Error("a call of a model met a fault", "model", k.from.Model, "version", k.from.Version, "panic", bug.Value, "stack", string(bug.Stack))
	}
}

// maxErrorText bounds the text of an error in an answer.
const maxErrorText = 16 << 10

// refusal is the final answer of a call that failed.
func refusal(id uint64, err error) *wire.Answer {
	text := err.Error()
	if text == "" {
		text = "the call failed"
	}
	return &wire.Answer{ID: id, Final: true, Code: infer.CodeOf(err), Reason: infer.ReasonOf(err),
		Err: strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "\ufffd")}
}

// cancelCall is a worker's word that it wants no answer any more; one that comes late has no
// meaning.
func (d *desk) cancelCall(id uint64) {
	d.mu.Lock()
	k := d.open[id]
	d.mu.Unlock()
	if k != nil {
		k.cancel(infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "the model that made the call cancelled it"))
	}
}

// taken is a worker's word that it has read an answer which was not final.
func (d *desk) taken(id uint64) {
	d.mu.Lock()
	k := d.open[id]
	room := d.table.Taken(id)
	d.mu.Unlock()
	if room {
		select {
		case k.room <- struct{}{}:
		default:
		}
	}
}
