package workers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/wire"
)

// answerWindow is how many answers of a call a gateway has under way.
const answerWindow = 8

// callStreamTime is how long the gateway's stream of calls may take to come.
const callStreamTime = 10 * time.Second

// calls are what the models of one connection ask for. Lock order: sending, mu.
type calls struct {
	connection *connection
	on         atomic.Bool   // the gateway takes calls
	next       atomic.Uint64 // the last ID
	opened     chan struct{} // closed when stream is there
	over       chan struct{} // closed when nothing is answered any more
	lead       chan struct{} // holds a token: one goroutine reads the lane's answers

	sending sync.Mutex                                               // held over a send
	stream  grpc.BidiStreamingServer[worker.CallAnswer, worker.Call] // guarded by mu

	mu   sync.Mutex
	open map[uint64]*openCall // guarded by mu: by ID
	gone bool                 // guarded by mu: over is closed
}

// openCall is a call without final answer.
type openCall struct {
	id      uint64
	answers chan callAnswer
}

// callAnswer is one answer as it came.
type callAnswer struct {
	message *worker.CallAnswer // over the stream
	offset  int64              // over the lane: of its descriptor
	length  int64
	token   uint64
}

func newCalls(c *connection) *calls {
	return &calls{connection: c, open: map[uint64]*openCall{}, opened: make(chan struct{}), over: make(chan struct{}), lead: make(chan struct{}, 1)}
}

var errGatewayGone = infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the gateway answers no calls any more")

// endStream is end, after which nothing is sent.
func (c *calls) endStream() {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.end()
}

// end fails all calls: the gateway has gone.
func (c *calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		c.gone = true
		close(c.over)
	}
}

func (c *calls) begin() (*openCall, error) {
	k := &openCall{id: c.next.Add(1), answers: make(chan callAnswer, answerWindow+1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return nil, errGatewayGone
	}
	c.open[k.id] = k
	return k, nil
}

func (c *calls) finish(k *openCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, k.id)
}

// hand gives an answer to who waits for it; wanted is false where nobody does any more. An error
// is that the gateway broke the protocol.
func (c *calls) hand(id uint64, a callAnswer) (wanted bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.open[id]
	if k == nil {
		return false, nil
	}
	select {
	case k.answers <- a:
		return true, nil
	default:
		return true, fmt.Errorf("more than %d answers came to call %d before it took any", answerWindow+1, id)
	}
}

// serve is a Calls stream until it ends.
func (c *calls) serve(server grpc.BidiStreamingServer[worker.CallAnswer, worker.Call]) error {
	c.mu.Lock()
	second := c.stream != nil
	if !second {
		c.stream = server
		close(c.opened)
	}
	c.mu.Unlock()
	if second {
		return infer.Errorf(infer.AlreadyExists, "the connection has a stream of calls")
	}
	defer c.end()
	for {
		m, err := server.Recv()
		if err != nil {
			return err
		}
		if _, err := c.hand(m.GetId(), callAnswer{message: m}); err != nil {
			return infer.Errorf(infer.InvalidArg, "%w", err)
		}
	}
}

func (c *calls) send(ctx context.Context, m *worker.Call) error {
	select {
	case <-c.opened:
	default:
		late := time.NewTimer(callStreamTime)
		defer late.Stop()
		select {
		case <-c.opened:
		case <-c.over:
		case <-ctx.Done():
			return infer.Errorf(infer.Cancelled, "the call was cancelled: %w", context.Cause(ctx))
		case <-late.C:
			return infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "the gateway has opened no stream of calls")
		}
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	c.mu.Lock()
	server, gone := c.stream, c.gone
	c.mu.Unlock()
	if gone {
		return errGatewayGone
	}
	if err := server.Send(m); err != nil {
		return errors.Join(errGatewayGone, err)
	}
	return nil
}

// gatewayFor is the gateway for one request, or with batch 0 for the model itself; it fits
// backend.Gateway.
type gatewayFor struct {
	calls    *calls
	model    *atomic.Uint64 // the handle of a model that calls for itself; nil: handle
	handle   uint64
	instance uint32
	batch    uint64
	request  uint32
}

// Gateway fits backend.Request.
func (r *request) Gateway() backend.Gateway {
	inst := r.x.inst
	if !inst.connection.calls.on.Load() {
		return nil
	}
	return &gatewayFor{calls: inst.connection.calls, handle: inst.handle, instance: inst.index, batch: r.x.batch.ID, request: uint32(r.index)}
}

// loaded is the handle of the model that calls.
func (g *gatewayFor) loaded() uint64 {
	if g.model != nil {
		return g.model.Load()
	}
	return g.handle
}

// message is a call without what it asks for.
func (g *gatewayFor) message(id uint64) *worker.Call {
	return &worker.Call{Id: id, Handle: g.loaded(), Instance: g.instance, Batch: g.batch, Request: g.request}
}

