package workers

import (
	"context"
	"sync"

	"github.com/sluice-serve/sluice/workers/backend"
)

// asked are the model's instances that say themselves whether they are ready. The model is loaded.
func (m *model) asked() []backend.Asked {
	var all []backend.Asked
	for _, inst := range m.instances {
		if made := inst.made.Load(); made != nil {
			if a, ok := (*made).(backend.Asked); ok && a.AsksReady() {
				all = append(all, a)
			}
		}
	}
	return all
}

// notReady asks all instances at once, and gives what the first says that is not ready; nil: all are.
func (m *model) notReady(ctx context.Context) error {
	all := m.asked()
	errs := make([]error, len(all))
	var asking sync.WaitGroup
	for i, a := range all {
		asking.Go(func() { errs[i] = a.Ready(ctx) })
	}
	asking.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
