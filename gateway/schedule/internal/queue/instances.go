package queue

// Instances are the instances of a model version: which are in service, which have a
// batch, and which the rate limiter holds back. Every core embeds one. It is pure and
// its caller serializes.
type Instances struct {
	all   []instance
	ready int
}

type instance struct {
	up, busy bool
	held     bool   // the rate limiter lets it begin no batch
	life     uint64 // counts Up, so that news of an older life is told apart
}

// NewInstances are n instances, all up and free.
func NewInstances(n int) Instances {
	in := Instances{all: make([]instance, n), ready: n}
	for i := range in.all {
		in.all[i].up = true
	}
	return in
}

// Free is the first instance that can take a batch, -1 where there is none: the lowest
// one, so that few instances keep warm when few are needed.
func (in *Instances) Free() int {
	for i := range in.all {
		if in.Can(i) {
			return i
		}
	}
	return -1
}

// Can says that instance i could take a batch now.
func (in *Instances) Can(i int) bool {
	one := &in.all[i]
	return one.up && !one.busy && !one.held
}

// Take marks an instance as busy: it has a batch until Done or Lost.
func (in *Instances) Take(i int) { in.all[i].busy = true }

// Busy says that the instance has a batch.
func (in *Instances) Busy(i int) bool { return in.all[i].busy }

// InService says that the instance is up.
func (in *Instances) InService(i int) bool { return in.all[i].up }

// Hold makes an instance begin no batch until it is let go again. It changes nothing
// about Ready: the rate limiter calls it, not the worker's health.
func (in *Instances) Hold(i int, held bool) { in.all[i].held = held }

// Life names the present life of an instance, for Lost.
func (in *Instances) Life(i int) uint64 { return in.all[i].life }

// Done frees the instance.
func (in *Instances) Done(i int) { in.all[i].busy = false }

// Lost frees an instance whose worker ended and takes it out of service, unless it
// has come up again since the given life.
func (in *Instances) Lost(i int, life uint64) {
	if in.all[i].life == life {
		in.Down(i)
	}
	in.all[i].busy = false
}

// Down takes an instance out of service; what it has goes on.
func (in *Instances) Down(i int) {
	if in.all[i].up {
		in.all[i].up = false
		in.ready--
	}
}

// Up puts an instance into service.
func (in *Instances) Up(i int) {
	in.all[i].life++
	if !in.all[i].up {
		in.all[i].up = true
		in.ready++
	}
}

// Ready counts instances in service.
func (in *Instances) Ready() int { return in.ready }

// Count counts all instances.
func (in *Instances) Count() int { return len(in.all) }

// Restore makes them as others are, but for who is held back: nobody is.
func (in *Instances) Restore(from *Instances) {
	in.all = append(in.all[:0], from.all...)
	for i := range in.all {
		in.all[i].held = false
	}
	in.ready = from.ready
}
