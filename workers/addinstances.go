package workers

import (
	"context"
	"sync"

	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
)

// mostAtOnce bounds the instances of a model that are made at a time: each may take a processor, and
// memory while it is made that it does not keep.
const mostAtOnce = 4

// addInstances makes the model's instances: one after the other, or several at a time where the backend
// can. Those that were made are the model's, also on an error, which is the first one.
func (m *model) addInstances(ctx context.Context, w *Worker, c *connection, all []*worker.InstanceSpec,
	specs []backend.InstanceSpec) error {
	most := 1
	if m.info.Simultaneous {
		most = mostAtOnce
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	made := make([]*instance, len(all))
	turns := make(chan struct{}, most)
	var making sync.WaitGroup
	for i, s := range all {
		turns <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		making.Go(func() {
			defer func() { <-turns }()
			inst, err := m.newInstance(ctx, w, c, wantedInstance{index: uint32(i), mailbox: s.GetMailbox(), spec: specs[i]})
			if err != nil {
				cancel(err) // the first one is the cause
				return
			}
			made[i] = inst
		})
	}
	making.Wait()
	for _, inst := range made {
		if inst != nil {
			q, _ := inst.transport.(*queue)
			m.queues = append(m.queues, q)
			m.instances = append(m.instances, inst)
		}
	}
	return context.Cause(ctx)
}

// wantedInstance is an instance that the gateway wants.
type wantedInstance struct {
	index   uint32 // among its model's
	mailbox uint32
	spec    backend.InstanceSpec
}

// newInstance makes an instance, whose goroutine runs when it returns.
func (m *model) newInstance(ctx context.Context, w *Worker, c *connection, a wantedInstance) (*instance, error) {
	t, err := c.newTransport(a.mailbox)
	if err != nil {
		return nil, err
	}
	spec := a.spec
	inst := &instance{
		worker: w, connection: c, spec: spec, model: m.loaded, modelName: m.spec.Name, transport: t,
		done:   make(chan struct{}),
		handle: m.handle, index: a.index,
		decoupled: m.spec.Config.GetModelTransactionPolicy().GetDecoupled(),
		iterative: m.spec.Config.GetSequenceBatching().GetIterativeSequence(),
		scattered: m.scattered(),
		apart:     !m.keeps && !m.info.WholeBatches && mayBeApart(m, spec),
		keeps:     m.keeps,
		opens:     opens{most: m.openRequests, changed: make(chan struct{}, 1)},
		gpu:       w.deviceOf(c, &m.info, &spec),
		log:       w.log.With("model", m.spec.Name, "version", m.spec.Version, "instance", spec.Name),
	}
	_, local := t.(*mailbox)
	inst.passes = inst.apart && local // whose gateway has the inputs
	ready := make(chan error, 1)
	go inst.run(ctx, ready)
	if err := <-ready; err != nil {
		t.close()
		<-inst.done
		return nil, err
	}
	return inst, nil
}
