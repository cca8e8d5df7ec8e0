package client

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/wire"
)

// callStream is the Calls stream of a session. Inferences of workers that share memory come
// through the lane in its place.
type callStream struct {
	*desk
	stream workerpb.Worker_CallsClient
	budget *infer.Budget // of the heap memory of calls' inputs; nil: none
	wake   chan struct{} // one token: the queue is not empty

	queued sync.Mutex
	queue  []queuedAnswer // guarded by queued; bounded by maxHeld
}

// queuedAnswer is an answer that is not sent yet.
type queuedAnswer struct {
	message *workerpb.CallAnswer
	memory  *infer.Buffer // under its tensors
}

// openCalls opens the stream. Its two loops are the caller's to run.
func openCalls(ctx context.Context, client workerpb.WorkerClient, d *desk, budget *infer.Budget) (*callStream, error) {
	stream, err := client.Calls(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the stream of calls: %w", err)
	}
	return &callStream{desk: d, stream: stream, budget: budget, wake: make(chan struct{}, 1)}, nil
}

// receive takes calls until the stream ends or the worker breaks it.
func (s *callStream) receive() error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return fmt.Errorf("receive a call: %w", err)
		}
		if err := s.take(m); err != nil {
			return err
		}
	}
}

// take begins what a message asks for. An error says what the worker did wrong.
func (s *callStream) take(m *workerpb.Call) error {
	switch m.GetWhat().(type) {
	case *workerpb.Call_Cancel:
		s.cancelCall(m.GetId())
		return nil
	case *workerpb.Call_Taken:
		s.taken(m.GetId())
		return nil
	case *workerpb.Call_Infer:
		return s.called(m)
	case *workerpb.Call_Log, *workerpb.Call_Metric:
		if m.GetId() == 0 {
			return s.note(m)
		}
	case nil:
		return fmt.Errorf("call %d asks for nothing", m.GetId())
	}
	return s.other(m)
}

// called begins an inference.
func (s *callStream) called(m *workerpb.Call) error {
	var call wire.Call
	if err := wire.ReadCall(m, &call); err != nil {
		return err
	}
	k, req := &openCall{out: s}, &infer.Request{}
	size := int64(0)
	for i := range call.Inputs {
		in := &call.Inputs[i]
		if _, _, ok := in.Data.Region(); ok {
			return fmt.Errorf("input '%s' of a call lies in a region", in.Name)
		}
		data := m.GetTensors()[i]
		size += int64(len(data))
		req.Inputs = append(req.Inputs, infer.Tensor{Name: in.Name, Datatype: in.Datatype, Shape: in.Shape, Data: data})
	}
	if s.budget != nil && size >= infer.CountFrom {
		if err := s.budget.Take(size); err != nil {
			return s.answer(refusal(call.ID, err), nil)
		}
		req.Memory = infer.NewBuffer(nil, func(*infer.Buffer) { s.budget.Give(size) })
	}
	return s.start(k, req, &call, nil)
}

// note does what nobody waits for.
func (s *callStream) note(m *workerpb.Call) error {
	s.mu.Lock()
	g := s.models[m.GetHandle()]
	s.mu.Unlock()
	if g == nil {
		return nil // it was unloaded meanwhile
	}
	_, err := s.calls.Do(s.ctx, s.calling(g, nil), m)
	return err
}

// other does anything else, on a goroutine of its own.
func (s *callStream) other(m *workerpb.Call) error {
	k := &openCall{out: s}
	err, fault := s.begin(m.GetId(), servedRequest{m.GetHandle(), m.GetInstance(), m.GetBatch(), m.GetRequest()}, &infer.Request{}, k)
	if fault != nil {
		return fault
	}
	if err != nil {
		return s.answer(refusal(m.GetId(), err), nil)
	}
	s.running.Go(func() {
		defer k.cancel(nil)
		var answer *workerpb.CallAnswer
		err := guarded(func() (err error) {
			answer, err = s.calls.Do(k.ctx, k.from, m)
			return err
		})
		s.final(k)
		if err != nil {
			s.fault(k, err)
			_ = s.answer(refusal(k.id, err), nil) // which does not fail
			return
		}
		answer.Id, answer.Final = k.id, true
		s.put(queuedAnswer{message: answer})
	})
	return nil
}

// answer fits outlet.
func (s *callStream) answer(a *wire.Answer, resp *infer.Response) error {
	q := queuedAnswer{}
	var tensors [][]byte
	if resp != nil {
		q.memory = resp.Memory
		for i := range resp.Outputs {
			t := &resp.Outputs[i]
			a.Outputs = append(a.Outputs, wire.Output{Name: t.Name, Datatype: t.Datatype, Shape: t.Shape})
			tensors = append(tensors, t.Data)
		}
	}
	q.message = wire.AnswerMessage(a)
	q.message.Tensors = tensors
	if size := proto.Size(q.message); size > maxAnswer {
		q.memory.Release()
		return infer.Refusef(infer.Unavailable, infer.ReasonTooLarge, "an answer of %d bytes is more than the %d that a message may have", size, maxAnswer)
	}
	s.put(q)
	return nil
}

// large fits outlet: messages are made by who sends them.
func (s *callStream) large(*infer.Response) bool { return false }

// maxAnswer is the most bytes of one message, as gRPC has them.
const maxAnswer = 1<<31 - 1

func (s *callStream) put(q queuedAnswer) {
	s.queued.Lock()
	full := len(s.queue) >= maxHeld
	if !full {
		s.queue = append(s.queue, q)
	}
	s.queued.Unlock()
	if full {
		q.memory.Release()
		s.lost(fmt.Errorf("the worker does not take the answers to its models' calls: %d wait", maxHeld))
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// send writes answers until the stream ends.
func (s *callStream) send() error {
	var batch []queuedAnswer
	defer func() { release(batch) }()
	for {
		select {
		case <-s.wake:
		case <-s.stream.Context().Done():
			return s.stream.Context().Err()
		}
		s.queued.Lock()
		batch, s.queue = s.queue, nil
		s.queued.Unlock()
		for len(batch) > 0 {
			if err := s.stream.Send(batch[0].message); err != nil {
				return fmt.Errorf("send an answer to a call: %w", err)
			}
			release(batch[:1])
			batch = batch[1:]
		}
	}
}

func release(answers []queuedAnswer) {
	for i := range answers {
		answers[i].memory.Release()
	}
}

// close gives back what was not sent. No call is open any more.
func (s *callStream) close() {
	if s == nil {
		return
	}
	s.queued.Lock()
	defer s.queued.Unlock()
	release(s.queue)
	s.queue = nil
}