// Infer fits backend.Gateway.
func (g *gatewayFor) Infer(ctx context.Context, call *backend.Call, each func(*backend.Answer) error) error {
	for i := range call.Inputs {
		if err := checkOutput(&call.Inputs[i]); err != nil {
			return infer.Errorf(infer.InvalidArg, "a call of model '%s': %w", call.Model, err)
		}
	}
	c := g.calls
	k, err := c.begin()
	if err != nil {
		return err
	}
	over := false
	lane := c.connection.callLane()
	defer func() {
		if !over { // also after a panic of each
			c.cancel(k, lane)
		}
		c.finish(k)
	}()
	w := wire.Call{ID: k.id, Handle: g.loaded(), Instance: g.instance, Batch: g.batch, Request: g.request, Model: call.Model, Version: call.Version,
		RequestID: call.ID, Priority: call.Priority, Timeout: int64(call.Timeout), Correlation: call.Correlation, Start: call.SequenceStart,
		End: call.SequenceEnd, Stream: call.Stream, Params: call.Params, Outputs: call.Outputs}
	if lane != nil {
		err = lane.post(ctx, c, &w, call.Inputs)
	} else {
		err = c.sendInference(ctx, &w, call.Inputs)
	}
	if err != nil {
		over = true // it never began
		return err
	}
	return c.answer(ctx, k, lane, g.batch != 0, each, &over)
}

func (c *calls) sendInference(ctx context.Context, w *wire.Call, inputs []infer.Tensor) error {
	var tensors [][]byte
	for i := range inputs {
		t := &inputs[i]
		w.Inputs = append(w.Inputs, wire.Output{Name: t.Name, Datatype: t.Datatype, Shape: t.Shape})
		tensors = append(tensors, t.Data)
	}
	m := wire.CallMessage(w)
	m.Tensors = tensors
	return c.send(ctx, m)
}

// answer gives a call's answers to each until the final one, with which over is set.
func (c *calls) answer(ctx context.Context, k *openCall, lane *callLane, serves bool, each func(*backend.Answer) error, over *bool) error {
	var failed error // each's or ctx's; what comes after it is dropped
	stop := func(err error) {
		if failed == nil {
			failed = err
			ctx = context.WithoutCancel(ctx) // the final answer still comes
			c.cancel(k, lane)
		}
	}
	for {
		a, err := c.wait(ctx, k, lane)
		if err != nil {
			if ctx.Err() == nil {
				return err
			}
			stop(infer.Refusef(infer.Cancelled, infer.ReasonOf(ctx.Err()), "the call was cancelled: %w", context.Cause(ctx)))
			continue
		}
		got, err := c.read(&a, lane)
		if err != nil {
			return err
		}
		*over = got.Final
		if got.Err == "" && failed == nil {
			if err := each(&got.Answer); err != nil {
				if got.Final {
					failed = err
				} else {
					stop(err)
				}
			}
		}
		c.taken(k, &a, lane, got, serves)
		switch {
		case got.Final && failed != nil:
			return failed
		case got.Err != "":
			return infer.Refusef(got.Code, got.Reason, "%s", got.Err)
		case got.Final:
			return nil
		}
	}
}

// readAnswer is an answer as the model gets it, or the call's failure.
type readAnswer struct {
	backend.Answer
	Err    string
	Code   infer.Code
	Reason infer.Reason
}

// read decodes an answer.
func (c *calls) read(a *callAnswer, lane *callLane) (*readAnswer, error) {
	if a.message == nil && a.length < 0 {
		return &readAnswer{Answer: backend.Answer{Final: true}, Err: "the gateway had no memory left for the answer", Code: infer.Unavailable,
			Reason: infer.ReasonMemory}, nil
	}
	var w wire.Answer
	view := func(i int, s wire.Segment) ([]byte, error) { return a.message.GetTensors()[i], nil }
	var err error
	if a.message != nil {
		err = wire.ReadAnswer(a.message, &w)
	} else {
		err = lane.decode(a, &w)
		view = func(_ int, s wire.Segment) ([]byte, error) { return lane.view(s) }
	}
	if err != nil {
		return nil, err
	}
	r := &readAnswer{Answer: backend.Answer{Params: w.Params, Final: w.Final}, Err: w.Err, Code: w.Code, Reason: w.Reason}
	for i := range w.Outputs {
		o := &w.Outputs[i]
		data, err := view(i, o.Data)
		if err != nil {
			return nil, err
		}
		r.Outputs = append(r.Outputs, infer.Tensor{Name: o.Name, Datatype: o.Datatype, Shape: o.Shape, Data: data})
	}
	return r, nil
}

// wait returns the next answer. An error is ctx's end, or that of the gateway.
func (c *calls) wait(ctx context.Context, k *openCall, lane *callLane) (callAnswer, error) {
	lead := c.lead
	if lane == nil {
		lead = nil
	}
	for {
		select {
		case a := <-k.answers:
			return a, nil
		default:
		}
		select {
		case a := <-k.answers:
			return a, nil
		case <-ctx.Done():
			return callAnswer{}, context.Cause(ctx)
		case <-c.over:
			return callAnswer{}, errGatewayGone
		case lead <- struct{}{}:
			err := lane.hear(ctx, c, k)
			<-lead
			if err != nil {
				c.end()
				return callAnswer{}, errors.Join(errGatewayGone, err)
			}
		}
	}
}

// cancel tells the gateway that no answer is wanted any more.
func (c *calls) cancel(k *openCall, lane *callLane) {
	if lane != nil {
		lane.cancel(k.id)
		return
	}
	c.tell(&worker.Call{Id: k.id, What: &worker.Call_Cancel{Cancel: true}})
}

// taken says that nothing of an answer is read any more. The gateway is not woken for the last
// one of a call whose request has its result yet to come, if little memory is under it.
func (c *calls) taken(k *openCall, a *callAnswer, lane *callLane, got *readAnswer, serves bool) {
	switch {
	case a.message == nil:
		size := 0
		for i := range got.Outputs {
			size += len(got.Outputs[i].Data)
		}
		if a.length >= 0 {
			lane.taken(a.token, got.Final && serves && size < passSize)
		}
	case !got.Final:
		c.tell(&worker.Call{Id: k.id, What: &worker.Call_Taken{Taken: true}})
	}
}

// tell sends what has no answer; false: there is no stream yet. Who has gone need not know.
func (c *calls) tell(m *worker.Call) bool {
	select {
	case <-c.opened:
		_ = c.send(c.stream.Context(), m)
		return true
	default:
		return false
	}
}

// do asks for what has one answer, which comes over the stream.
func (g *gatewayFor) do(ctx context.Context, set func(*worker.Call)) (*worker.CallAnswer, error) {
	c := g.calls
	k, err := c.begin()
	if err != nil {
		return nil, err
	}
	defer c.finish(k)
	m := g.message(k.id)
	set(m)
	if err := c.send(ctx, m); err != nil {
		return nil, err
	}
	a, err := c.wait(ctx, k, nil)
	if err != nil && ctx.Err() != nil {
		left := err
		c.cancel(k, nil)
		if a, err = c.wait(context.WithoutCancel(ctx), k, nil); err == nil && a.message.GetError() != nil {
			return nil, infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "the call was cancelled: %w", left)
		}
	}
	if err != nil {
		return nil, err
	}
	var w wire.Answer
	if err := wire.ReadAnswer(a.message, &w); err != nil {
		return nil, err
	}
	if w.Err != "" {
		return nil, infer.Refusef(w.Code, w.Reason, "%s", w.Err)
	}
	return a.message, nil
}

// Load fits backend.Gateway.
func (g *gatewayFor) Load(ctx context.Context, model, config string, files map[string][]byte) error {
	size := 0
	for name, data := range files {
		size += len(name) + len(data)
	}
	if most := min(backend.MaxLoadFiles, g.calls.connection.worker.config.MaxMessage/2); size > most {
		return infer.Errorf(infer.InvalidArg,
			"the files for model '%s' have %d bytes, a model may load at most %d", model, size, most)
	}
	_, err := g.do(ctx, func(m *worker.Call) {
		m.What = &worker.Call_Load{Load: &worker.ModelChange{Model: model, Config: config, Files: files}}
	})
	return err
}

// Unload fits backend.Gateway.
func (g *gatewayFor) Unload(ctx context.Context, model string, dependents bool) error {
	_, err := g.do(ctx, func(m *worker.Call) {
		m.What = &worker.Call_Unload{Unload: &worker.ModelChange{Model: model, Dependents: dependents}}
	})
	return err
}

// Ready fits backend.Gateway.
func (g *gatewayFor) Ready(ctx context.Context, model, version string) (bool, error) {
	a, err := g.do(ctx, func(m *worker.Call) {
		m.What = &worker.Call_Ready{Ready: &worker.ModelVersion{Model: model, Version: version}}
	})
	return a.GetReady(), err
}

// Log fits backend.Gateway.
func (g *gatewayFor) Log(level backend.LogLevel, text string) {
	m := g.message(0)
	m.What = &worker.Call_Log{Log: &worker.LogLine{Level: worker.LogLine_Level(level), Text: text[:min(len(text), maxText)]}}
	if !g.calls.tell(m) { // the model is being loaded, and the stream is on its way
		g.calls.connection.worker.log.Info("a model says", "level", level, "text", m.GetLog().GetText())
	}
}

// Metric fits backend.Gateway.
func (g *gatewayFor) Metric(ctx context.Context, m *backend.Metric) error {
	u := &worker.MetricUpdate{Family: m.Family, Kind: worker.MetricUpdate_Kind(m.Kind), Help: m.Help, Buckets: m.Buckets, Labels: m.Labels}
	switch m.Change {
	case backend.Set:
		u.Change = &worker.MetricUpdate_Set{Set: m.Value}
	case backend.Add:
		u.Change = &worker.MetricUpdate_Add{Add: m.Value}
	case backend.Declare:
		u.Change = &worker.MetricUpdate_Declare{Declare: true}
	case backend.Delete:
		u.Change = &worker.MetricUpdate_Delete{Delete: true}
	default:
		u.Change = &worker.MetricUpdate_Observe{Observe: m.Value}
	}
	_, err := g.do(ctx, func(c *worker.Call) { c.What = &worker.Call_Metric{Metric: u} })
	return err
}
